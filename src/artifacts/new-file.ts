import { open } from "node:fs/promises";

/** A file that is not there yet, of this mode or as the umask says, with these bytes, on the disk when it resolves; how many they were. Its folder is not synced. */
export async function writeNew(path: string, pieces: AsyncIterable<Buffer> | Iterable<Buffer>, mode?: number): Promise<number> {
  const handle = await open(path, "wx", mode);
  try {
    if (mode !== undefined) await handle.chmod(mode);
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
