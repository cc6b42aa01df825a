import { createHash, hash as hashNow } from "node:crypto";
import { createReadStream } from "node:fs";
import { type FileHandle, open, rename, rm, utimes } from "node:fs/promises";
import { join } from "node:path";
import { Readable } from "node:stream";
import { HoldfastError } from "../core/text/errors.ts";
import {
  explain,
  explained,
  faultOf,
  isAbsent,
  type Layout,
  makeFolder,
  nameFor,
  passArtifactPoint,
  syncFolder,
  syncRead,
} from "./folder.ts";
import { hashOf } from "./collect.ts";

export interface Stored {
  hash: string;
  size: number;
}

/** Bytes written at once, which is all the memory that a put takes. */
const PIECE = 256 * 1024;
/** Up to this size, hashing twice is cheaper than writing an artifact that exists. */
const SMALL = 4 * 1024 * 1024;

export class Writer {
  readonly #layout: Layout;
  readonly #now: () => number;
  readonly #shelves = new Set<string>();

  constructor(layout: Layout, now: () => number) {
    this.#layout = layout;
    this.#now = now;
  }

  async put(data: ArtifactData, token: string): Promise<Stored> {
    accept(data);
    const bytes = bytesOf(data);
    if (bytes !== null && bytes.length <= SMALL) {
      const known = { hash: hashNow("sha256", bytes), size: bytes.length };
      if (await this.#isThere(known)) return known;
    }
    const path = join(this.#layout.temporary, nameFor(token));
    // An artifact never changes, even if a handler gets its path.
    const mode = this.#layout.mode & 0o444;
    const handle = await open(path, "wx", mode).catch(explained(this.#layout.root));
    try {
      await handle.chmod(mode);
      passArtifactPoint("put:begun");
      const stored = await this.#write(handle, data, bytes?.length ?? PIECE);
      passArtifactPoint("put:written");
      if (await this.#isThere(stored)) return stored;
      await this.#publish(handle, path, stored);
      return stored;
    } finally {
      await handle.close();
      await rm(path, { force: true });
    }
  }

  /** Copies pieces before it hashes them: a caller that changes its buffer meanwhile must not get the hash of other bytes. */
  async #write(handle: FileHandle, data: ArtifactData, expected: number): Promise<Stored> {
    const digest = createHash("sha256");
    const buffer = Buffer.allocUnsafe(Math.max(1, Math.min(PIECE, expected)));
    let [filled, size] = [0, 0];
    const flush = async () => {
      digest.update(buffer.subarray(0, filled));
      for (let at = 0; at < filled;) {
        const { bytesWritten } = await handle.write(buffer, at, filled - at, size).catch(explained(this.#layout.root));
        at += bytesWritten;
        size += bytesWritten;
      }
      filled = 0;
    };
    for await (const piece of piecesOf(data)) {
      for (let at = 0; at < piece.length;) {
        const part = piece.subarray(at, at + buffer.length - filled);
        buffer.set(part, filled);
        filled += part.length;
        at += part.length;
        if (filled === buffer.length) await flush();
      }
    }
    await flush();
    return { hash: digest.digest("hex"), size };
  }

  async #publish(handle: FileHandle, path: string, { hash }: Stored): Promise<void> {
    const { root } = this.#layout;
    try {
      // A slow stream's last byte may be old, and a sweep compares this time.
      const now = this.#now() / 1_000;
      await handle.utimes(now, now);
      await handle.sync();
      passArtifactPoint("put:synced");
      await this.#makeShelf(hash);
      await rename(path, this.#layout.fileOf(hash)).catch(refuseRemoved);
      passArtifactPoint("put:renamed");
      await syncFolder(this.#layout.shelfOf(hash));
      passArtifactPoint("put:kept");
    } catch (error) {
      throw explain(error, root);
    }
  }

  /**
   * Whether the artifact exists undamaged. The touch by its own name protects it from every earlier sweep; if a sweep was faster,
   * the artifact is missing. It is synced, because the process that stored it may not have done so yet.
   */
  async #isThere({ hash, size }: Stored): Promise<boolean> {
    const path = this.#layout.fileOf(hash);
    let handle: FileHandle | null = null;
    try {
      handle = await open(path, "r");
      if ((await handle.stat()).size !== size || (await hashOf(handle)) !== hash) return false;
      const now = this.#now() / 1_000;
      await utimes(path, now, now);
      await syncRead(handle);
      await this.#makeShelf(hash);
      await syncFolder(this.#layout.shelfOf(hash));
      return true;
    } catch (error) {
      // A file of another user cannot be touched, and a bad sector cannot be read. The caller replaces both.
      if (isAbsent(error) || ["EPERM", "EACCES", "EIO"].includes(faultOf(error) ?? "")) return false;
      throw explain(error, this.#layout.root);
    } finally {
      await handle?.close();
    }
  }

  /** Creates the folder and syncs its name, because a process that created it before may not have synced it. */
  async #makeShelf(hash: string): Promise<void> {
    const shelf = this.#layout.shelfOf(hash);
    if (this.#shelves.has(shelf)) return;
    await makeFolder(shelf, this.#layout.mode);
    await syncFolder(this.#layout.root);
    this.#shelves.add(shelf);
  }
}

function refuseRemoved(error: unknown): never {
  if (!isAbsent(error)) throw error;
  throw new HoldfastError(
    "ARTIFACT_NOT_STORED",
    "Another program removed the artifact from its folder while it was being written, so nothing was stored.",
    "Store it again, and let no other program remove files from the folder of artifacts.",
    { cause: error },
  );
}

export type ArtifactData = Uint8Array | string | Readable | { path: string };

function bytesOf(data: ArtifactData): Uint8Array | null {
  if (typeof data === "string") return encode(data);
  return data instanceof Uint8Array ? data : null;
}

async function* piecesOf(data: ArtifactData): AsyncGenerator<Uint8Array> {
  const bytes = bytesOf(data);
  if (bytes !== null) return yield bytes;
  const stream = streamOf(data as Exclude<ArtifactData, Uint8Array | string>);
  try {
    for await (const piece of stream as AsyncIterable<unknown>) {
      if (typeof piece !== "string" && !(piece instanceof Uint8Array)) {
        throw invalid(`The stream gave ${piece === null ? "null" : typeof piece}, which is neither bytes nor text`);
      }
      yield bytesOf(piece) as Uint8Array;
    }
  } catch (error) {
    throw stream === data ? error : unreadable((data as { path: string }).path, error);
  }
}

/** Rejects what cannot be stored. Listens to a stream at once, because an error event without a listener ends the process. */
function accept(data: ArtifactData): void {
  if (typeof data === "string" || data instanceof Uint8Array) return;
  if (data instanceof Readable) {
    data.on("error", () => {});
    return refuseOver(data);
  }
  if (typeof (data as { path?: unknown } | null)?.path !== "string") throw invalid("This is nothing that can be stored");
}

function streamOf(data: Readable | { path: string }): Readable {
  if (!(data instanceof Readable)) return createReadStream(data.path);
  refuseOver(data);
  return data;
}

/** Rejects an ended stream: it yields neither bytes nor an error, and would be stored as an empty artifact. */
function refuseOver(stream: Readable): void {
  if (stream.errored) throw stream.errored;
  if (!stream.readable) throw invalid("The stream is over already, or was destroyed", "Give a stream that no other code reads.");
}

function encode(text: string): Uint8Array {
  if (text.isWellFormed()) return Buffer.from(text, "utf8");
  throw invalid("The text has half a character (a lone surrogate), which UTF-8 cannot say", "Give bytes instead.");
}

function invalid(what: string, hint = "Give bytes, text, a stream of them, or { path }."): HoldfastError {
  return new HoldfastError("ARTIFACT_INVALID", `${what}, so nothing was stored.`, hint);
}

function unreadable(path: string, error: unknown): unknown {
  if (error instanceof HoldfastError || faultOf(error) === null) return error;
  return new HoldfastError(
    "ARTIFACT_SOURCE_UNREADABLE",
    `${path} could not be read (${(error as Error).message}), so nothing was stored.`,
    "Check that the path is a file and that this user may read it.",
    { cause: error },
  );
}
