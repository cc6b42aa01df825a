import type { Fence, JobKey } from "../../core/ids.ts";
import { codeOf } from "./faults.ts";

/** What others are told of a commit: a hint, which may be lost, and which nobody relies on. */
export interface Notice {
  /** The handle that tells: it knows already. */
  from: string;
  /** Queues that have something; null: too many to name them. */
  ready: readonly string[] | null;
  ended: readonly (readonly [job: JobKey, fence: Fence])[];
}

/** PostgreSQL refuses 8,000 bytes and more. */
const MOST = 7_900;

/**
 * Whoever tells something waits, at his commit, for everybody on the server who does, in whatever database, and he may wait
 * for a replica that is gone. A hint is not worth that: what is called after `pg_notify` bounds it. Never null.
 */
export const WAIT_FOR_TELLERS = waitForTellers("1s");

export function waitForTellers(most: string): string {
  return `set_config('lock_timeout', '${most}', true)`;
}

/**
 * Somebody who listens has not read for so long that the server keeps no more notices; or somebody else who tells something
 * has been at his commit for too long.
 */
export function isUntold(error: unknown): boolean {
  const code = codeOf(error);
  return code === "54000" || code === "55P03";
}

/** Everybody who has the schema open listens here. */
export function channelOf(schema: string): string {
  return `holdfast:${schema}`;
}

/** What is too long to be said is left for others to find out. */
export function noticeText(notice: Notice): string {
  const { from, ready, ended } = notice;
  const text = JSON.stringify([from, ready, ended]);
  if (Buffer.byteLength(text) <= MOST) return text;
  // Ended leases are found by their holders before long; what was made ready would wait.
  if (ended.length > 0) return noticeText({ from, ready, ended: [] });
  return JSON.stringify([from, null, []]);
}

/** Null when it is nothing that this version of Holdfast says. */
export function parseNotice(text: string): Notice | null {
  try {
    const [from, ready, ended] = JSON.parse(text) as [unknown, unknown, unknown];
    if (typeof from !== "string" || !(ready === null || Array.isArray(ready)) || !Array.isArray(ended)) return null;
    return { from, ready: ready as string[] | null, ended: ended as Notice["ended"] };
  } catch {
    return null;
  }
}
