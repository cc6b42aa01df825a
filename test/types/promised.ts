import type * as holdfast from "../../src/index.ts";

/**
 * The public names and signatures that were promised, written down a second time. `api.test.ts` compares them with what
 * there is: a name that is lost or a signature that changes does not compile. Options may be added, never taken away.
 */

export type Duration = number | `${number}${"ms" | "s" | "m" | "h" | "d"}`;
export interface StandardSchema<In = unknown, Out = In> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => unknown;
    readonly types?: { readonly input: In; readonly output: Out } | undefined;
  };
}
export interface Page<T> {
  items: T[];
  next?: string;
}
export interface Log {
  debug(m: string, data?: object): void;
  info(m: string, data?: object): void;
  warn(m: string, data?: object): void;
  error(m: string, data?: object): void;
}

export interface OpenOptions {
  durability?: "power" | "process";
  recovery?: "auto" | "manual";
  driver?: "node:sqlite" | "better-sqlite3";
  log?: Log;
  clock?: { now(): number };
  sinks?: Record<string, { type: "console" } | { type: "file"; path: string } | { type: "webhook"; url: string; secret: string }>;
}
export interface Config extends OpenOptions {
  db?: string;
  modules: string[];
}

export interface Limit<In = unknown> {
  key?: (input: In) => string;
  concurrency?: number;
  rate?: `${number}/${"s" | "m" | "h" | "d"}`;
}
export interface QueueOptions {
  name: string;
  limit?: Limit | Limit[];
  events?: boolean;
  keep?: Partial<Record<JobState, Duration>>;
}
export interface RunOptions<In> {
  version?: number;
  retry?: { attempts?: number; backoff?: "exponential" | "fixed"; delay?: Duration; maxDelay?: Duration };
  crashes?: number;
  lease?: Duration;
  timeout?: Duration;
  concurrency?: number;
  limit?: Limit<In> | Limit<In>[];
}
export interface JobOptions<In> extends RunOptions<In> {
  name: string;
  queue?: string | QueueOptions;
  onInterrupt?: "retry" | "fail" | "resume";
}
export interface JobDef<In = unknown, Out = unknown, Parsed = unknown> {
  readonly name: string;
  readonly queue: string;
  readonly types?: { input: In; output: Out };
  handle(run: (c: JobContext<Parsed>) => Out | Promise<Out>): JobDef<In, Out, Parsed>;
}
export interface JobContext<In> {
  input: In;
  id: string;
  attempt: number;
  scheduledFor: Date | null;
  idempotencyKey: string;
  log: Log;
  signal: AbortSignal;
  checkpoint: { load(): Promise<unknown>; save(value: unknown): Promise<void> };
  progress(fraction: number, message?: string): void;
  enqueue<I>(def: JobDef<I>, input: NoInfer<I>, o?: EnqueueOptions): { id: string };
  commit(run: CommitRows): void;
}
export type CommitRows = (tx: CommitTx) => void | Promise<void>;
export interface CommitTx {
  readonly db: holdfast.TransactionHandle;
  query(text: string, values?: unknown[]): Promise<{ rows: unknown[] }>;
}
export interface EnqueueOptions {
  id?: string;
  key?: string;
  priority?: number;
  delay?: Duration;
  runAt?: Date | number;
  after?: string[];
}
export interface Enqueued<Out = unknown> {
  id: string;
  duplicate: boolean;
  readonly types?: { output: Out };
}
export interface SqliteHandle {
  prepare(sql: string): { run(...params: never[]): unknown };
  exec(sql: string): unknown;
}
export type SqliteTx = { db: SqliteHandle } | SqliteHandle;
export type PostgresTx =
  | { query(text: string, values: unknown[]): Promise<{ rows: unknown[] }> }
  | { unsafe(text: string, values?: never[]): PromiseLike<unknown> };

export type JobState = "waiting" | "pending" | "running" | "succeeded" | "failed" | "cancelled" | "quarantined";
export interface Job<In = unknown, Out = unknown> {
  id: string;
  name: string;
  queue: string;
  key?: string;
  state: JobState;
  input: In;
  output?: Out;
  error?: { name: string; message: string; code?: string; stack?: string };
  attempt: number;
  crashes: number;
  priority: number;
  progress?: { fraction: number; message?: string };
  createdAt: number;
  runAt: number;
  startedAt?: number;
  finishedAt?: number;
  worker?: string;
  host?: string;
  pid?: number;
  leaseExpiresAt?: number;
}
export type Finished<Out = unknown> = Job<unknown, Out> &
  ({ state: "succeeded"; output: Out } | { state: "failed" | "cancelled" | "quarantined" });
export interface Claim<In = unknown> extends AsyncDisposable {
  readonly job: Job<In>;
  readonly signal: AbortSignal;
  renew(lease?: Duration): Promise<void>;
  succeed(output?: unknown, o?: { commit?: CommitRows }): Promise<void>;
  release(): Promise<void>;
  fail(error: unknown, o?: { retry?: boolean; delay?: Duration }): Promise<void>;
}
export interface Worker extends AsyncDisposable {
  stop(o?: { drain?: Duration }): Promise<void>;
}
export interface Lock {
  acquire(holder: string, ttl: Duration): Promise<string | null>;
  extend(token: string, ttl: Duration): Promise<boolean>;
  release(token: string): Promise<boolean>;
  get(): Promise<{ holder: string; acquiredAt: number; expiresAt: number } | null>;
  isStale(): Promise<boolean>;
}
export interface CrashRecoveryReport {
  recoveredAt: number;
  crashed: { host: string; pid: number; program: string; startedAt: number }[];
  recoveryDurationMs: number;
  errors: string[];
  wasSuccessful: boolean;
  jobsRecovered: number;
  jobsPending: number;
  jobsRunningBeforeCrash: number;
  jobsResetToPending: number;
  jobsQuarantined: number;
  buildsCrashed: number;
  locksReleased: number;
  walSizeBeforeRecoveryBytes: number;
  walFramesReplayed: number;
  commitsMissing: number | null;
}
export interface RecoveryStats {
  locksCleaned: number;
  entriesReclaimed: number;
  recoveryTimestamp: number;
}
export interface Event {
  seq: number;
  type: string;
  at: number;
  dedupeKey: string;
  job?: string;
  build?: string;
  data: unknown;
}
export interface Schedule {
  key: string;
  job: string;
  cron: string;
  timezone: string;
  paused: boolean;
  lastAt?: number;
  nextAt: number;
}

/** Each method a property, so that the compiler compares parameters strictly. */
export interface Holdfast extends AsyncDisposable {
  enqueue: {
    <In, Out>(def: holdfast.JobDef<In, Out>, input: NoInfer<In>, o: EnqueueOptions & { tx: SqliteTx }): Enqueued<Out>;
    <In, Out>(
      def: holdfast.JobDef<In, Out>,
      input: NoInfer<In>,
      o?: EnqueueOptions & { tx?: PostgresTx },
    ): Promise<Enqueued<Out>>;
  };
  enqueueMany: <In, Out>(
    def: holdfast.JobDef<In, Out>,
    inputs: NoInfer<In>[],
    o?: EnqueueOptions | ((input: In, index: number) => EnqueueOptions),
  ) => Promise<Enqueued<Out>[]>;
  transaction: <R>(run: (tx: { db: SqliteHandle }) => R extends PromiseLike<unknown> ? never : R) => Promise<R>;
  work: (defs: holdfast.JobDef[], o?: { concurrency?: number; signals?: boolean }) => Worker;
  schedule: <In>(
    def: holdfast.JobDef<In>,
    o: {
      key?: string;
      cron: string;
      timezone?: string;
      input: NoInfer<In>;
      missed?: "skip" | "once" | "all";
      within?: Duration;
      overlap?: boolean;
    },
  ) => Promise<Schedule>;
  claim: <In = unknown>(
    from: string | holdfast.JobDef<In>,
    o: { worker: string; lease?: Duration; renew?: "auto" | "manual"; exclusive?: boolean; wait?: Duration },
  ) => Promise<Claim<In> | null>;
  lock: (name: string) => Lock;
  close: () => Promise<void>;
  readonly jobs: {
    get: (id: string) => Promise<Job | null>;
    list: (o?: {
      queue?: string;
      name?: string;
      state?: JobState;
      limit?: number;
      after?: string | undefined;
    }) => Promise<Page<Job>>;
    counts: (o?: { queue?: string; name?: string }) => Promise<Record<JobState, number>>;
    cancel: (id: string) => Promise<boolean>;
    retry: (id: string) => Promise<boolean>;
    wait: <Out>(job: Enqueued<Out> | string, o?: { timeout?: Duration; signal?: AbortSignal }) => Promise<Finished<Out>>;
    watch: (id: string, o?: { signal?: AbortSignal }) => AsyncIterable<Job>;
  };
  readonly queues: {
    pause: (name: string) => Promise<void>;
    resume: (name: string) => Promise<void>;
    list: () => Promise<{ name: string; paused: boolean; counts: Record<JobState, number>; oldestAt?: number }[]>;
  };
  readonly events: {
    subscribe: (on: (e: Event) => void | Promise<void>, o?: { name?: string; types?: string[] }) => () => Promise<void>;
  };
  readonly schedules: {
    list: () => Promise<Schedule[]>;
    remove: (key: string) => Promise<boolean>;
    pause: (key: string) => Promise<void>;
    resume: (key: string) => Promise<void>;
    trigger: (key: string) => Promise<Enqueued>;
  };
  readonly recovery: {
    lastReport(): Promise<CrashRecoveryReport | null>;
    history(): Promise<CrashRecoveryReport[]>;
    recoverStale: () => Promise<RecoveryStats>;
    stats: () => Promise<RecoveryStats & { staleLocks: number; staleEntries: number }>;
    reclaimStale: (expiredFor: Duration) => Promise<RecoveryStats>;
  };
}

/** `holdfast/testing`. */
export interface Testing {
  testClock: (start?: number) => { now(): number; advance(by: Duration): Promise<void> };
  drain: (hf: holdfast.Holdfast, defs: (holdfast.JobDef | holdfast.Pipeline)[]) => Promise<{ ran: number; failed: Job[] }>;
  call: <In, Out>(
    def: holdfast.JobDef<In, Out>,
    input: NoInfer<In>,
    context?: Partial<holdfast.JobContext<unknown>>,
  ) => Promise<Out>;
  crashAt: (point: string) => void;
}
