import type { AttemptSpan } from "./telemetry.ts";
import { RetryAfterError } from "../core/jobs/event.ts";
import { type CommitRows, toJobError } from "../core/jobs/job.ts";
import type { Next, Outcome } from "../core/jobs/retry.ts";
import { parse } from "../core/jobs/run-options.ts";
import type { Clock } from "../core/text/duration.ts";
import { HoldfastError, idTaken, LeaseLostError, NonRetryableError } from "../core/text/errors.ts";
import { invalidOption } from "../core/text/options.ts";
import { followUpId, type ProcessId } from "../core/text/ids.ts";
import { fromJson, toJson } from "../core/text/json.ts";
import { isThenable } from "../core/text/text.ts";
import type { ClaimSource, Claimed, Continued, NewJob, Settlement } from "../store/store.ts";
import type { WorkEnd } from "../store/work.ts";
import type { EnqueueOptions, JobContext } from "../core/pipelines/stage.ts";
import { type Definition, definitionOf, newJob } from "./definition.ts";
import type { Engine, LeaseOwner } from "./engine.ts";
import { jobLog } from "./log.ts";
import type { ProgressWriter } from "./progress.ts";
import type { LossReason } from "./leases.ts";

type AbortCode = "LEASE_LOST" | "CANCELLED" | "TIMEOUT" | "STOPPING";

interface Runnable {
  readonly def: Definition;
  readonly source: ClaimSource;
  held: number;
}

export class SettleAs extends Error {
  readonly outcome: Outcome;

  constructor(outcome: Outcome) {
    super(`the attempt ends: ${outcome.kind}`);
    this.outcome = outcome;
  }
}

export class Attempt implements LeaseOwner, Settlement {
  readonly job: Claimed["job"];
  readonly fence: Claimed["fence"];
  readonly claimed: Claimed;
  readonly runnable: Runnable;
  outcome: Outcome = { kind: "released" };
  isOver = false;
  slot = -1;
  /** Set when the lease is gone: the store rejects every later write of the handler. */
  lost: LossReason | null = null;
  /** Jobs that the handler enqueued. Like the callbacks in `commit`, they take effect only in the transaction of a success. */
  followUps: NewJob[] | undefined;
  commit: CommitRows[] | undefined;
  work: WorkEnd | undefined;
  continued: Continued | undefined;
  /** Called when the job of the target's next stage was claimed with the end of this attempt. */
  onContinued: ((continued: Continued) => void) | undefined;
  decided: Next | undefined;
  /** In milliseconds of the monotonic clock. */
  startedAt = 0;
  runMs = 0;
  span: AttemptSpan | null = null;
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

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  abort(code: AbortCode): void {
    this.#aborted = code;
    this.#controller.abort(abortReason(code, this.claimed.id));
  }

  /** Whether stopping caused the error. `fetch`, timers and streams throw an AbortError instead of the signal's reason. */
  isInterruption(error: unknown): boolean {
    return this.#aborted === "STOPPING" && (error === this.signal.reason || toJobError(error).name === "AbortError");
  }

  lose(reason: LossReason): void {
    this.lost = reason;
    if (reason !== "GIVEN_BACK") this.abort(reason);
    this.#onLoss(this);
  }
}

/** Builds the context from plain properties, so that a handler may spread it. */
function contextFor(engine: Engine, progress: ProgressWriter, attempt: Attempt, input: unknown): JobContext<unknown> {
  const { claimed, runnable } = attempt;
  return {
    input,
    id: claimed.id,
    attempt: claimed.attempt,
    scheduledFor: claimed.scheduledFor === null ? null : new Date(claimed.scheduledFor),
    idempotencyKey: `${engine.store.databaseId}:${claimed.id}`,
    log: progress.keepLog(claimed, runnable.def.declared.logs ?? 0, jobLog(engine.log, claimed)),
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
  const checkpoint = toJson(value, "The checkpoint");
  const { id, job, fence } = attempt.claimed;
  if (attempt.lost === null && (await engine.store.saveProgress([{ job, fence, checkpoint }]))[0] === "held") return;
  throw new LeaseLostError(id, "checkpoint");
}

function followUp(engine: Engine, attempt: Attempt, def: Definition, input: unknown, options?: EnqueueOptions): { id: string } {
  if (attempt.isOver) {
    throw new HoldfastError(
      "TOO_LATE",
      `Job ${attempt.claimed.id} has ended, so no job can be enqueued with it.`,
      "Await every call of `enqueue` before the handler returns, or call hf.enqueue.",
    );
  }
  const { claimed } = attempt;
  const enqueued = addFollowUp((attempt.followUps ??= []), def, input, options, (index) =>
    followUpId(engine.clock.now(), claimed.job, claimed.fence, index),
  );
  if (engine.telemetry !== null) (attempt.followUps.at(-1) as NewJob).trace = engine.telemetry.current();
  return enqueued;
}

function addCommit(attempt: Attempt, run: CommitRows): void {
  if (attempt.isOver) {
    throw new HoldfastError(
      "TOO_LATE",
      `Job ${attempt.claimed.id} has ended, so no rows can be committed with it.`,
      "Call `commit` before the handler returns.",
    );
  }
  (attempt.commit ??= []).push(checkCommit(run));
}

export function checkCommit(run: unknown): CommitRows {
  if (typeof run === "function") return run as CommitRows;
  throw invalidOption(
    `\`commit\` must be a function, got ${run === null ? "null" : typeof run}.`,
    "Give the function that writes your rows, e.g. commit(({ db }) => {…}).",
  );
}

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
      `The schema of job "${def.name}" is asynchronous, but \`enqueue\` of a handler is synchronous.`,
      "Use a synchronous schema, or call hf.enqueue, which commits at once.",
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
      return new HoldfastError("CANCELLED", `Job ${id} was cancelled.`, "Stop the handler: its result is discarded.");
    case "TIMEOUT":
      return new HoldfastError(
        "TIMEOUT",
        `Job ${id} exceeded its timeout.`,
        "Stop the handler, or give the job a longer `timeout`.",
      );
    case "STOPPING":
      return new HoldfastError(
        "STOPPING",
        `The worker is stopping, and job ${id} is released.`,
        "Stop the handler; the job runs again.",
      );
  }
}

/** Turns a thrown value into an outcome. It compares names too, because an app may load two copies of this package. */
export function outcomeOf(thrown: unknown, clock: Clock): Outcome {
  const error = toJobError(thrown);
  if (error.name === "NonRetryableError" || thrown instanceof NonRetryableError) return { kind: "error", error, retry: false };
  if (error.name === "RetryAfterError" || thrown instanceof RetryAfterError) {
    const { after } = thrown as RetryAfterError;
    const delay = Math.max(0, after instanceof Date ? after.getTime() - clock.now() : Number(after));
    if (Number.isFinite(delay)) return { kind: "later", delay, error };
  }
  return { kind: "error", error };
}

export function unreadableOutcome(thrown: unknown): Outcome {
  return { kind: "unreadable", error: toJobError(thrown) };
}

export function permanentFailure(thrown: unknown): Outcome {
  return { kind: "error", error: toJobError(thrown), retry: false };
}

export function writableOutcome(outcome: Outcome, thrown: unknown): Outcome {
  if (outcome.kind === "succeeded") return permanentFailure(thrown);
  return "error" in outcome ? { ...outcome, error: toJobError(thrown) } : outcome;
}

/** Runs handlers and turns every error into an outcome. Synchronous handlers finish without a promise, which is expensive. */
export class Executor {
  readonly #engine: Engine;
  readonly #progress: ProgressWriter;
  readonly #finish: (attempt: Attempt, outcome: Outcome) => void;

  constructor(engine: Engine, progress: ProgressWriter, finish: (attempt: Attempt, outcome: Outcome) => void) {
    this.#engine = engine;
    this.#progress = progress;
    this.#finish = finish;
  }

  run(attempt: Attempt): void {
    let input: unknown;
    try {
      const { claimed, runnable } = attempt;
      const schema = runnable.def.input;
      input = fromJson(claimed.input);
      if (schema !== undefined) input = parse(schema, input, `The stored input of job ${claimed.id}`);
    } catch (error) {
      return this.#finish(attempt, unreadableOutcome(error));
    }
    if (input instanceof Promise) {
      input.then(
        (parsed) => this.#call(attempt, parsed),
        (error: unknown) => this.#finish(attempt, unreadableOutcome(error)),
      );
    } else this.#call(attempt, input);
  }

  #call(attempt: Attempt, input: unknown): void {
    const { telemetry } = this.#engine;
    if (telemetry !== null) attempt.span = telemetry.process(attempt.claimed);
    let result: unknown;
    let later: boolean;
    try {
      const context = contextFor(this.#engine, this.#progress, attempt, input);
      const { run, perform } = attempt.runnable.def;
      const handle = () => (perform === undefined ? (run as NonNullable<Definition["run"]>)(context) : perform(attempt, context));
      result = attempt.span === null ? handle() : attempt.span.run(handle);
      later = isThenable(result);
    } catch (error) {
      return this.#onThrown(attempt, error);
    }
    if (!later) return this.#onReturned(attempt, result);
    // A foreign thenable may throw, or call back twice; a promise around it does not.
    const promise = result instanceof Promise ? result : Promise.resolve(result);
    promise.then(
      (output) => this.#onReturned(attempt, output),
      (error: unknown) => this.#onThrown(attempt, error),
    );
  }

  #onReturned(attempt: Attempt, output: unknown): void {
    try {
      const { def } = attempt.runnable;
      const checked = def.output === undefined ? output : parse(def.output, output, `The output of job "${def.name}"`);
      if (checked instanceof Promise) {
        checked
          .then((late) => this.#succeed(attempt, late))
          .catch((error: unknown) => this.#finish(attempt, permanentFailure(error)));
      } else this.#succeed(attempt, checked);
    } catch (error) {
      // Fail without a retry, because another attempt would return the same value.
      this.#finish(attempt, permanentFailure(error));
    }
  }

  #succeed(attempt: Attempt, output: unknown): void {
    this.#finish(attempt, { kind: "succeeded", output: toJson(output, "The output") });
  }

  #onThrown(attempt: Attempt, error: unknown): void {
    if (error instanceof SettleAs) this.#finish(attempt, error.outcome);
    else if (attempt.isInterruption(error)) this.#finish(attempt, { kind: "interrupted" });
    else this.#finish(attempt, outcomeOf(error, this.#engine.clock));
  }
}

export class Runnables {
  readonly #runnables = new Map<string, Runnable>();
  /** Every claim gets the same list, so that the store can cache what it matches. */
  readonly #sources: ClaimSource[] = [];
  readonly #queues = new Set<string | null>();
  readonly #bounded: Runnable[] = [];

  constructor(defs: readonly Definition[]) {
    for (const def of defs) this.#add(def);
  }

  of(job: { name: string; version: number }): Runnable {
    return this.#runnables.get(idOf(job)) as Runnable;
  }

  /**
   * Asks for the job of the target's next stage with the end of this attempt: it needs no claim, and nothing is read again.
   * False: a claim has to share the worker between queues, or to count the stage's concurrency.
   */
  askToContinue({ work, onContinued }: Attempt, holder: ProcessId): boolean {
    const flow = work?.target?.flow;
    if (flow?.to !== "work" || onContinued === undefined || this.#queues.size > 1) return false;
    const { job } = flow;
    const def = this.#runnables.get(idOf(job))?.def;
    if (def === undefined || def.concurrency !== undefined || def.isResting?.() === true) return false;
    if (job.declares !== undefined || job.delay > 0) return false;
    job.claim = { holder, lease: def.lease };
    return true;
  }

  sources(): ClaimSource[] {
    for (const { def, source, held } of this.#bounded) {
      if (def.isResting?.() === true) source.max = 0;
      else if (def.concurrency !== undefined) source.max = Math.max(0, def.concurrency - held);
      else delete source.max;
    }
    return this.#sources;
  }

  #add(def: Definition): void {
    if (def.run === undefined && def.perform === undefined) {
      throw new HoldfastError("NO_HANDLER", `Job "${def.name}" has no handler.`, "Give `run` in job({ … }), or def.handle(run).");
    }
    const id = idOf(def);
    if (this.#runnables.has(id)) {
      throw new HoldfastError(
        "JOB_TWICE",
        `Job "${def.name}", version ${def.version}, was given twice.`,
        "Give each definition once, or change its name or version.",
      );
    }
    const { name, version, lease, queue } = def;
    const runnable: Runnable = { def, source: { name, version, lease, ...(def.isBoundToQueue ? { queue } : {}) }, held: 0 };
    this.#runnables.set(id, runnable);
    this.#sources.push(runnable.source);
    this.#queues.add(def.isBoundToQueue ? queue : null);
    if (def.isResting !== undefined || def.concurrency !== undefined) this.#bounded.push(runnable);
  }
}

function idOf(job: { name: string; version: number }): string {
  return `${job.name}\n${job.version}`;
}
