import type { CommitRows } from "./commit-rows.ts";
import type { Duration } from "./duration.ts";
import type { Log } from "./log.ts";

export interface EnqueueOptions {
  /** One job ever: remembered after the job is pruned; taken by another job name: ID_TAKEN. */
  id?: string;
  /** One unfinished job of this name. */
  key?: string;
  /** Higher first; default 0. */
  priority?: number;
  delay?: Duration;
  runAt?: Date | number;
  /** The ids of jobs that must succeed first; one that does not cancels this job. */
  after?: string[];
}

export interface Enqueued<Out = unknown> {
  id: string;
  duplicate: boolean;
  readonly types?: { output: Out };
}

/** What a handler gets. */
export interface JobContext<In> {
  input: In;
  id: string;
  /** 1 for the first; starts that were given back do not count. */
  attempt: number;
  scheduledFor: Date | null;
  /** The same for every attempt of this job: hand it to outside services, so that what they do happens once. */
  idempotencyKey: string;
  log: Log;
  /** Aborts with a reason whose `code` is LEASE_LOST, CANCELLED, TIMEOUT or STOPPING; throwing `signal.reason` is right. */
  signal: AbortSignal;
  /** Work in progress, for the next attempt. `load` gives undefined when nothing was saved. */
  checkpoint: { load(): Promise<unknown>; save(value: unknown): Promise<void> };
  progress(fraction: number, message?: string): void;
  /** Commits with this attempt's success, or not at all. */
  enqueue<I>(def: JobDef<I>, input: NoInfer<I>, options?: EnqueueOptions): { id: string };
  /**
   * Writes rows of your own tables in the transaction that records this attempt's success. `run` is called after the handler
   * has returned; several calls run in order. Not with `isolate: "process"`.
   *
   * ```ts
   * commit(({ db }) => addInvoice(db, input.customer));
   * ```
   */
  commit(run: CommitRows): void;
}

export type Run<Parsed, Out> = (context: JobContext<Parsed>) => Out | Promise<Out>;

/** A kind of job. What producers need is the definition; the handler may be given elsewhere. */
export interface JobDef<In = unknown, Out = unknown, Parsed = unknown> {
  readonly name: string;
  readonly queue: string;
  readonly types?: { input: In; output: Out };
  /** The same job with its handler: producers need not import it. */
  handle(run: Run<Parsed, Out>): JobDef<In, Out, Parsed>;
}
