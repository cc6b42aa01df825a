import { existsSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { endedBy, isProvenDead } from "../../core/jobs/lease.ts";
import type { BuildReason } from "../../core/pipelines/build.ts";
import {
  addEnds,
  type CrashRecovery,
  countPlan,
  isOfCrash,
  noCrashRecovery,
  planOf,
  findingsOf,
  NO_FINDINGS,
} from "../../core/recovery/recovery-report.ts";
import type { Clock } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { ProcessId } from "../../core/text/ids.ts";
import type { Finding } from "../../store/maintenance.ts";
import type { Life, ProcessView } from "../../store/processes.ts";
import { countJobs } from "../../store/queries.ts";
import type { Left, StoredReport } from "../../store/recoveries.ts";
import type { Store } from "../../store/store.ts";
import type { Engine } from "../engine.ts";
import { bootId } from "../host.ts";
import { type Log, describeError } from "../log.ts";
import { checkAll } from "./check.ts";

const MAX_JOBS = 10_000;
/** How long a process that closes waits for checks; after that it leaves the report to the next process. */
const CLOSE_GRACE_MS = 2_000;

export interface DeadProcess {
  process: ProcessView;
  life: Life;
}

interface Circumstances {
  opening: boolean;
  alone: boolean;
  /** Damage of the database itself, which gets a report even if no process has died. */
  findings?: readonly Finding[];
  first?: number;
  asked?: string;
}

interface OpenReport {
  report: number;
  reason: BuildReason;
  context: CheckCircumstances;
  /** What checks have found; null: they have not run yet. */
  errors: string[] | null;
  jobsPending: number;
  asked: string | undefined;
}

/** Recovers from crashes. Each transaction adds to a report what it reclaimed, so that another process can continue it. */
export class Recovery {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #self: ProcessId;
  readonly #check: ((context: CheckCircumstances) => Promise<string[] | null>) | null;
  readonly #grace: number;
  readonly #abort = new AbortController();
  #queue: Promise<unknown> = Promise.resolve();
  #owned: OpenReport | null = null;
  #closing: Promise<void> | null = null;

  constructor(parts: {
    store: Store;
    clock: Clock;
    log: Log;
    self: ProcessId;
    check?: (context: CheckCircumstances) => Promise<string[] | null>;
    grace?: number;
  }) {
    ({ store: this.#store, clock: this.#clock, log: this.#log, self: this.#self } = parts);
    this.#check = parts.check ?? null;
    this.#grace = parts.grace ?? CLOSE_GRACE_MS;
  }

  /** `all` resolves when everything is reclaimed, `some` when the first jobs are. */
  start(dead: readonly DeadProcess[], circumstances: Circumstances): { some: Promise<void>; all: Promise<CrashRecovery> } {
    const { promise: some, resolve } = Promise.withResolvers<void>();
    const all = this.#queue.then(() => this.#run(dead, circumstances, resolve)).finally(resolve);
    this.#queue = all.catch(() => {});
    return { some, all };
  }

  run(dead: readonly DeadProcess[], circumstances: Circumstances): Promise<CrashRecovery> {
    return this.start(dead, circumstances).all;
  }

  async takeOver(circumstances: Circumstances): Promise<void> {
    if (this.#owned === null) await this.run([], circumstances);
  }

  closeReport(): void {
    const owned = this.#owned;
    if (owned === null || this.#closing !== null) return;
    this.#closing = this.#checkAndClose(owned).finally(() => {
      this.#closing = null;
      if (this.#owned !== owned) this.closeReport();
    });
  }

  async settled(): Promise<void> {
    await this.#queue;
    await this.#closing;
  }

  async stop(): Promise<void> {
    const grace = setTimeout(() => this.#abort.abort(), this.#grace);
    await this.settled();
    clearTimeout(grace);
    this.#abort.abort();
    if (this.#owned === null) return;
    await this.#store.recoveries
      .close({ report: this.#owned.report, by: this.#self, ending: null })
      .catch((error: unknown) => this.#log.warn("could not give up a recovery report", describeError(error)));
  }

  async #run(dead: readonly DeadProcess[], circumstances: Circumstances, onSome: () => void): Promise<CrashRecovery> {
    const { opening, alone, findings = [] } = circumstances;
    const recovered = noCrashRecovery();
    const since = this.#clock.monotonic();
    const recovering = await this.#store.recoveries.begin({
      dead: dead.map(({ process, life }) => ({ id: process.id, life })),
      by: this.#self,
      opening,
      alone,
      ...(findings.length === 0 ? {} : { findings: findingsOf(findings), findingIds: findings.map(({ id }) => id) }),
    });
    if (recovering === null) return recovered;
    const { report, owned, left } = recovering;
    recovered.continues = recovering.continued;
    const step = {
      report,
      spent: stopwatch(owned ? this.#clock : null, since),
      reason: opening ? ("orphaned_at_startup" as const) : ("orchestrator_lost" as const),
    };
    const quick = circumstances.first;
    for (const one of left) {
      // Another transaction has locked a job of this process: the janitor finds it again.
      if (!(await this.#reclaimFrom(one, step, recovered, { ...(quick === undefined ? {} : { quick }), onSome })))
        return recovered;
    }
    if (!owned) return recovered;
    const rebooted = dead.some(({ life }) => life === "rebooted");
    const jobsPending = (await countJobs(this.#store.queries)).pending;
    const context = { alone, rebooted, signal: this.#abort.signal };
    const { asked } = circumstances;
    if (this.#owned?.report === report) Object.assign(this.#owned, { jobsPending, asked: asked ?? this.#owned.asked });
    else this.#owned = { report, reason: step.reason, context, errors: null, jobsPending, asked };
    this.closeReport();
    if (this.#check === null) await this.#closing;
    return recovered;
  }

  /** Reclaims a dead process's jobs, then everything else it held, and unregisters it. False: jobs are left. */
  async #reclaimFrom(
    { id, life, ...dead }: Left,
    { report, spent, reason }: { report: number; spent: () => number; reason: BuildReason },
    recovered: CrashRecovery,
    { quick, onSome }: { quick?: number; onSome?: () => void } = {},
  ): Promise<boolean> {
    const { recoveries } = this.#store;
    const { pid, host, program } = dead;
    const cause = `process ${pid} on ${host} died (${program})`;
    const as = isProvenDead(life) ? endedBy(life) : "crashed";
    const all = noCrashRecovery();
    for (let limit = quick ?? MAX_JOBS; ; limit = MAX_JOBS) {
      const reclaimed = await recoveries.reclaimFrom({ report, process: id, as, reason, limit, spent: spent(), cause });
      const { entries, builds, locks, orchestratorLocks, isDone, isUnregistered } = reclaimed;
      for (const sum of [all, recovered]) {
        sum.jobs += entries;
        addEnds(sum.ends, reclaimed);
        sum.builds.push(...builds);
        sum.locks.push(...locks);
        sum.orchestratorLocks.push(...orchestratorLocks);
        if (isUnregistered) sum.crashed.push(dead);
      }
      if (entries > 0) onSome?.();
      if (isDone) break;
      if (entries === 0) return false;
    }
    const { jobs, locks } = countPlan(planOf(all));
    this.#log.info("a process died; its jobs, builds and locks were reclaimed", {
      pid,
      host,
      jobs,
      builds: all.builds.length,
      locks,
    });
    return true;
  }

  /** Checks, then closes the report. If that fails, it is tried again, or left to the next process that recovers. */
  async #checkAndClose(owned: OpenReport): Promise<void> {
    try {
      owned.errors ??= await this.#runCheck(owned.context);
      if (owned.errors === null) return;
      for (;;) {
        const { report, jobsPending, errors, asked } = owned;
        const ending = { ...NO_FINDINGS, jobsPending, errors, ...(asked === undefined ? {} : { asked }) };
        const { closed, left } = await this.#store.recoveries.close({ report, by: this.#self, ending });
        if (left.length > 0) {
          await this.#reclaimOthers(owned, left);
          continue;
        }
        if (this.#owned === owned) this.#owned = null;
        for (const ended of closed) this.#logReport(ended);
        return;
      }
    } catch (error) {
      this.#log.warn("a recovery could not be ended; it is tried again", describeError(error));
    }
  }

  async #runCheck(context: CheckCircumstances): Promise<string[] | null> {
    if (this.#check === null) return [];
    // Let the caller of `open` continue first: starting a thread, or checkpointing a short log, takes some milliseconds.
    await new Promise((resolve) => setImmediate(resolve));
    return this.#check(context);
  }

  /** Reclaims from processes that another process has found dead meanwhile, and may be about to reclaim from. */
  async #reclaimOthers({ report, reason }: OpenReport, left: readonly Left[]): Promise<void> {
    for (const one of left) {
      if (await this.#reclaimFrom(one, { report, reason, spent: () => 0 }, noCrashRecovery())) continue;
      throw new Error(`process ${one.pid} on ${one.host} still has jobs in hand`);
    }
  }

  #logReport({ id, errors, crashed, jobsRecovered, buildsCrashed, locksReleased, recoveryDurationMs }: StoredReport): void {
    const data = { recovery: id, crashed: crashed.length, jobsRecovered, buildsCrashed, locksReleased, recoveryDurationMs };
    if (errors.length === 0) this.#log.info("recovered from a crash", data);
    else this.#log.error("recovered from a crash, and something is wrong", { ...data, errors, hint: ACKNOWLEDGE_HINT });
  }
}

const ACKNOWLEDGE_HINT = "`holdfast recover --last` shows all of it; `holdfast recover --acknowledge` marks it as seen.";

function stopwatch(clock: Clock | null, since: number): () => number {
  let last = since;
  return () => {
    const millis = clock === null ? 0 : Math.floor(clock.monotonic() - last);
    last += millis;
    return millis;
  };
}

export interface CheckCircumstances {
  alone: boolean;
  rebooted: boolean;
  /** Aborts when this process closes; the process that opens next checks again. */
  signal: AbortSignal;
}

/** A check that runs after everything was reclaimed. It must not block this thread, and returns what is wrong, in sentences. */
export type Check = (engine: Engine, circumstances: CheckCircumstances) => Promise<string[]>;

/** Checks after a crash. PostgreSQL looks after its own log and pages; artifacts are Holdfast's in both databases. */
export const CHECKS: readonly Check[] = [shortenLog, clearTemporary, checkPages];

/** Runs the checks, and returns what is wrong. Null: this process closes before they end. */
export async function runChecks(
  checks: readonly Check[],
  engine: Engine,
  circumstances: CheckCircumstances,
): Promise<string[] | null> {
  const { signal } = circumstances;
  const left = new Promise<null>((resolve) => signal.addEventListener("abort", () => resolve(null), { once: true }));
  const errors = new Set<string>();
  for (const check of checks) {
    // A signal that was aborted before sends no event.
    if (signal.aborted) return null;
    const found = await Promise.race([check(engine, circumstances).catch(notChecked), left]);
    if (found === null) return null;
    for (const error of found) errors.add(error);
  }
  return signal.aborted ? null : [...errors];
}

function notChecked(error: unknown): string[] {
  return [`The database could not be checked after the crash: ${error instanceof Error ? error.message : String(error)}`];
}

/** Checkpoints the log, because a long one makes every opening slow. */
async function shortenLog({ store }: Engine, { alone }: CheckCircumstances): Promise<string[]> {
  await store.maintenance.checkpoint({ alone });
  return [];
}

async function clearTemporary(engine: Engine): Promise<string[]> {
  const { path } = engine.artifactFolder;
  if (path !== null && existsSync(path)) await (await engine.artifacts()).clear();
  return [];
}

/** Checks pages, but not while other processes live: they have just been reading, and would have found damage. */
async function checkPages(engine: Engine, { alone, rebooted, signal }: CheckCircumstances): Promise<string[]> {
  // On PostgreSQL without a folder of artifacts there is nothing to check.
  const hasPages = engine.location.kind === "sqlite" || engine.artifactFolder.path !== null;
  return hasPages && (alone || rebooted) ? checkAll(engine, "quick", signal) : [];
}

const MAX_WAIT_MS = 5_000;
const POLL_MS = 50;

export async function findCrash(
  store: Store,
): Promise<Pick<CrashRecovery, "crashed" | "continues"> & { probed: { process: ProcessView; life: Life }[] }> {
  const { self, others: probed } = await store.processes.probe(bootId());
  const dead = probed.filter(({ life }) => isProvenDead(life)).map(({ process }) => process);
  const [newest] = (await store.recoveries.history({ limit: 1, which: "all" })).reports;
  const left = [self, ...probed.filter(({ life }) => !isProvenDead(life)).map(({ process }) => process)];
  const continues = newest?.state === "running" && left.every((process) => process?.id !== newest.owner);
  const crashed = dead.map(({ host, pid, program, startedAt }) => ({ host, pid, program, startedAt }));
  return { crashed, continues, probed };
}

/** Whether recovery needs an operator. It gives live workers a moment to recover, else a restarted worker would be rejected. */
export async function needsOperator(store: Store): Promise<boolean> {
  for (let waited = 0; ; waited += POLL_MS) {
    const { probed, ...crash } = await findCrash(store);
    if (!isOfCrash(crash)) return false;
    const works = probed.some(({ process, life }) => life === "alive" && process.works.length > 0);
    if (!works || waited >= MAX_WAIT_MS) return true;
    await pause(POLL_MS);
  }
}

export function recoveryPending(name: string): HoldfastError {
  return new HoldfastError(
    "RECOVERY_PENDING",
    `${name} needs recovery after a crash, and is read-only until an operator applies it.`,
    "Run `holdfast recover --dry-run` to see what recovery would do and `holdfast recover --apply` to do it; then open the database again.",
  );
}
