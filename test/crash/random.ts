/** Of all dice of this file, and of what it samples. */
export const SEED = Number(process.env["HOLDFAST_SEED"] ?? Math.floor(Math.random() * 2 ** 31));

// A test file that fails says it; processes that it has started do not.
if (process.env["NODE_TEST_CONTEXT"] !== undefined) {
  process.once("exit", (code) => code !== 0 && console.error(`the seed was ${SEED}: HOLDFAST_SEED=${SEED} does the same again`));
}

/** One of them in an ordinary run: another one with each seed, and with each `turn`. */
export function sample<T>(all: readonly T[], turn = 0): readonly T[] {
  return process.env["HOLDFAST_LONG"] ? all : [all[(SEED + turn) % all.length] as T];
}

/** Whether an ordinary run takes the one with this `turn` of so `many`: others with each seed. */
export function isTaken(turn: number, many: number): boolean {
  return Boolean(process.env["HOLDFAST_LONG"]) || (turn + SEED) % many === 0;
}

/** Of a list an ordinary run takes one of so `many`: others with each seed. */
export function someOf<T>(all: readonly T[], many: number): readonly T[] {
  return all.filter((_, turn) => isTaken(turn, many));
}

/** For a test, in its options: an ordinary run takes one of so `many`, others with each seed. */
export function oneOf(many: number, turn: number): { skip?: string } {
  const skip = `one of ${many} is a sample: HOLDFAST_LONG=1 runs all, HOLDFAST_SEED=${SEED} these`;
  return isTaken(turn, many) ? {} : { skip };
}

/** Mulberry32: the same numbers for the same seed. */
export function randomFrom(seed: number): () => number {
  let state = Math.imul(seed, 0x9e3779b1) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let word = Math.imul(state ^ (state >>> 15), state | 1);
    word ^= word + Math.imul(word ^ (word >>> 7), word | 61);
    return ((word ^ (word >>> 14)) >>> 0) / 2 ** 32;
  };
}
