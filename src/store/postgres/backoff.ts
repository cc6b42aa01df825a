/** In milliseconds. */
const SHORTEST = 50;
const LONGEST = 1_000;

/**
 * How long to wait before a server that was lost so many times is tried again: not at all at first, since often the
 * connection alone is gone; then longer and longer, and never quite as long as the others, who all come back at once.
 */
export function backoff(losses: number, random: () => number): number {
  if (losses === 0) return 0;
  return Math.min(LONGEST, SHORTEST * 2 ** (losses - 1)) * (0.5 + random() / 2);
}
