import { isTransient } from "../core/text/errors.ts";
import type { Outcome } from "../core/jobs/retry.ts";
import { CommitRowsFailed } from "../store/jobs.ts";
import { type Attempt, outcomeOf, writableOutcome } from "./attempt.ts";
import type { Engine } from "./engine.ts";
import { DAMAGE_HINT, describeError } from "./log.ts";

/** Pause after a first failed write, such as on a full disk or to an unreachable server. It doubles with each failure. */
const FIRST_RETRY_MS = 250;
const MAX_RETRY_MS = 5_000;

export interface SettlerOptions {
  onSettled: (attempt: Attempt) => void;
  /** Called with attempts whose next stages were claimed with their ends, and with a time before that. */
  onContinued: (attempts: readonly Attempt[], before: number) => void;
  onIdle: () => void;
}

/** Writes outcomes, and repeats failed writes. The keeper renews the leases meanwhile; the store rejects lost ones. */
export class Settler {
  readonly #engine: Engine;
  readonly #options: SettlerOptions;
  #recorded: Attempt[] = [];
  #inFlight = 0;
  #unwritten: Attempt[] = [];
  #retries = 0;
  #retrying = false;

  constructor(engine: Engine, options: SettlerOptions) {
    this.#engine = engine;
    this.#options = options;
  }

  get hasRecorded(): boolean {
    return this.#recorded.length > 0;
  }

  /** Attempts that have ended, and whose outcomes are not on the disk yet. */
  get unsettled(): number {
    return this.#recorded.length + this.#inFlight + this.#unwritten.length;
  }

  recordedRuns(): { count: number; longestMs: number } {
    let longestMs = 0;
    for (const { runMs } of this.#recorded) longestMs = Math.max(longestMs, runMs);
    return { count: this.#recorded.length, longestMs };
  }

  record(attempt: Attempt, outcome: Outcome): void {
    attempt.outcome = outcome;
    if (outcome.kind !== "succeeded") attempt.followUps = attempt.commit = undefined;
    this.#recorded.push(attempt);
  }

  drop(attempt: Attempt): void {
    this.#recorded = this.#recorded.filter((one) => one !== attempt);
    this.#unwritten = this.#unwritten.filter((one) => one !== attempt);
  }

  write(): void {
    const batch = this.#recorded.splice(0);
    if (!batch.some(hasRows)) return this.#write(batch);
    const others = batch.filter((attempt) => !hasRows(attempt));
    if (others.length > 0) this.#write(others);
    // Write each attempt with rows in its own transaction: its callbacks must not roll back, or delay, the others.
    for (const attempt of batch.filter(hasRows)) this.#write([attempt]);
  }

  #write(batch: readonly Attempt[]): void {
    void this.#settle(batch).then((failed) => {
      if (failed !== null) this.#onWriteFailed(batch, failed.error);
      this.#options.onIdle();
    });
  }

  async #settle(batch: readonly Attempt[]): Promise<{ error: unknown } | null> {
    this.#inFlight += batch.length;
    const before = this.#engine.clock.monotonic();
    try {
      const states = await this.#engine.store.settle(batch);
      for (const [i, attempt] of batch.entries()) {
        if (attempt.lost !== null) continue;
        this.#options.onSettled(attempt);
        if (states[i] === "held") continue;
        const { id: job, name } = attempt.claimed;
        const hint =
          "It was cancelled, or is run again. Where this process stood still for so long, give the job a longer `lease`.";
        this.#engine.log.warn("a job's result was refused: its lease was gone", { job, name, hint });
      }
      const continued = batch.filter((attempt, i) => states[i] === "held" && attempt.continued !== undefined);
      if (continued.length > 0) this.#options.onContinued(continued, before);
      return null;
    } catch (error) {
      return { error };
    } finally {
      this.#inFlight -= batch.length;
    }
  }

  /** Keeps a batch to be written again. After a permanent error each attempt is written alone, so that only the cause fails. */
  #onWriteFailed(batch: readonly Attempt[], error: unknown): void {
    if (this.#engine.store.damage.damaged !== null) return this.#giveUp(batch);
    if (error instanceof CommitRowsFailed) return this.#fail(batch, error.cause);
    this.#logFailure(batch.length, error);
    const lasting = !isTransient(error);
    for (const attempt of batch) this.#keepUnwritten(attempt, lasting && batch.length === 1 ? error : null);
    if (lasting) void this.#retry();
    else this.#retryLater();
  }

  /** A `commit` callback threw: the attempt fails as if its handler had thrown. */
  #fail(batch: readonly Attempt[], thrown: unknown): void {
    for (const attempt of batch) {
      if (attempt.lost !== null) continue;
      dropSuccessParts(attempt);
      attempt.outcome = outcomeOf(thrown, this.#engine.clock);
      this.#recorded.push(attempt);
    }
    if (this.hasRecorded) this.write();
  }

  #keepUnwritten(attempt: Attempt, lasting: unknown): void {
    if (attempt.lost !== null) return;
    if (lasting !== null) {
      const { id: job, name } = attempt.claimed;
      this.#engine.log.error("the end of a job can never be written, so it has failed", { job, name, ...describeError(lasting) });
      attempt.outcome = writableOutcome(attempt.outcome, lasting);
      dropSuccessParts(attempt);
    }
    this.#unwritten.push(attempt);
  }

  #retryLater(): void {
    if (this.#retrying || this.#unwritten.length === 0) return;
    this.#retrying = true;
    this.#engine.clock.after(Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** this.#retries++), () => {
      this.#retrying = false;
      void this.#retry();
    });
  }

  /** Settles each attempt by its own call, all in one turn: the store commits those together that it can. */
  async #retry(): Promise<void> {
    const batch = this.#unwritten.splice(0);
    const failures = await Promise.all(batch.map((attempt) => this.#settle([attempt])));
    for (const [i, failure] of failures.entries())
      if (failure?.error instanceof CommitRowsFailed) {
        this.#fail([batch[i] as Attempt], failure.error.cause);
        failures[i] = null;
      }
    const failed = failures.filter((failure) => failure !== null);
    if (failed.length > 0 && this.#engine.store.damage.damaged !== null)
      return this.#giveUp(batch.filter((_, i) => failures[i] !== null));
    if (failed.length > 0) this.#logFailure(failed.length, failed[0]?.error);
    for (const [i, failure] of failures.entries())
      if (failure !== null) this.#keepUnwritten(batch[i] as Attempt, isTransient(failure.error) ? null : failure.error);
    if (this.#unwritten.length === 0) this.#retries = 0;
    this.#retryLater();
    this.#options.onIdle();
  }

  /** Drops the attempts, because a damaged database accepts no writes. After a restore the jobs run again. */
  #giveUp(batch: readonly Attempt[]): void {
    const jobs = batch.map(({ claimed }) => claimed.id);
    this.#engine.log.error("finished jobs cannot be recorded: the database is damaged", { jobs, hint: DAMAGE_HINT });
    for (const attempt of batch) if (attempt.lost === null) this.#options.onSettled(attempt);
    this.#options.onIdle();
  }

  #logFailure(jobs: number, error: unknown): void {
    this.#engine.log.error("finished jobs could not be recorded; it is tried again", { jobs, ...describeError(error) });
  }
}

function hasRows({ commit }: Attempt): boolean {
  return commit !== undefined;
}

function dropSuccessParts(attempt: Attempt): void {
  attempt.followUps = attempt.commit = undefined;
  if (attempt.work !== undefined) attempt.work = { ...attempt.work, result: null, target: null };
}
