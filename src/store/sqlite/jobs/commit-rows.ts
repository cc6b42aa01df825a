import type { CommitRows, CommitTx, TransactionHandle } from "../../../core/jobs/job.ts";
import { HoldfastError } from "../../../core/text/errors.ts";
import type { Fate } from "../../../core/jobs/lease.ts";
import { isAsyncFunction, isThenable } from "../../../core/text/text.ts";
import { CommitRowsFailed } from "../../commit-rows.ts";
import type { Settlement } from "../../store.ts";
import { explain } from "../faults.ts";
import type { GroupCommit, Tx } from "../group-commit.ts";
import type { OwnTransaction } from "../guest.ts";
import type { Settle } from "./settle.ts";

interface Parts {
  group: GroupCommit;
  settle: Settle;
  own: OwnTransaction;
  path: string;
  /** A statement of Holdfast's own threw; not called for what the callbacks meet. */
  onFault: (error: unknown) => void;
}

/**
 * Settles one attempt and runs its `commit` callbacks in the same transaction, which contains nothing else: the callbacks
 * run once, after the fence was checked, and an error of theirs rolls back only this attempt.
 */
export function settleWithRows(settlement: Settlement, { group, settle, own, path, onFault }: Parts): Promise<Fate[]> {
  const settled = (tx: Tx): Fate[] => {
    try {
      return settle.run(tx, [settlement]);
    } catch (error) {
      onFault(error);
      throw explain(error, path);
    }
  };
  const run = (tx: Tx): Fate[] => {
    const fates = settled(tx);
    // A success whose follow-up jobs are rejected is recorded as a failure, and a failure commits no rows.
    if (fates[0] !== "held" || !settle.hasSucceeded(settlement.job)) return fates;
    try {
      own.run(tx, (handle) => callAll(settlement.commit ?? [], handle as TransactionHandle));
    } catch (error) {
      throw new CommitRowsFailed(error);
    }
    return fates;
  };
  // A deferred constraint of the user's own tables is checked by the COMMIT itself.
  return group.submitAlone("settle", run, (error) => new CommitRowsFailed(error));
}

function callAll(callbacks: readonly CommitRows[], db: TransactionHandle): void {
  const tx: CommitTx = {
    db,
    query: () => {
      throw new HoldfastError(
        "TX_INVALID",
        "`tx.query` exists on PostgreSQL only, and this database is SQLite.",
        "Use `tx.db`, e.g. tx.db.prepare(sql).run(…).",
      );
    },
  };
  for (const run of callbacks) {
    // An async function is not called at all: what it does after its first await would run outside the transaction.
    if (isAsyncFunction(run)) throw asynchronous();
    const returned: unknown = run(tx);
    if (!isThenable(returned)) continue;
    if (returned instanceof Promise) returned.catch(() => {});
    throw asynchronous();
  }
}

function asynchronous(): HoldfastError {
  return new HoldfastError(
    "TX_ASYNC",
    "The callback of `commit` is asynchronous or returns a promise, so nothing of it was committed.",
    "On SQLite do only what is synchronous in it, with `tx.db`; await everything else in the handler, before `commit`.",
  );
}
