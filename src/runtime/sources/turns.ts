import { setImmediate } from "node:timers/promises";

/** So long, in milliseconds, others wait at most. */
const LENGTH = 10;

let begun = 0;
let next: Promise<void> | null = null;

/**
 * Small files are looked at and read without waiting, since handing each to another thread takes five times as long as
 * reading it. So that a hundred thousand of them do not hold up everything else, whoever does that asks here before each one.
 */
export async function turn(): Promise<void> {
  while (isOver()) await (next ??= giveOthers());
}

/** Whether it is time to ask: a call that saves a promise. */
export function isOver(): boolean {
  return performance.now() - begun > LENGTH;
}

async function giveOthers(): Promise<void> {
  await setImmediate();
  begun = performance.now();
  next = null;
}
