/**
 * How a target's bytes have changed under its work, in one build. Each time the new bytes get work of their own, later than
 * the time before; what never holds still is given up, since each time may have been paid for.
 */
export interface Unrest {
  /** How often. */
  times: number;
  /** Its work has waited since, and goes on with the bytes that it has by then. */
  waited: boolean;
}

/** The last of so many changes is one too many. */
const MOST_CHANGES = 5;

/** After the first change; after each further one four times as long: 250 ms, 1 s, 4 s, 16 s. */
const FIRST_WAIT = 250;

export const CALM: Unrest = { times: 0, waited: false };

/** How long the new bytes are left alone; null: it is given up. */
export function waitAfter(times: number): number | null {
  return times >= MOST_CHANGES ? null : FIRST_WAIT * 4 ** (times - 1);
}
