/**
 * Loaded into a program before its own code. At its parent's word the heap is filled, between what the program does, until
 * V8 gives up: so the end comes wherever the program happens to be.
 */
export const EAT = "holdfast.eat";

const BLOCK = 16_384;
const BLOCKS = 32;

if (process.channel !== undefined && process.env["HOLDFAST_EATEN"] !== undefined) {
  process.on("message", (message) => {
    if (message === EAT) eat([]);
  });
  // A program that has nothing more to do ends all the same.
  process.channel?.unref();
}

function eat(eaten: number[][]): void {
  for (let block = 0; block < BLOCKS; block++) eaten.push(Array.from({ length: BLOCK }, (_, i) => i + 0.5));
  setImmediate(eat, eaten);
}
