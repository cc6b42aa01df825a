import { type CommitRows, toJobError } from "../core/jobs/job.ts";
import { HoldfastError, idTaken, LeaseLostError } from "../core/text/errors.ts";
import { followUpId } from "../core/text/ids.ts";
import { fromJson, toJson } from "../core/text/json.ts";
import type { Next, Outcome } from "../core/jobs/retry.ts";
import type { EnqueueOptions, JobContext } from "./context.ts";
import { type Definition, definitionOf } from "./definition.ts";
import type { Engine, Owner } from "./engine.ts";
import type { LossReason } from "./leases.ts";
import { JobLog } from "./log.ts";
import { newJob } from "./new-job.ts";
import type { ProgressWriter } from "./executor.ts";
import type { ClaimSource, Claimed, NewJob, Settlement } from "../store/store.ts";
import type { WorkEnd } from "../store/work.ts";

export type AbortCode = "LEASE_LOST" | "CANCELLED" | "TIMEOUT" | "STOPPING";

/** A definition that a worker runs. */
export interface Runnable {
  readonly def: Definition;
  readonly source: ClaimSource;
  /** Claimed and not yet ended, for the definition's own concurrency. */
  held: number;
}

/** Thrown by what the engine itself performs: the attempt ends so. */
export class Ending extends Error {
  readonly outcome: Outcome;

  constructor(outcome: Outcome) {
    super(`the attempt ends: ${outcome.kind}`);
    this.outcome = outcome;
  }
}

/** One attempt at one job in this process: its lease, its signal, and in the end the settlement that the store gets. */
export class Attempt implements Owner, Settlement {
  readonly job: Claimed["job"];
  readonly fence: Claimed["fence"];
  readonly claimed: Claimed;
  readonly runnable: Runnable;
  outcome: Outcome = { kind: "released" };
  /** The handler has returned, or thrown. */
  over = false;
  slot = -1;
  /** Set when the lease is gone: whatever the handler does now is in vain. */
  lost: LossReason | null = null;
  /** What the handler enqueued; it goes with a success, or not at all. */
  followUps: NewJob[] | undefined;
  /** What the handler gave to `commit`; it runs in the transaction of a success, or not at all. */
  commit: CommitRows[] | undefined;
  /** Of a work item: what belongs to its end, however it ends. */
  work: WorkEnd | undefined;
  /** Set by the store when the attempt did not succeed. */
  decided: Next | undefined;
  readonly #onLoss: (attempt: Attempt) => void;
  readonly #controller = new AbortController();
  #aborted: AbortCode | null = null;

  constructor(claimed: Claimed, runnable: Runnable, onLoss: (attempt: Attempt) => void) {
    this.job = claimed.job;
    this.fence = claimed.fence;
    this.claimed = claimed;
    this.runnable = runnable;
    this.#onLoss = onLoss;
  }

  get lease(): Claimed {
    return this.claimed;
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  abort(code: AbortCode): void {
    this.#aborted = code;
    this.#controller.abort(abortReason(code, this.claimed.id));
  }

  /** The handler threw because its worker stops, and said so. */
  gaveUp(error: unknown): boolean {
    return this.#aborted === "STOPPING" && (error === this.signal.reason || isAbortError(error));
  }

  lose(reason: LossReason): void {
    this.lost = reason;
    if (reason !== "GIVEN_BACK") this.abort(reason);
    this.#onLoss(this);
  }
}

/** What the handler sees: plain properties, so that a handler may spread it. */
export function contextFor(engine: Engine, progress: ProgressWriter, attempt: Attempt, input: unknown): JobContext<unknown> {
  const { claimed } = attempt;
  return {
    input,
    id: claimed.id,
    attempt: claimed.attempt,
    scheduledFor: claimed.scheduledFor === null ? null : new Date(claimed.scheduledFor),
    idempotencyKey: `${engine.store.databaseId}:${claimed.id}`,
    log: new JobLog(engine.log, claimed),
    signal: attempt.signal,
    checkpoint: {
      load: async () => fromJson(await engine.store.loadCheckpoint(claimed.job)),
      save: (value) => saveCheckpoint(engine, attempt, value),
    },
    progress: (fraction, message) => progress.report(claimed, fraction, message),
    enqueue: (def, value, options) => followUp(engine, attempt, definitionOf(def), value, options),
    commit: (run) => addCommit(attempt, run),
  };
}

async function saveCheckpoint(engine: Engine, attempt: Attempt, value: unknown): Promise<void> {
  const text = toJson(value, "The checkpoint");
  if (attempt.lost === null && (await engine.store.saveCheckpoint(attempt.claimed, text)) === "held") return;
  throw new LeaseLostError(attempt.claimed.id, "checkpoint");
}

function followUp(engine: Engine, attempt: Attempt, def: Definition, input: unknown, options?: EnqueueOptions): { id: string } {
  if (attempt.over) {
    throw new HoldfastError(
      "TOO_LATE",
      `Job ${attempt.claimed.id} has ended, so nothing can be enqueued with it any more.`,
      "Await everything that enqueues before the handler returns, or use hf.enqueue.",
    );
  }
  const { claimed } = attempt;
  return addFollowUp((attempt.followUps ??= []), def, input, options, (index) =>
    followUpId(engine.clock.now(), claimed.job, claimed.fence, index),
  );
}

function addCommit(attempt: Attempt, run: CommitRows): void {
  if (attempt.over) {
    throw new HoldfastError(
      "TOO_LATE",
      `Job ${attempt.claimed.id} has ended, so no rows can be committed with it any more.`,
      "Call `commit` before the handler returns.",
    );
  }
  (attempt.commit ??= []).push(checkCommit(run));
}

export function checkCommit(run: unknown): CommitRows {
  if (typeof run === "function") return run as CommitRows;
  throw new HoldfastError(
    "OPTION_INVALID",
    `\`commit\` must be a function, got ${run === null ? "null" : typeof run}.`,
    "Give the function that writes your rows, e.g. commit(({ db }) => {…}).",
  );
}

/** Checks a job that follows an attempt, and puts it to the others. */
export function addFollowUp(
  followUps: NewJob[],
  def: Definition,
  input: unknown,
  options: EnqueueOptions | undefined,
  idOf: (index: number) => string,
): { id: string } {
  const job = newJob(def, input, options);
  if (job instanceof Promise) {
    job.catch(() => {});
    throw new HoldfastError(
      "SCHEMA_ASYNC",
      `The schema of job "${def.name}" validates asynchronously, and a handler's enqueue cannot wait.`,
      "Use a synchronous schema for it, or hf.enqueue, which commits at once.",
    );
  }
  const other = job.id === undefined ? undefined : followUps.find(({ id, name }) => id === job.id && name !== job.name);
  if (other !== undefined) throw idTaken(job.id as string, other.name, job.name);
  if (job.id === undefined) job.followUpId = idOf(followUps.length);
  followUps.push(job);
  return { id: (job.id ?? job.followUpId) as string };
}

export function abortReason(code: AbortCode, id: string): HoldfastError {
  switch (code) {
    case "LEASE_LOST":
      return new LeaseLostError(id);
    case "CANCELLED":
      return new HoldfastError("CANCELLED", `Job ${id} was cancelled.`, "Stop working on it; nothing more of it will be kept.");
    case "TIMEOUT":
      return new HoldfastError(
        "TIMEOUT",
        `Job ${id} ran past its timeout.`,
        "Stop working on it, or give the job a longer `timeout`.",
      );
    case "STOPPING":
      return new HoldfastError(
        "STOPPING",
        `The worker is stopping, and job ${id} goes back.`,
        "Stop working on it; it will be run again.",
      );
  }
}

/** What `fetch`, timers and streams throw when their signal aborts without passing the reason on. */
function isAbortError(error: unknown): boolean {
  return toJobError(error).name === "AbortError";
}
