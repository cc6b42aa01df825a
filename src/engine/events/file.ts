import { type FileHandle, open } from "node:fs/promises";
import { dirname } from "node:path";
import { DEFAULT_FILE_MODE } from "../../core/text/text.ts";
import { type Sink, SinkDown } from "./sink.ts";

/** How every line begins. */
const BEGINNING = '{"seq":';
const STEP = 65_536;

/**
 * One JSON line an event, at the end of a file. The lines are on the disk before the cursor moves. It is opened for each
 * delivery, so that it may be renamed or removed in between, as programs that rotate logs do.
 */
export function fileSink(path: string, mode = DEFAULT_FILE_MODE): Sink {
  return {
    kind: "file",
    atOnce: 500,
    async deliver(events) {
      try {
        await append(path, mode, events.map((event) => `${JSON.stringify(event)}\n`).join(""));
      } catch (error) {
        throw new SinkDown(`The file cannot be written: ${(error as Error).message}.`);
      }
    },
  };
}

async function append(path: string, mode: number, lines: string): Promise<void> {
  const file = await openToAppend(path, mode);
  try {
    const before = await file.stat();
    const size = await mend(file, before.size);
    try {
      await file.appendFile(lines, "utf8");
      await file.sync();
    } catch (error) {
      // A full disk takes half a line: it must not become the beginning of the next one.
      await file.truncate(size).catch(() => {});
      throw error;
    }
    if (before.size === 0) await syncFolder(dirname(path));
  } finally {
    await file.close();
  }
}

/** A file that is there keeps its mode; a new one has this, whatever the umask is. */
async function openToAppend(path: string, mode: number): Promise<FileHandle> {
  try {
    const created = await open(path, "ax+", mode);
    await created.chmod(mode);
    return created;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    return open(path, "a+");
  }
}

/** Who was killed while writing has left a torn last line. Its event comes again, so what is there of it is cut off. */
async function mend(file: FileHandle, size: number): Promise<number> {
  const tail = await lastLine(file, size);
  if (tail.length === 0) return size;
  if (isOurs(tail)) {
    await file.truncate(size - tail.length);
    return size - tail.length;
  }
  // Somebody else's text without a line's end: it stays.
  await file.appendFile("\n");
  return size + 1;
}

/** A torn line of ours, or the zeros that a power cut may leave in its place. */
function isOurs(tail: Buffer): boolean {
  const start = tail.subarray(0, BEGINNING.length).toString("latin1");
  return BEGINNING.startsWith(start) || tail.every((byte) => byte === 0);
}

/** What comes after the last line's end; nothing in a file that is whole. */
async function lastLine(file: FileHandle, size: number): Promise<Buffer> {
  let tail = Buffer.alloc(0);
  for (let end = size; end > 0;) {
    // One byte tells in nearly every case.
    const length = Math.min(end, end === size ? 1 : STEP);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, end - length);
    const part = buffer.subarray(0, bytesRead);
    const at = part.lastIndexOf(0x0a);
    tail = Buffer.concat([part.subarray(at + 1), tail]);
    if (at !== -1) break;
    end -= length;
  }
  return tail;
}

/** A new file's name is on the disk only when its folder is. */
async function syncFolder(path: string): Promise<void> {
  // Windows has no such thing as opening a folder.
  if (process.platform === "win32") return;
  const folder = await open(path, "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
