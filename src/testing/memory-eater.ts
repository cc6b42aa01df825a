/** Message on which this module fills the heap until V8 aborts. The module is loaded before the program's own code. */
export const FILL_HEAP_MESSAGE = "holdfast.eat";

const BLOCK_LENGTH = 16_384;
const BLOCKS_PER_TURN = 32;

if (process.channel !== undefined && process.env["HOLDFAST_EATEN"] !== undefined) {
  process.on("message", (message) => {
    if (message === FILL_HEAP_MESSAGE) fillHeap([]);
  });
  // The channel must not keep the program alive.
  process.channel?.unref();
}

function fillHeap(eaten: number[][]): void {
  for (let block = 0; block < BLOCKS_PER_TURN; block++) eaten.push(Array.from({ length: BLOCK_LENGTH }, (_, i) => i + 0.5));
  setImmediate(fillHeap, eaten);
}
