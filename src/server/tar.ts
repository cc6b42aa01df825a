import { createReadStream } from "node:fs";
import { readdir, stat } from "node:fs/promises";
import { join, relative, sep } from "node:path";

const BLOCK = 512;
/** The longest path and largest size that fit a header. Others need an extended header before it. */
const MAX_PATH_BYTES = 100;
const MAX_SIZE = 0o77777777777;

export async function* tarOf(folder: string): AsyncGenerator<Uint8Array> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  for (const file of files.sort()) {
    const path = relative(folder, file).replaceAll(sep, "/");
    const { size } = await stat(file);
    if (!/^[ -~]*$/.test(path) || path.length > MAX_PATH_BYTES || size > MAX_SIZE) {
      const records = Buffer.from(record("path", path) + record("size", String(size)));
      yield header("extended", records.length, "x");
      yield* [records, padding(records.length)];
    }
    yield header(path, size, "0");
    yield* createReadStream(file) as AsyncIterable<Uint8Array>;
    yield padding(size);
  }
  yield Buffer.alloc(2 * BLOCK);
}

function header(path: string, size: number, type: "0" | "x"): Buffer {
  const block = Buffer.alloc(BLOCK);
  block.write(path, 0, MAX_PATH_BYTES);
  block.write(octal(0o644, 7) + octal(0, 7) + octal(0, 7) + octal(Math.min(size, MAX_SIZE), 11) + octal(0, 11), 100);
  // The checksum is calculated with spaces in its own place.
  block.write(`        ${type}`, 148);
  block.write("ustar\x0000", 257);
  const checksum = block.reduce((sum, byte) => sum + byte, 0);
  block.write(`${octal(checksum, 6)} `, 148);
  return block;
}

function octal(value: number, digits: number): string {
  return `${value.toString(8).padStart(digits, "0")}\0`;
}

/** Formats `LENGTH name=value`, where the length also counts its own digits. */
function record(name: string, value: string): string {
  const rest = ` ${name}=${value}\n`;
  const bytes = Buffer.byteLength(rest);
  let length = bytes + 1;
  while (length !== bytes + String(length).length) length++;
  return `${length}${rest}`;
}

function padding(size: number): Buffer {
  return Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK);
}
