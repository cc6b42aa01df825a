/**
 * Loaded into a program before its own code. On its parent's message it fills the heap between what the program does, until
 * V8 aborts: so the crash comes wherever the program happens to be.
 */
export const EAT = "holdfast.eat";

const BLOCK = 16_384;
const BLOCKS = 32;

if (process.channel !== undefined && process.env["HOLDFAST_EATEN"] !== undefined) {
  process.on("message", (message) => {
    if (message === EAT) eat([]);
  });
  // The channel must not keep the program alive.
  process.channel?.unref();
}

function eat(eaten: number[][]): void {
  for (let block = 0; block < BLOCKS; block++) eaten.push(Array.from({ length: BLOCK }, (_, i) => i + 0.5));
  setImmediate(eat, eaten);
}
