import { hash as hashNow } from "node:crypto";
import { closeSync, constants, copyFileSync, readSync, rmSync } from "node:fs";
import { type FileHandle, open, rm } from "node:fs/promises";
import { basename, join } from "node:path";
import { Readable } from "node:stream";
import type { Artifacts } from "../../artifacts/artifacts.ts";
import { hashOfNow, ownNow, verifiedPieces } from "../../artifacts/collect.ts";
import { explain, faultOf } from "../../artifacts/folder.ts";
import { type FileStat, type Fingerprint, isSameStat, mayHaveChanged } from "../../core/pipelines/work.ts";
import type { FileTarget } from "../../core/pipelines/source.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import {
  bytesChanged,
  hashFile,
  isGone,
  openNow,
  orGone,
  READ,
  type Reading,
  SMALL_FILE_BYTES,
  statNow,
  statOpen,
  toFileStat,
  turn,
  unreadable,
  whileStill,
} from "./fingerprint-file.ts";

interface ClaimedFileParts {
  id: string;
  path: string;
  fingerprint: Fingerprint;
  /** The bytes are stored as an artifact, and the file itself is not read again. */
  snapshot: boolean;
  artifacts: Artifacts;
}

/** A file: reads yield the claimed bytes or throw `BYTES_CHANGED`. Call `recheck` before the commit, and always `dispose`. */
export class ClaimedFile implements FileTarget {
  readonly id: string;
  readonly hash: string;
  readonly size: number;
  readonly #parts: ClaimedFileParts;
  #folder: string | null = null;
  #spoiled = false;
  /** Unfinished streams: a part of a file cannot be compared with the whole. */
  #partly = 0;
  #disposed = false;

  constructor(parts: ClaimedFileParts) {
    this.#parts = parts;
    this.id = parts.id;
    this.hash = parts.fingerprint.hash;
    this.size = parts.fingerprint.size;
  }

  get claim(): { path: string; fingerprint: Fingerprint; snapshot: boolean } {
    const { path, fingerprint, snapshot } = this.#parts;
    return { path, fingerprint, snapshot };
  }

  async bytes(): Promise<Uint8Array> {
    const { artifacts, fingerprint, snapshot, path } = this.#parts;
    if (snapshot) return artifacts.read(fingerprint.hash);
    if (fingerprint.size > SMALL_FILE_BYTES) return this.#wholeOf(room(path, fingerprint.size));
    await turn();
    try {
      return readSmall(path, fingerprint) ?? this.#refuse();
    } catch (error) {
      return orGone(path)(error) ?? this.#refuse();
    }
  }

  stream(): Readable {
    const { artifacts, fingerprint, snapshot } = this.#parts;
    if (snapshot) return artifacts.stream(fingerprint.hash);
    return Readable.from(this.#pieces(), { objectMode: false });
  }

  /** Makes a private copy that no other process writes to. The call is synchronous, because `path` is a property. */
  get path(): string {
    if (this.#disposed) throw disposed(this.id);
    if (this.#folder !== null) return join(this.#folder, basename(this.id));
    const folder = this.#parts.artifacts.privateFolderNow();
    try {
      const path = join(folder, basename(this.id));
      this.#copyTo(path);
      this.#folder = folder;
      return path;
    } finally {
      if (this.#folder === null) rmSync(folder, { recursive: true, force: true });
    }
  }

  /** Reads the bytes again if the metadata changed, or if a write shortly before the hashing may have left the same times. */
  async recheck(): Promise<boolean> {
    const { fingerprint, snapshot, path } = this.#parts;
    // The handler may have seen other bytes, even if the original ones are back.
    if (this.#spoiled) return false;
    if (snapshot) return true;
    const stat = statNow(path);
    if (stat === null || stat.size !== fingerprint.size) return false;
    if (this.#partly > 0 && !isSameStat(fingerprint, stat)) return false;
    if (!mayHaveChanged(fingerprint, stat)) return true;
    const reading = await hashFile(path, stat.size).catch(orGone(path));
    return reading?.hash === fingerprint.hash;
  }

  /** Removes the copy. If that fails, the next process that opens the artifacts removes it. */
  async dispose(): Promise<void> {
    this.#disposed = true;
    const folder = this.#folder;
    this.#folder = null;
    if (folder !== null) await rm(folder, { recursive: true, force: true }).catch(() => {});
  }

  async #wholeOf(bytes: Uint8Array): Promise<Uint8Array> {
    let filled = 0;
    for await (const piece of this.#pieces()) {
      bytes.set(piece, filled);
      filled += piece.length;
    }
    return bytes;
  }

  async *#pieces(): AsyncGenerator<Buffer> {
    const { fingerprint, path } = this.#parts;
    const handle: FileHandle | null = await open(path, READ).catch(orGone(path));
    if (handle === null) this.#refuse();
    this.#partly++;
    try {
      const stat = await handle.stat();
      if (!stat.isFile() || stat.size !== fingerprint.size) this.#refuse();
      yield* verifiedPieces(handle, fingerprint, () => this.#changed());
      this.#partly--;
    } catch (error) {
      throw error instanceof HoldfastError ? error : unreadable(path, error);
    } finally {
      await handle.close();
    }
  }

  #copyTo(to: string): void {
    const { artifacts, fingerprint, snapshot, path } = this.#parts;
    if (snapshot) return artifacts.copyNow(fingerprint.hash, to);
    if (statNow(path)?.size !== fingerprint.size) this.#refuse();
    try {
      copyFileSync(path, to, constants.COPYFILE_FICLONE | constants.COPYFILE_EXCL);
    } catch (error) {
      if (isGone(error) && statNow(path) === null) this.#refuse();
      throw NO_ROOM.has(faultOf(error) ?? "") ? explain(error, to) : unreadable(path, error);
    }
    ownNow(to);
    if (hashOfNow(to) !== fingerprint.hash) this.#refuse();
  }

  #refuse(): never {
    throw this.#changed();
  }

  #changed(): HoldfastError {
    const { fingerprint, path } = this.#parts;
    this.#spoiled = true;
    return bytesChanged(path, happened(fingerprint, statNow(path)));
  }
}

const NO_ROOM = new Set(["ENOSPC", "EDQUOT", "EROFS"]);

function happened(before: Fingerprint, now: FileStat | null): string {
  if (now === null) return "it is gone";
  if (now.size !== before.size) return `it had ${before.size} bytes, and has ${now.size} now`;
  if (now.inode !== before.inode) return "it was replaced by another file of the same size";
  if (now.mtime !== before.mtime) return "it was written to";
  return "it was written to, without a new time";
}

function disposed(id: string): HoldfastError {
  return new HoldfastError(
    "CLOSED",
    `The attempt for ${id} has ended, so its copy was removed.`,
    "Use `path` while the handler runs, and copy the bytes that you need later.",
  );
}

function readSmall(path: string, { size, hash }: { size: number; hash: string }): Uint8Array | null {
  const fd = openNow(path);
  try {
    if (statOpen(fd)?.size !== size) return null;
    const bytes = new Uint8Array(size);
    let filled = 0;
    for (let read = -1; read !== 0 && filled < size; filled += read) read = readSync(fd, bytes, filled, size - filled, null);
    return filled === size && hashNow("sha256", bytes) === hash ? bytes : null;
  } finally {
    closeSync(fd);
  }
}

function room(path: string, size: number): Uint8Array {
  try {
    return new Uint8Array(size);
  } catch (cause) {
    throw new HoldfastError(
      "TARGET_TOO_LARGE",
      `${path} has ${size} bytes, which is too large to read into memory.`,
      "Read it with `stream()` or by its `path`.",
      { cause },
    );
  }
}

export function snapshotFile(
  artifacts: Artifacts,
  path: string,
  stat: FileStat,
  clock: { now(): number },
): Promise<Fingerprint | null> {
  return whileStill(path, stat, clock, (path, size) => keep(artifacts, path, size));
}

/** Stores the bytes. If the file changed meanwhile, no row references the artifact, and it is swept. */
async function keep(artifacts: Artifacts, path: string, size: number): Promise<Reading | null> {
  const handle = await open(path, READ);
  try {
    if (!(await handle.stat()).isFile()) return null;
    const stored = await artifacts.put(await readForArtifact(handle, size));
    return { ...stored, after: toFileStat(await handle.stat({ bigint: true })) };
  } finally {
    await handle.close();
  }
}

/** Larger files are streamed. A buffered file is hashed first, and is not written if its artifact exists. */
const MAX_BUFFERED_BYTES = 1024 * 1024;

/** Reads one byte more than expected, which shows whether the file has grown. */
async function readForArtifact(handle: FileHandle, size: number): Promise<Uint8Array | Readable> {
  if (size >= MAX_BUFFERED_BYTES)
    return handle.createReadStream({ autoClose: false, start: 0, end: size, highWaterMark: 256 * 1024 });
  const { buffer, bytesRead } = await handle.read(Buffer.allocUnsafe(size + 1), 0, size + 1, 0);
  return buffer.subarray(0, bytesRead);
}
