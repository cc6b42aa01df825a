import type { SqliteHandle, TransactionHandle } from "../core/jobs/job.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { isAsyncFunction, isThenable } from "../core/text/text.ts";
import type { Enqueued as StoreEnqueued, NewJob, Store } from "../store/store.ts";

/** A handle with an open write transaction, as it is or as `db`. */
export type SqliteTx = { db: SqliteHandle } | SqliteHandle;

/** Anything that can run a query in an open transaction: pg, postgres, any ORM in one line. */
export type PostgresTx =
  | { query(text: string, values: unknown[]): Promise<{ rows: unknown[] }> }
  | { unsafe(text: string, values?: never[]): PromiseLike<unknown> };

/** Runs a user's callback as one transaction. What is asynchronous about it would happen after the commit. */
export async function transact<R>(store: Store, run: (tx: { db: TransactionHandle }) => R): Promise<R> {
  if (typeof run !== "function") {
    throw new HoldfastError(
      "OPTION_INVALID",
      "hf.transaction takes a function.",
      "Give it what is to be done, e.g. ({ db }) => {…}.",
    );
  }
  // Not even begun: what it does after its first await could not be undone any more.
  if (isAsyncFunction(run)) throw asynchronous();
  return store.transact((handle) => {
    const value = run({ db: handle as TransactionHandle });
    refuseLater(value);
    return value;
  });
}

/** Puts a checked job into the user's own transaction, at once. */
export function enqueueWithin(store: Store, tx: unknown, job: NewJob | Promise<NewJob>): StoreEnqueued | Promise<StoreEnqueued> {
  if (job instanceof Promise) {
    // Nobody will ask how it ends.
    job.catch(() => {});
    throw new HoldfastError(
      "SCHEMA_ASYNC",
      "The input's schema is asynchronous, and a transaction cannot wait for it.",
      "Check asynchronously before the transaction begins, and give the job a schema that is synchronous.",
    );
  }
  const answers = store.enqueueWithin(tx, [job]);
  return answers instanceof Promise ? answers.then(([one]) => one as StoreEnqueued) : (answers[0] as StoreEnqueued);
}

function refuseLater(value: unknown): void {
  if (!isThenable(value)) return;
  // Nobody will ask how it ends. Other thenables are left alone: an ORM's query runs when it is asked.
  if (value instanceof Promise) value.catch(() => {});
  throw asynchronous();
}

function asynchronous(): HoldfastError {
  return new HoldfastError(
    "TX_ASYNC",
    "The callback of hf.transaction is asynchronous or returns a promise, so nothing of it was committed.",
    "Do only what is synchronous in it, and end an ORM's queries with run(), get() or all(). " +
      "For an asynchronous transaction open a handle of your own, and give that as `tx`.",
  );
}
