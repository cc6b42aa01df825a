import type { Fence, JobKey, ProcessId } from "../../src/core/text/ids.ts";
import { JOB_MOVES, type Job, type JobError, type JobMove, type JobState } from "../../src/core/jobs/job.ts";
import type { Outcome, Policy } from "../../src/core/jobs/retry.ts";
import type { NewJob } from "../../src/store/store.ts";
import { must } from "./violation.ts";

export interface ModelLease {
  fence: Fence;
  /** null: claimed by hand. */
  holder: ProcessId | null;
  /** The name of the worker that claimed it. */
  worker: string;
  lease: number;
  expiresAt: number;
  /** True time, which no clock of the simulation shows. */
  renewedAt: number;
}

/** A job as the promises describe it. What becomes of an attempt is said here in other words than in core/, on purpose. */
export class ModelJob {
  /** The place in the order of acceptance. */
  readonly seq: number;
  readonly id: string;
  readonly name: string;
  readonly queue: string;
  readonly version: number;
  readonly key: string | undefined;
  readonly policy: Policy;
  readonly priority: number;
  readonly input: string | null;
  readonly createdAt: number;
  /** The tick of the schedule that made it. */
  readonly scheduledFor: number | null;
  /** Its id was the caller's choice, and is remembered for ever. */
  readonly isChosen: boolean;
  /** What limits it, and under which key each. */
  readonly counters: readonly string[];

  state: JobState = "pending";
  /** "maybe": it was due when a worker claimed, and then the clock was set back. */
  gate: "open" | "maybe" | "time";
  /** Jitter is the store's to choose within these. */
  runAt: { from: number; to: number };
  /** A claim has found that its limits do not let it start. */
  isParked = false;
  attempt = 0;
  errors = 0;
  crashes = 0;
  /** How often it was committed as succeeded. */
  successes = 0;
  lease: ModelLease | null = null;
  /** Known from its first claim on. */
  jobKey: JobKey | null = null;
  lastFence = 0;
  startedAt: number | undefined;
  finishedAt: number | undefined;
  output: string | null = null;
  error: JobError | undefined;
  checkpoint: string | null = null;
  progress: { fraction: number; message?: string } | undefined;
  /** Whom it waits for. */
  readonly upstreams = new Set<string>();

  constructor(seq: number, id: string, job: NewJob, { at, counters }: { at: number; counters: readonly string[] }) {
    this.counters = counters;
    this.seq = seq;
    this.id = id;
    this.name = job.name;
    this.queue = job.queue;
    this.version = job.version;
    this.key = job.key;
    this.policy = job.policy;
    this.priority = job.priority;
    this.input = job.input;
    this.createdAt = at;
    this.scheduledFor = job.scheduledFor ?? null;
    this.isChosen = job.id !== undefined;
    const runAt = job.runAt ?? at + job.delay;
    this.runAt = { from: runAt, to: runAt };
    this.gate = runAt > at ? "time" : "open";
  }

  get unfinished(): boolean {
    return this.state === "waiting" || this.state === "pending" || this.state === "running";
  }

  waitFor(upstreams: readonly string[]): void {
    this.state = "waiting";
    for (const id of upstreams) this.upstreams.add(id);
  }

  /** One of those it waits for has succeeded; true when that was the last. */
  passUpstream(at: number, id: string): boolean {
    this.upstreams.delete(id);
    if (this.upstreams.size > 0) return false;
    this.move("unblock");
    // One without a delay has none after the clock was set back, either.
    this.gate = this.runAt.to > at && this.runAt.to > this.createdAt ? "time" : "open";
    this.runAt = { from: Math.max(at, this.runAt.from), to: Math.max(at, this.runAt.to) };
    return true;
  }

  /** What it was to come after did not succeed. */
  loseUpstream(at: number): void {
    this.cancel(at);
    this.error = { name: "UpstreamError", message: "", code: "UPSTREAM_ENDED" };
  }

  move(move: JobMove): void {
    must(JOB_MOVES[move].from.includes(this.state), () => `job ${this.id} is ${this.state} and may not ${move}`);
    this.state = JOB_MOVES[move].to;
  }

  start(at: number, lease: ModelLease): void {
    this.move("claim");
    this.lease = lease;
    this.isParked = false;
    this.lastFence = lease.fence;
    this.attempt += 1;
    this.startedAt = at;
  }

  /** An attempt is over. */
  end(at: number, outcome: Outcome): void {
    this.lease = null;
    switch (outcome.kind) {
      case "succeeded":
        this.move("succeed");
        this.successes += 1;
        this.output = outcome.output;
        this.error = undefined;
        this.checkpoint = null;
        this.finishedAt = at;
        return;
      case "error":
        this.errors += 1;
        this.error = outcome.error;
        if (outcome.retry === false || this.errors >= this.policy.attempts) return this.#finish(at, "fail");
        return this.#comeBack(at, outcome.delay === undefined ? this.#backoff(this.errors) : exactly(outcome.delay));
      case "unreadable":
        this.error = outcome.error;
        return this.#finish(at, "quarantine");
      case "later":
        this.attempt -= 1;
        this.error = outcome.error;
        return this.#comeBack(at, exactly(outcome.delay));
      case "released":
        this.attempt -= 1;
        return this.#comeBack(at, exactly(0));
      case "interrupted":
        this.attempt -= 1;
        return this.#interrupt(at, exactly(0));
      case "stalled":
      case "crashed": {
        this.crashes += 1;
        const isStall = outcome.kind === "stalled";
        if (isStall ? this.crashes <= this.policy.crashes : this.crashes < this.policy.crashes) {
          return this.#interrupt(at, this.crashes === 1 ? exactly(0) : this.#backoff(this.crashes - 1));
        }
        this.error = { name: "", message: "", code: isStall ? "STALLED" : "CRASHED" };
        return this.#finish(at, "quarantine");
      }
    }
  }

  cancel(at: number): void {
    this.move("cancel");
    this.upstreams.clear();
    this.lease = null;
    this.finishedAt = at;
  }

  retry(at: number): void {
    this.move("retry");
    this.errors = 0;
    this.crashes = 0;
    this.gate = "open";
    this.runAt = { from: at, to: at };
    this.finishedAt = undefined;
  }

  /** Whether it must be claimable at this instant, may be, or must not. */
  readyAt(at: number): "yes" | "maybe" | "no" {
    if (this.state !== "pending") return "no";
    if (this.gate === "open" || this.runAt.to <= at) return "yes";
    return this.gate === "maybe" || this.runAt.from <= at ? "maybe" : "no";
  }

  /** What a reader should see, apart from `runAt` and the words of the engine's own errors. */
  view(): Omit<Job, "runAt" | "error" | "host" | "pid"> {
    return {
      id: this.id,
      name: this.name,
      queue: this.queue,
      state: this.state,
      input: this.input === null ? undefined : JSON.parse(this.input),
      attempt: this.attempt,
      crashes: this.crashes,
      priority: this.priority,
      createdAt: this.createdAt,
      ...(this.key !== undefined && { key: this.key }),
      ...(this.output !== null && { output: JSON.parse(this.output) }),
      ...(this.startedAt !== undefined && { startedAt: this.startedAt }),
      ...(this.finishedAt !== undefined && { finishedAt: this.finishedAt }),
      ...(this.progress !== undefined && { progress: this.progress }),
      ...(this.lease !== null && { worker: this.lease.worker, leaseExpiresAt: this.lease.expiresAt }),
    };
  }

  #interrupt(at: number, delay: { from: number; to: number }): void {
    if (this.policy.onInterrupt === "fail") {
      this.error = { name: "InterruptedError", message: "", code: "INTERRUPTED" };
      return this.#finish(at, "fail");
    }
    if (this.policy.onInterrupt === "retry") this.checkpoint = null;
    this.#comeBack(at, delay);
  }

  #comeBack(at: number, delay: { from: number; to: number }): void {
    this.move("give-back");
    if (delay.to === 0) this.gate = "open";
    else {
      this.gate = "time";
      this.runAt = { from: at + delay.from, to: at + delay.to };
    }
  }

  #finish(at: number, move: "fail" | "quarantine"): void {
    this.move(move);
    this.finishedAt = at;
  }

  #backoff(failures: number): { from: number; to: number } {
    const { backoff, delay, maxDelay } = this.policy;
    if (backoff === "fixed") return exactly(delay);
    const full = Math.min(maxDelay, delay * 2 ** (failures - 1));
    return { from: Math.floor(full / 2), to: full };
  }
}

function exactly(delay: number): { from: number; to: number } {
  return { from: delay, to: delay };
}

/** Higher priority first, then first in, first out. */
export function inTurn(a: ModelJob, b: ModelJob): number {
  return b.priority - a.priority || a.seq - b.seq;
}
