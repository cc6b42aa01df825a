import type { Settlement } from "./store.ts";

/** How long the `commit` callbacks of one attempt may take on PostgreSQL before their transaction is rolled back. */
export const COMMIT_LIMIT_MS = 30_000;

/** Thrown by `Store.settle`: a `commit` callback threw. Nothing is committed, and the attempt still holds its lease. */
export class CommitRowsFailed extends Error {
  constructor(cause: unknown) {
    super("A `commit` callback threw, so neither its rows nor the success were committed.", { cause });
    this.name = new.target.name;
  }
}

/** A settlement with `commit` has its own transaction: a callback's error would roll back others. */
export function onlyOne(settlements: readonly Settlement[]): Settlement {
  const [settlement] = settlements;
  if (settlements.length === 1 && settlement !== undefined) return settlement;
  throw new Error("A settlement with `commit` must be the only one of its call.");
}
