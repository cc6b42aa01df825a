import type { EventType } from "../../core/jobs/event.ts";
import type { LeaseRef, StaleLease } from "../../core/jobs/lease.ts";
import { decide, NOTHING_RECLAIMED, type Policy, type Reclaimed, reclaimedOf } from "../../core/jobs/retry.ts";
import { RECOVERY_ACTOR, UNKNOWN_ACTOR } from "../../core/recovery/audit.ts";
import {
  addFindings,
  finalState,
  isWorthReporting,
  jobCounts,
  reportOwner,
  recoverySubject,
} from "../../core/recovery/recovery-report.ts";
import type { Fence, JobKey, ProcessId } from "../../core/text/ids.ts";
import {
  type DeadProcess,
  type ExpiredLease,
  type OwnReport,
  type Found,
  type Judgement,
  type Left,
  reclaimedBy,
  type RecoveredProcess,
  type Recovering,
  type RecoveryHistory,
  type RecoveryPreview,
  reportOf,
  type StoredReport,
} from "../recoveries.ts";
import type { BuildRow } from "../builds.ts";
import type { Audit } from "./audit.ts";
import { endedWithWork } from "./builds/build-rows.ts";
import type { Builds } from "./builds/builds.ts";
import type { Locks } from "./locks.ts";
import { type RecoveryLog, Reports } from "./reports.ts";
import {
  type Access,
  type Answer,
  type Dialect,
  type Events,
  type Processes,
  type Reads,
  type ReclaimedLease,
  type Script,
  type Settle,
  together,
  type Tx,
  wait,
} from "./script.ts";
import type { RecoveryStore } from "../store.ts";

interface Parts {
  settle: Settle;
  leases: { cut(tx: Tx, leases: readonly Judgement[]): Answer<number> };
  events: Events;
  recoveryLog: RecoveryLog;
  locks: Locks;
  processes: Processes;
  audit: Audit;
  builds: Builds;
  file: FileFacts;
}

/** What only a SQLite file knows: its write-ahead log, and what was found to be wrong with it. */
export interface FileFacts {
  logAtOpening(): { bytes: number; frames: number };
  logSize(): number;
  commitsMissing(): number | null;
  reported(ids: readonly string[]): void;
}

/** Reclaims what dead processes held, and reports it. One transaction at a time opens or ends reports. */
export class Recoveries implements RecoveryStore {
  readonly #access: Access;
  readonly #parts: Parts;
  readonly #reports: Reports;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, parts: Parts, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#reports = new Reports(dialect);
    this.#sql = statements(dialect);
  }

  /** Reads before it writes, because it is called at every opening, and mostly there is nothing to do. */
  async begin(found: Found): Promise<Recovering | null> {
    if (!(await this.#access.read((db) => this.#isWorthwhile(db, found)))) return null;
    const recovering = await this.#write("recover", (tx) => this.#begin(tx, found));
    if (recovering !== null && found.findingIds !== undefined) this.#parts.file.reported(found.findingIds);
    return recovering;
  }

  *#isWorthwhile(db: Reads, { dead, by, findings }: Found): Script<boolean> {
    if (dead.length > 0 || isWorthReporting(findings)) return true;
    const open = yield* this.#reports.running(db);
    if (open === undefined) return false;
    const registered = yield* this.#registered(db, open.owner === null ? [] : [open.owner]);
    return reportOwner(open, by, (owner) => !registered.has(owner)) === by;
  }

  *#begin(tx: Tx, found: Found): Script<Recovering | null> {
    const reports = this.#reports;
    const { file } = this.#parts;
    const open = yield* reports.running(tx);
    const asked = [...found.dead.map(({ id }) => id as number), ...(open?.owner == null ? [] : [open.owner as number])];
    const registered = yield* this.#registered(tx, asked);
    const dead = found.dead.filter(({ id }) => registered.has(id));
    if (dead.length === 0 && !isWorthReporting(found.findings) && open === undefined) return null;
    const isGone = (owner: number) => dead.some(({ id }) => id === owner) || !registered.has(owner);
    const owner = open === undefined ? found.by : reportOwner(open, found.by, isGone);
    const met = found.opening ? file.logAtOpening() : { bytes: file.logSize(), frames: 0 };
    // If other processes had the file open, they have replayed its log.
    const report = open?.id ?? (yield* reports.open(tx, found.by, found.alone ? met : { ...met, frames: 0 }));
    yield* reports.setOwner(tx, report, owner as ProcessId);
    for (const one of dead) {
      if (!(yield* reports.name(tx, report, one))) continue;
      yield* reports.count(tx, report, { jobsRunningBeforeCrash: yield* this.#heldBy(tx, [one.id]) });
    }
    if (found.findings !== undefined) yield* reports.find(tx, report, found.findings);
    const owned = owner === found.by;
    const continued = owned && open !== undefined && open.owner !== found.by;
    return { report, owned, continued, left: yield* reports.left(tx, report) };
  }

  async reclaimFrom(dead: DeadProcess): Promise<RecoveredProcess> {
    // The proof of life is removed after the process is unregistered, not before.
    const forget = this.#parts.processes.forgetting?.(dead.process);
    const recovered = await this.#write("reclaim", (tx) => this.#reclaimFrom(tx, dead));
    if (recovered.isDone) forget?.();
    return recovered;
  }

  *#reclaimFrom(tx: Tx, dead: DeadProcess): Script<RecoveredProcess> {
    const { report, process, as: kind, reason, limit, spent, cause } = dead;
    if (!(yield* this.#reports.names(tx, report, process))) return goneBefore();
    const { locks, recoveryLog, builds } = this.#parts;
    const leases = yield* tx.all<{ job: JobKey; fence: Fence; expiresAt: number }>(this.#sql.leases, { process, limit });
    const over = leases.map(({ job, fence, expiresAt }) => ({ job, fence, expiresAt, kind }));
    const { ended, reclaimed } = yield* this.#endLeases(tx, over);
    const freed = ended.length === 0 ? [] : yield* locks.freeBound(tx, ended);
    const isDone = (yield* this.#heldBy(tx, [process])) === 0;
    const crashed: BuildRow[] = [];
    let buildsCrashed = 0;
    if (isDone) {
      buildsCrashed = yield* this.#notCounted(tx, report, yield* builds.orchestratedBy(tx, process));
      crashed.push(...(yield* builds.crash(tx, process, reason, report)));
      freed.push(...(yield* locks.freeOf(tx, process)));
      if (!(yield* wait(this.#parts.processes.remove(tx, process)))) {
        throw new Error(`Process ${process} is dead, and cannot be unregistered.`);
      }
    }
    const locksReleased = freed.length + crashed.length;
    if (reclaimed.entries + locksReleased > 0) yield* recoveryLog.record(tx, cause, { ...reclaimed, locks: locksReleased });
    const counts = { buildsCrashed, locksReleased, recoveryDurationMs: spent };
    if (isDone || reclaimed.entries > 0) yield* this.#reports.count(tx, report, { ...jobCounts(reclaimed), ...counts });
    return {
      ...reclaimed,
      builds: crashed.map(({ id }) => id),
      locks: freed,
      orchestratorLocks: crashed.map(({ pipeline }) => pipeline),
      isDone,
      isUnregistered: isDone,
    };
  }

  /** Counts the builds that the report has not counted: a resumed build may crash again before the report ends. */
  *#notCounted(tx: Tx, report: number, builds: readonly string[]): Script<number> {
    let count = 0;
    for (const build of builds) {
      const entries = yield* tx.all<{ after: string }>(this.#sql.crashes, { build });
      if (entries.every(({ after }) => (JSON.parse(after) as { recovery?: number }).recovery !== report)) count++;
    }
    return count;
  }

  close(ending: OwnReport | "acknowledged"): Promise<{ closed: StoredReport[]; left: Left[] }> {
    if (ending !== "acknowledged") return this.#write("report", (tx) => this.#close(tx, ending));
    return this.#write("acknowledge", (tx) => this.#acknowledge(tx, this.#parts.audit.actor ?? UNKNOWN_ACTOR));
  }

  *#close(tx: Tx, { report, by, ending }: OwnReport): Script<{ closed: StoredReport[]; left: Left[] }> {
    const row = yield* this.#reports.row(tx, report);
    if (row?.state !== "running" || row.owner !== by) return { closed: [], left: [] };
    if (ending === null) {
      yield* this.#reports.setOwner(tx, report, null);
      return { closed: [], left: [] };
    }
    const left = yield* this.#reports.left(tx, report);
    if (left.length > 0) return { closed: [], left };
    const found = addFindings(ending, { commitsMissing: this.#parts.file.commitsMissing() });
    const { errors } = yield* this.#reports.find(tx, report, found);
    const ended = yield* this.#reports.end(tx, report, { by, state: finalState(errors), pending: ending.jobsPending });
    yield* this.#record(tx, `recovery.${finalState(errors)}`, ending.asked ?? RECOVERY_ACTOR, { before: null, report: ended });
    return { closed: [ended], left: [] };
  }

  *#acknowledge(tx: Tx, by: string): Script<{ closed: StoredReport[]; left: Left[] }> {
    const closed: StoredReport[] = [];
    for (const { id, state } of yield* this.#reports.failed(tx)) {
      const report = yield* this.#reports.acknowledge(tx, id, by);
      yield* this.#record(tx, "recovery.acknowledged", by, { before: { state }, report });
      closed.push(report);
    }
    return { closed, left: [] };
  }

  history({ limit, which = "ended" }: { limit: number; which?: "ended" | "all" | "open" }): Promise<RecoveryHistory> {
    return this.#access.read((db) => this.#history(db, which, limit));
  }

  *#history(db: Reads, which: "ended" | "all" | "open", limit: number): Script<RecoveryHistory> {
    const [reports, reclaimed, sums] = yield* together(
      this.#reports.list(db, which, limit),
      this.#parts.recoveryLog.totals(db),
      this.#reports.totals(db),
    );
    return { reports, totals: { ...reclaimed, reports: sums } };
  }

  preview(known: Known, expired: readonly ExpiredLease[]): Promise<RecoveryPreview> {
    return this.#access.read((db) => this.#preview(db, known, expired));
  }

  *#preview(db: Reads, known: Known, expired: readonly ExpiredLease[]): Script<RecoveryPreview> {
    const { locks, builds } = this.#parts;
    const { dead } = known;
    const ended = { ...known, rebooted: yield* this.#rebooted(db, known) };
    const [jobs, held, left, staleLocks, overlongLocks, idle, ending] = yield* together(
      this.#heldBy(db, dead),
      locks.ofProcesses(db, dead),
      builds.withoutOrchestrator(db, known),
      locks.stale(db, expired),
      locks.overlong(db, dead),
      this.#countIdle(db, dead, expired),
      this.#decideAll(db, ended, expired),
    );
    const { leftover, entries: _, ...ends } = ending;
    return { jobs, ends, ...left, locks: held, staleLocks, overlongLocks, leftoverJobs: idle + leftover };
  }

  /** An open report remembers how the processes that it names were found, because a host may have restarted since. */
  *#rebooted(db: Reads, { dead, rebooted = [] }: Known): Script<ProcessId[]> {
    const open = yield* this.#reports.running(db);
    const left = open === undefined ? [] : yield* this.#reports.left(db, open.id);
    const named = new Map(left.map(({ id, life }) => [id, life === "rebooted"]));
    return dead.filter((id) => named.get(id) ?? rebooted.includes(id));
  }

  *#countIdle(db: Reads, dead: readonly ProcessId[], expired: readonly LeaseRef[]): Script<number> {
    const params = { dead, jobs: expired.map(({ job }) => job) };
    return ((yield* db.get<{ jobs: number }>(this.#sql.idle, params)) as { jobs: number }).jobs;
  }

  /** Counts what becomes of the jobs of these processes and leases. `leftover`: pending again, of a build that has ended. */
  *#decideAll(
    db: Reads,
    { dead, rebooted = [] }: Known,
    expired: readonly ExpiredLease[],
  ): Script<Reclaimed & { leftover: number }> {
    const processes = { crashed: dead.filter((id) => !rebooted.includes(id)), interrupted: rebooted, stalled: [] };
    const all = { ...NOTHING_RECLAIMED, leftover: 0 };
    for (const kind of ["crashed", "interrupted", "stalled"] as const) {
      const jobs = expired.filter(({ verdict }) => verdict === kind).map(({ job }) => job);
      const params = { processes: processes[kind], jobs, newline: "\n" };
      if (params.processes.length + jobs.length === 0) continue;
      for (const group of yield* db.all<RunningGroup>(this.#sql.running, params)) {
        const policy = JSON.parse(group.policy) as Policy;
        const { state } = decide({ attempt: 1, errors: 0, crashes: group.crashes }, policy, { kind }, 0);
        all.entries += group.jobs;
        if (state === "quarantined" || state === "failed") all[state] += group.jobs;
        else if (group.replaced) all.replaced += group.jobs;
        else if (group.leftover) all.leftover += group.jobs;
      }
    }
    return all;
  }

  async stale({ dead, skewed, limit }: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<StaleLease[]> {
    const sql = skewed || dead.length > 0 ? this.#sql.stale : this.#sql.expired;
    return this.#access.read((db) => db.all<StaleLease>(sql, { dead, skewed, limit }));
  }

  reclaim(judgements: readonly Judgement[], cause: string, by = RECOVERY_ACTOR): Promise<Reclaimed & { shortened: number }> {
    return this.#access.write("reclaim", (tx) => this.#reclaim(tx, judgements, cause, by));
  }

  *#reclaim(tx: Tx, judgements: readonly Judgement[], cause: string, by: string): Script<Reclaimed & { shortened: number }> {
    const { leases, recoveryLog, audit, processes } = this.#parts;
    const cut = judgements.filter(({ verdict }) => verdict === "cut");
    const shortened = cut.length === 0 ? 0 : yield* wait(leases.cut(tx, cut));
    const over: ReclaimedLease[] = [];
    for (const { verdict, job, fence, expiresAt, holder } of judgements) {
      const isOwn = holder !== null && holder === processes.self;
      if (verdict !== "cut") over.push({ job, fence, expiresAt, kind: verdict, isOwn });
    }
    const { reclaimed } = yield* this.#endLeases(tx, over);
    if (reclaimed.entries > 0) {
      yield* recoveryLog.record(tx, cause, { ...reclaimed, locks: 0 });
      yield* audit.add(tx, reclaimedBy(by, cause, reclaimed));
    }
    return { ...reclaimed, shortened };
  }

  *#endLeases(tx: Tx, leases: readonly ReclaimedLease[]): Script<{ ended: LeaseRef[]; reclaimed: Reclaimed }> {
    const nexts = yield* wait(this.#parts.settle.reclaim(tx, leases));
    const ended = leases.filter((_, i) => nexts[i] !== null);
    for (const { job, fence } of ended) tx.ended(job, fence);
    return { ended, reclaimed: reclaimedOf(nexts.filter((next) => next !== null)) };
  }

  #write<T>(operation: "recover" | "reclaim" | "report" | "acknowledge", script: (tx: Tx) => Script<T>): Promise<T> {
    return this.#access.write(operation, script, { builds: true });
  }

  *#record(tx: Tx, action: EventType, by: string, of: { before: object | null; report: StoredReport }): Script<void> {
    const { audit, events } = this.#parts;
    const { before, report } = of;
    const { id, state } = report;
    const subject = recoverySubject(id);
    yield* audit.add(tx, { by, action, subject, before, after: { state, ...reportOf(report) } });
    yield* wait(events.act(tx, action, subject, { recovery: id, ...reportOf(report) }));
  }

  *#registered(db: Reads, ids: readonly number[]): Script<Set<number>> {
    if (ids.length === 0) return new Set();
    return new Set((yield* db.all<{ id: number }>(this.#sql.registered, { ids })).map(({ id }) => id));
  }

  *#heldBy(db: Reads, processes: readonly ProcessId[]): Script<number> {
    return ((yield* db.get<{ jobs: number }>(this.#sql.heldBy, { processes })) as { jobs: number }).jobs;
  }
}

function goneBefore(): RecoveredProcess {
  return { ...reclaimedOf([]), builds: [], locks: [], orchestratorLocks: [], isDone: true, isUnregistered: false };
}

interface RunningGroup {
  policy: string;
  crashes: number;
  replaced: boolean;
  leftover: boolean;
  jobs: number;
}

type Known = Parameters<RecoveryStore["preview"]>[0];

function statements(dialect: Dialect) {
  const ended = `select key from (${endedWithWork(dialect)}) as ended`;
  const isLeftover = `exists (
    select 1 from ${dialect.table("work")} as work where work.job = job.key and work.build in (${ended}))`;
  const isReplaced = `exists (
    select 1 from ${dialect.table("waits")} as wait join ${dialect.table("jobs")} as newer on newer.key = wait.job
    where wait.upstream = job.key and substr(newer.slot, 1, 1) = :newline)`;
  const lease = `
    select key as job, fence, holder, expires_at as "expiresAt", lease, expires_at - :now as "left" from ${dialect.running} as running`;
  return {
    // Uses an index on the earliest expiry: if nothing has expired, it reads one index page.
    expired: `${lease} where bound <= :now and expires_at <= :now order by expires_at, key limit :limit`,
    stale: `
      ${lease} where expires_at <= :now or (:skewed and expires_at > :now + lease) or ${dialect.in("holder", "bigint", ":dead")}
      order by expires_at, key limit :limit`,
    registered: `select id from ${dialect.table("processes")} where ${dialect.in("id", "bigint", ":ids")}`,
    heldBy: `select ${dialect.heldBy(":processes")} as jobs`,
    idle: `
      select count(*) as jobs from ${dialect.table("work")} as work join ${dialect.table("jobs")} as job on job.key = work.job
      where work.build in (${ended}) and (job.state <> 'running' or (work.kind = 'listing' and
        not coalesce(${dialect.in("job.holder", "bigint", ":dead")}, false) and not ${dialect.in("job.key", "bigint", ":jobs")}))`,
    running: `
      select policy.body as policy, job.crashes, ${isReplaced} as replaced, ${isLeftover} as leftover, count(*) as jobs
      from ${dialect.running} as running join ${dialect.table("jobs")} as job on job.key = running.key
        join ${dialect.table("policies")} as policy on policy.id = job.policy
      where ${dialect.in("running.holder", "bigint", ":processes")} or ${dialect.in("running.key", "bigint", ":jobs")}
      group by 1, 2, 3, 4`,
    crashes: `select after from ${dialect.table("audit")} where subject = :build and action = 'build.crashed'`,
    leases: `
      select key as job, fence, expires_at as "expiresAt" from ${dialect.running} as running
      where holder = :process order by expires_at, key limit :limit`,
  };
}
