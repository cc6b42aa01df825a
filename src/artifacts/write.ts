import { createHash, hash as hashNow } from "node:crypto";
import { type FileHandle, open, rename, rm, utimes } from "node:fs/promises";
import { join } from "node:path";
import { HoldfastError } from "../core/errors.ts";
import { explain, explained, faultOf, isAbsent } from "./faults.ts";
import { makeFolder, syncFolder, syncRead } from "./folder.ts";
import { type Layout, nameFor } from "./layout.ts";
import { passArtifactPoint } from "./points.ts";
import { accept, type ArtifactData, bytesOf, piecesOf } from "./source.ts";
import { hashOf } from "./verified.ts";

export interface Stored {
  hash: string;
  size: number;
}

/** So much is written at once, and that is all the memory it takes. */
const PIECE = 256 * 1024;
/** Up to here it is cheaper to hash twice than to write what is there already. */
const SMALL = 4 * 1024 * 1024;

/** Stores bytes under their hash; when it resolves, they outlive a power cut. */
export class Writer {
  readonly #layout: Layout;
  readonly #now: () => number;
  /** Folders whose own names are known to be on the disk. */
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
    // Nobody should write to it later, not even who is given its path.
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

  /**
   * Hashes what is written, not what was given: pieces are copied first, so that nobody who changes his buffer meanwhile
   * has it stored under a name that is another's.
   */
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
      // A slow stream's last byte may be long ago, and a sweep goes by this time.
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
   * Whether it is there, whole. It is read: what is damaged is replaced by whoever stores it again. Then it is touched by
   * its own name, after which no sweep that has looked at it before removes it; one that is quicker has taken the name
   * away, and then it is not there. It is synced, too: whoever has renamed it may not have come to that yet.
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
      // Another user's file cannot be touched, and a bad sector not be read; but both can be replaced.
      if (isAbsent(error) || ["EPERM", "EACCES", "EIO"].includes(faultOf(error) ?? "")) return false;
      throw explain(error, this.#layout.root);
    } finally {
      await handle?.close();
    }
  }

  /** Somebody else may have made the folder, and not have synced its name yet. */
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
    "What was being stored was removed from its folder meanwhile, so nothing was stored.",
    "Store it again. Nothing but Holdfast may remove files there; a writer on another host is given a week without a byte.",
    { cause: error },
  );
}
