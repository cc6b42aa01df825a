import { type FileHandle, open } from "node:fs/promises";
import type { Readable } from "node:stream";
import type { Artifacts } from "../../artifacts/artifacts.ts";
import type { FileStat, Fingerprint } from "../../core/pipelines/context-hash.ts";
import { READ, type Reading, toFileStat, whileStill } from "./fingerprint-file.ts";

/** Keeps a file's bytes as an artifact, and answers the fingerprint of exactly these bytes; null: it is gone. */
export function snapshotFile(
  artifacts: Artifacts,
  path: string,
  stat: FileStat,
  clock: { now(): number },
): Promise<Fingerprint | null> {
  return whileStill(path, stat, clock, (path, size) => keep(artifacts, path, size));
}

/** What is stored of a file that was written to meanwhile has no reference, and is swept. */
async function keep(artifacts: Artifacts, path: string, size: number): Promise<Reading | null> {
  const handle = await open(path, READ);
  try {
    if (!(await handle.stat()).isFile()) return null;
    const stored = await artifacts.put(size < WHOLE ? await wholeOf(handle, size) : piecesOf(handle, size));
    return { ...stored, after: toFileStat(await handle.stat({ bigint: true })) };
  } finally {
    await handle.close();
  }
}

/** Up to here bytes are stored from memory: those that are there already need not be written first. */
const WHOLE = 1024 * 1024;

/** One byte more than expected, if there is one: enough to see that it has grown. */
async function wholeOf(handle: FileHandle, size: number): Promise<Uint8Array> {
  const { buffer, bytesRead } = await handle.read(Buffer.allocUnsafe(size + 1), 0, size + 1, 0);
  return buffer.subarray(0, bytesRead);
}

function piecesOf(handle: FileHandle, size: number): Readable {
  return handle.createReadStream({ autoClose: false, start: 0, end: size, highWaterMark: 256 * 1024 });
}
