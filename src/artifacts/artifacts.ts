import { constants, copyFileSync, existsSync, mkdirSync, rmSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { join, resolve } from "node:path";
import { Readable } from "node:stream";
import { hash as hashNow } from "node:crypto";
import { type Duration, toMillis } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { collect, type Collected, hashOf, hashOfNow, ownNow, verifiedPieces } from "./collect.ts";
import { clearLeftovers, Doomed, type IsReferenced, type Liveness, sweep, type Swept } from "./sweep.ts";
import { type Exported, type ExportEntry, exportTo } from "./export.ts";
import { checkHash, damaged, explain, faultOf, fileModeIn, isAbsent, Layout, makeFolder, missing, nameFor } from "./folder.ts";
import { type ArtifactData, type Stored, Writer } from "./write.ts";

export interface ArtifactsOptions {
  /** Makes the liveness check of processes that write to the same folder; `folder` is for its lock files. */
  alive: (folder: string) => Liveness;
  clock?: { now(): number };
  /** Of files, where the folder is made now; left out: as the umask says. A folder that is there is followed. */
  mode?: number;
}

/**
 * Files named after the sha-256 of their bytes, in one folder that many processes share. What `put` has answered outlives
 * a power cut; what is read is what was stored, or an error. Who references what is the store's to know:
 *
 * - A transaction that writes references down asks `missing` first, and gives up when something is.
 * - `sweep` asks for references, and removes what has none.
 */
export class Artifacts {
  readonly #layout: Layout;
  readonly #alive: Liveness;
  readonly #now: () => number;
  readonly #writer: Writer;
  readonly #doomed: Doomed;
  #token: string | null = null;
  #closed = false;

  private constructor(layout: Layout, alive: Liveness, now: () => number) {
    this.#layout = layout;
    this.#alive = alive;
    this.#now = now;
    this.#writer = new Writer(layout, now);
    this.#doomed = new Doomed(layout, now);
  }

  /** Makes the folder where there is none, and cleans up after those who died in it. */
  static async open(folder: string, options: ArtifactsOptions): Promise<Artifacts> {
    const root = resolve(folder);
    let layout: Layout;
    try {
      await makeFolder(root, options.mode);
      layout = new Layout(root, await fileModeIn(root));
      for (const path of [layout.temporary, layout.doomed]) await makeFolder(path, layout.mode);
    } catch (error) {
      throw explain(error, root);
    }
    const artifacts = new Artifacts(layout, options.alive(layout.alive), () => options.clock?.now() ?? Date.now());
    await artifacts.clear();
    return artifacts;
  }

  /** Bytes, text as UTF-8, a stream of any size, or the content of a file. The same bytes are stored once. */
  async put(data: ArtifactData): Promise<Stored> {
    return this.#writer.put(data, this.#hold());
  }

  async read(hash: string): Promise<Uint8Array> {
    const handle = await this.#open(hash);
    try {
      const bytes = await handle.readFile();
      if (hashNow("sha256", bytes) !== hash) throw damaged(hash, this.#layout.fileOf(hash));
      return bytes;
    } catch (error) {
      throw faultOf(error) === "ERR_FS_FILE_TOO_LARGE" ? tooLarge(hash, error) : explain(error, this.#layout.fileOf(hash));
    } finally {
      await handle.close();
    }
  }

  /** Ends well only if all bytes were right; they are looked at as they pass. */
  stream(hash: string): Readable {
    return Readable.from(this.#pieces(checkHash(hash)), { objectMode: false });
  }

  /** A file with these bytes, for programs that want one. It must not be written to. */
  async path(hash: string): Promise<string> {
    const handle = await this.#open(hash);
    const path = this.#layout.fileOf(hash);
    try {
      if ((await hashOf(handle)) !== hash) throw damaged(hash, path);
      return path;
    } catch (error) {
      throw explain(error, path);
    } finally {
      await handle.close();
    }
  }

  /** A copy of one's own, for those who cannot wait. There must be nothing at `to`. */
  copyNow(hash: string, to: string): void {
    const path = this.#layout.fileOf(hash);
    if (this.missing([hash]).length > 0) throw missing(hash);
    try {
      copyFileSync(path, to, constants.COPYFILE_FICLONE | constants.COPYFILE_EXCL);
      ownNow(to);
      if (hashOfNow(to) === hash) return;
    } catch (error) {
      throw explain(error, path);
    }
    rmSync(to);
    throw damaged(hash, path);
  }

  /**
   * A folder for this process's temporary files. The caller removes it; after a crash, the next process that opens these
   * artifacts does.
   */
  privateFolderNow(): string {
    const path = join(this.#layout.temporary, nameFor(this.#hold()));
    try {
      mkdirSync(path, { mode: 0o700 });
    } catch (error) {
      throw explain(error, path);
    }
    return path;
  }

  /**
   * The hashes without an artifact. Called inside the transaction that references them: the others stay if it commits.
   * Restores what a sweep has just moved to the trash. Bytes are verified when they are read, not here.
   */
  missing(hashes: Iterable<string>): string[] {
    return [...new Set(hashes)].filter((hash) => {
      const path = this.#layout.fileOf(hash);
      for (let tries = 0; tries < 3; tries++) {
        if (existsSync(path)) return false;
        // Another process may have restored it between the two checks.
        if (!this.#doomed.rescue(hash) && !existsSync(path)) return true;
      }
      return true;
    });
  }

  /** Removes what is not referenced and was not stored, or stored again, within `olderThan`. */
  async sweep(isReferenced: IsReferenced, { olderThan }: { olderThan: Duration }): Promise<Swept> {
    const cutoff = this.#now() - toMillis(olderThan, "olderThan");
    const token = this.#hold();
    await this.clear();
    try {
      return await sweep({ layout: this.#layout, doomed: this.#doomed, token, cutoff }, isReferenced);
    } catch (error) {
      throw explain(error, this.#layout.root);
    }
  }

  /**
   * A folder with these files, `manifest.json` and `checksums.txt` (`sha256sum -c checksums.txt`), whole or not at all.
   * Nothing is written outside of it.
   */
  async exportTo(dir: string, entries: AsyncIterable<ExportEntry> | Iterable<ExportEntry>, manifest: object): Promise<Exported> {
    const token = this.#hold();
    await this.clear();
    return exportTo({ layout: this.#layout, token, pieces: (hash) => this.#pieces(hash) }, dir, entries, manifest);
  }

  /** Copies of these in a folder that is not there yet, for a backup. */
  async collect(hashes: readonly string[], folder: string, tell: (done: number) => void = () => {}): Promise<Collected> {
    try {
      return await collect(hashes, { folder, mode: this.#layout.mode, pieces: (hash) => this.#pieces(hash), tell });
    } catch (error) {
      throw explain(error, folder);
    }
  }

  /** Cleans up after those who died. */
  async clear(): Promise<void> {
    try {
      await clearLeftovers(this.#layout, this.#doomed, this.#alive, this.#now());
    } catch (error) {
      throw explain(error, this.#layout.root);
    }
  }

  /** Nothing may be under way. */
  close(): void {
    if (!this.#closed) this.#alive.close();
    this.#closed = true;
  }

  async *#pieces(hash: string): AsyncGenerator<Buffer> {
    const handle = await this.#open(hash);
    const path = this.#layout.fileOf(hash);
    try {
      yield* verifiedPieces(handle, { hash }, () => damaged(hash, path));
    } catch (error) {
      throw explain(error, path);
    } finally {
      await handle.close();
    }
  }

  async #open(hash: string): Promise<FileHandle> {
    const path = this.#layout.fileOf(hash);
    for (let tries = 0; ; tries++) {
      try {
        return await open(path, "r");
      } catch (error) {
        if (!isAbsent(error)) throw explain(error, path);
      }
      // Twice: it may have been on its way back while this looked.
      if (tries === 2) throw missing(hash);
      this.#doomed.rescue(hash);
    }
  }

  /** Those who only read need no lock. */
  #hold(): string {
    if (this.#closed)
      throw new HoldfastError("CLOSED", "The folder of artifacts is closed.", "Open the database again, or close it later.");
    return (this.#token ??= this.#alive.hold());
  }
}

function tooLarge(hash: string, cause: unknown): HoldfastError {
  return new HoldfastError(
    "ARTIFACT_TOO_LARGE",
    `The artifact ${hash} is too large to read into memory.`,
    "Read it as a stream or by its path.",
    { cause },
  );
}
