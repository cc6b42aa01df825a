import { open } from "node:fs/promises";

/** A file that is not there yet, with these bytes, on the disk when it resolves; how many they were. Its folder is not synced. */
export async function writeNew(path: string, pieces: AsyncIterable<Buffer> | Iterable<Buffer>, mode = 0o666): Promise<number> {
  const handle = await open(path, "wx", mode);
  try {
    let size = 0;
    for await (const piece of pieces) {
      await handle.writeFile(piece);
      size += piece.length;
    }
    await handle.sync();
    return size;
  } finally {
    await handle.close();
  }
}
