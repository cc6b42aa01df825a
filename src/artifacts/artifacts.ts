import { constants, copyFileSync, existsSync, mkdirSync, rmSync } from "node:fs";
import { type FileHandle, open, stat } from "node:fs/promises";
import { join, resolve } from "node:path";
import { Readable } from "node:stream";
import { hash as hashNow } from "node:crypto";
import { type Duration, toMillis } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { fileModeOf } from "../core/text/text.ts";
import { collect, type Collected, hashOf, hashOfNow, ownNow, verifiedPieces } from "./collect.ts";
import { clearOrphanedFiles, Trash, type IsReferenced, type Liveness, sweep, type Swept } from "./sweep.ts";
import { type Exported, type ExportEntry, exportTo } from "./export.ts";
import { checkHash, damaged, explain, explained, faultOf, isAbsent, Layout, makeFolder, missing, nameFor } from "./folder.ts";
import { type ArtifactData, type Stored, Writer } from "./write.ts";

export interface ArtifactsOptions {
  /** Checks whether other processes that write to the same folder are alive. `folder` has their lock files. */
  alive: (folder: string) => Liveness;
  clock?: { now(): number };
  /** Mode of files in a new folder; by default the umask decides. An existing folder's mode is followed. */
  mode?: number;
}

/** Files named after their sha-256, shared by many processes. They survive a power cut; reads yield the right bytes or fail. */
export class Artifacts {
  readonly #layout: Layout;
  readonly #alive: Liveness;
  readonly #now: () => number;
  readonly #writer: Writer;
  readonly #trash: Trash;
  #token: string | null = null;
  #closed = false;

  private constructor(layout: Layout, alive: Liveness, now: () => number) {
    this.#layout = layout;
    this.#alive = alive;
    this.#now = now;
    this.#writer = new Writer(layout, now);
    this.#trash = new Trash(layout, now);
  }

  static async open(folder: string, options: ArtifactsOptions): Promise<Artifacts> {
    const root = resolve(folder);
    const layout = await makeLayout(root, options.mode).catch(explained(root));
    const artifacts = new Artifacts(layout, options.alive(layout.alive), () => options.clock?.now() ?? Date.now());
    await artifacts.clear();
    return artifacts;
  }

  async put(data: ArtifactData): Promise<Stored> {
    return this.#writer.put(data, this.#hold());
  }

  async read(hash: string): Promise<Uint8Array> {
    await using handle = await this.#open(hash);
    try {
      const bytes = await handle.readFile();
      if (hashNow("sha256", bytes) !== hash) throw damaged(hash, this.#layout.fileOf(hash));
      return bytes;
    } catch (error) {
      throw faultOf(error) === "ERR_FS_FILE_TOO_LARGE" ? tooLarge(hash, error) : explain(error, this.#layout.fileOf(hash));
    }
  }

  /** Streams the bytes and verifies them as they pass: the stream ends without an error only if all bytes are right. */
  stream(hash: string): Readable {
    return Readable.from(this.#pieces(checkHash(hash)), { objectMode: false });
  }

  /** Returns the path of the file for programs that need one. They must not write to it. */
  async path(hash: string): Promise<string> {
    await using handle = await this.#open(hash);
    const path = this.#layout.fileOf(hash);
    if ((await hashOf(handle).catch(explained(path))) !== hash) throw damaged(hash, path);
    return path;
  }

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

  /** Creates a folder that the caller removes. After a crash, the next process that opens these artifacts removes it. */
  privateFolderNow(): string {
    const path = join(this.#layout.temporary, nameFor(this.#hold()));
    try {
      mkdirSync(path, { mode: 0o700 });
    } catch (error) {
      throw explain(error, path);
    }
    return path;
  }

  /** Returns missing hashes, after a restore from the trash. In the transaction that references the hashes, the others stay. */
  missing(hashes: Iterable<string>): string[] {
    return [...new Set(hashes)].filter((hash) => {
      const path = this.#layout.fileOf(hash);
      for (let tries = 0; tries < 3; tries++) {
        if (existsSync(path)) return false;
        if (!this.#trash.rescue(hash) && !existsSync(path)) return true;
      }
      return true;
    });
  }

  async sweep(isReferenced: IsReferenced, { olderThan }: { olderThan: Duration }): Promise<Swept> {
    const cutoff = this.#now() - toMillis(olderThan, "olderThan");
    const token = this.#hold();
    await this.clear();
    const parts = { layout: this.#layout, trash: this.#trash, token, cutoff };
    return sweep(parts, isReferenced).catch(explained(this.#layout.root));
  }

  /** Writes files, `manifest.json` and `checksums.txt` (`sha256sum -c checksums.txt`) into a folder, completely or not at all. */
  async exportTo(dir: string, entries: AsyncIterable<ExportEntry> | Iterable<ExportEntry>, manifest: object): Promise<Exported> {
    const token = this.#hold();
    await this.clear();
    return exportTo({ layout: this.#layout, token, pieces: (hash) => this.#pieces(hash) }, dir, entries, manifest);
  }

  collect(hashes: readonly string[], folder: string, onProgress: (done: number) => void): Promise<Collected> {
    const options = { folder, mode: this.#layout.mode, pieces: (hash: string) => this.#pieces(hash), onProgress };
    return collect(hashes, options).catch(explained(folder));
  }

  async clear(): Promise<void> {
    await clearOrphanedFiles(this.#layout, this.#trash, this.#alive, this.#now()).catch(explained(this.#layout.root));
  }

  close(): void {
    if (!this.#closed) this.#alive.close();
    this.#closed = true;
  }

  async *#pieces(hash: string): AsyncGenerator<Buffer> {
    await using handle = await this.#open(hash);
    const path = this.#layout.fileOf(hash);
    try {
      yield* verifiedPieces(handle, { hash }, () => damaged(hash, path));
    } catch (error) {
      throw explain(error, path);
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
      // The artifact may be in the trash, where another process may be restoring it, too.
      if (tries === 2) throw missing(hash);
      this.#trash.rescue(hash);
    }
  }

  #hold(): string {
    if (this.#closed)
      throw new HoldfastError("CLOSED", "The folder of artifacts is closed.", "Open the database again, or close it later.");
    return (this.#token ??= this.#alive.hold());
  }
}

async function makeLayout(root: string, mode: number | undefined): Promise<Layout> {
  await makeFolder(root, mode);
  const layout = new Layout(root, fileModeOf((await stat(root)).mode));
  for (const path of [layout.temporary, layout.trash]) await makeFolder(path, layout.mode);
  return layout;
}

function tooLarge(hash: string, cause: unknown): HoldfastError {
  return new HoldfastError(
    "ARTIFACT_TOO_LARGE",
    `The artifact ${hash} is too large to read into memory.`,
    "Read it as a stream or by its path.",
    { cause },
  );
}
