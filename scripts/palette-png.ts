import { crc32, deflateSync, inflateSync } from "node:zlib";

const SIGNATURE = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);
const COLOURS = 256;

/** The same picture with at most 256 colours, a third of the size: the most frequent ones, and the nearest of them for others. */
export function toPalettePng(png: Buffer): Buffer {
  const { width, height, pixels } = decode(png);
  const counts = new Map<number, number>();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const palette = pickColours([...counts].sort((a, b) => b[1] - a[1]).map(([colour]) => colour));
  const nearest = new Map<number, number>();
  const rows = Buffer.alloc((width + 1) * height);
  for (const [i, pixel] of pixels.entries()) {
    let index = nearest.get(pixel);
    if (index === undefined) nearest.set(pixel, (index = nearestOf(palette, pixel)));
    rows[Math.floor(i / width) * (width + 1) + 1 + (i % width)] = index;
  }
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 3, 0, 0, 0], 8);
  const colours = Buffer.from(palette.flatMap((colour) => [colour >> 16, (colour >> 8) & 255, colour & 255]));
  return Buffer.concat([
    SIGNATURE,
    chunk("IHDR", header),
    chunk("PLTE", colours),
    chunk("IDAT", deflateSync(rows, { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

/** Frequent colours, none of them close to one that was picked, so that rare bright ones find a place. */
function pickColours(byCount: number[]): number[] {
  for (let apart = 6; ; apart += 6) {
    const picked: number[] = [];
    for (const colour of byCount) {
      if (picked.every((one) => distance(one, colour) >= apart * apart)) picked.push(colour);
      if (picked.length > COLOURS) break;
    }
    if (picked.length <= COLOURS) return picked;
  }
}

function nearestOf(palette: number[], colour: number): number {
  let best = 0;
  for (const i of palette.keys()) {
    if (distance(palette[i] as number, colour) < distance(palette[best] as number, colour)) best = i;
  }
  return best;
}

function distance(a: number, b: number): number {
  const [red, green, blue] = [16, 8, 0].map((shift) => ((a >> shift) & 255) - ((b >> shift) & 255)) as [number, number, number];
  return red * red + green * green + blue * blue;
}

function chunk(type: string, data: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(type), data]);
  const [length, check] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  check.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, check]);
}

/** Eight bits a channel, not interlaced: what a browser's screenshot is. */
function decode(png: Buffer): { width: number; height: number; pixels: Uint32Array } {
  const [width, height, channels] = [png.readUInt32BE(16), png.readUInt32BE(20), png[25] === 6 ? 4 : 3];
  const parts: Buffer[] = [];
  for (let at = SIGNATURE.length; at < png.length;) {
    const length = png.readUInt32BE(at);
    if (png.toString("latin1", at + 4, at + 8) === "IDAT") parts.push(png.subarray(at + 8, at + 8 + length));
    at += length + 12;
  }
  const data = inflateSync(Buffer.concat(parts));
  const stride = width * channels;
  const pixels = new Uint32Array(width * height);
  let above: Uint8Array = new Uint8Array(stride);
  for (let y = 0; y < height; y++) {
    const start = y * (stride + 1);
    const row = data.subarray(start + 1, start + 1 + stride);
    unfilter(data[start] as number, row, above, channels);
    for (let x = 0; x < width; x++) {
      const [red, green, blue] = row.subarray(x * channels) as unknown as [number, number, number];
      pixels[y * width + x] = (red << 16) | (green << 8) | blue;
    }
    above = row;
  }
  return { width, height, pixels };
}

function unfilter(filter: number, row: Uint8Array, above: Uint8Array, channels: number): void {
  for (let i = 0; i < row.length; i++) {
    const left = row[i - channels] ?? 0;
    const up = above[i] as number;
    const corner = i < channels ? 0 : (above[i - channels] as number);
    const guesses = [0, left, up, (left + up) >> 1, paeth(left, up, corner)];
    row[i] = (row[i] as number) + (guesses[filter] as number);
  }
}

function paeth(left: number, up: number, corner: number): number {
  const guess = left + up - corner;
  const [a, b, c] = [Math.abs(guess - left), Math.abs(guess - up), Math.abs(guess - corner)];
  return a <= b && a <= c ? left : b <= c ? up : corner;
}
