import { RECOVERY, UNNAMED } from "../../core/audit.ts";
import type { BuildReason } from "../../core/build.ts";
import type { Fence, JobKey, ProcessId } from "../../core/ids.ts";
import {
  addFindings,
  type CrashedProcess,
  endedAs,
  type Findings,
  isWorthReporting,
  jobCounts,
  NO_FINDINGS,
  ownerOf,
  type RecoveryCounts,
  recoverySubject,
} from "../../core/recovery-report.ts";
import { type Next, reclaimedOf } from "../../core/retry.ts";
import {
  type Burial,
  type Buried,
  type Ending,
  type Found,
  type Left,
  NOTHING_BACK,
  type Recovering,
  type RecoveryPreview,
  type RecoveryStore,
  reportOf,
  REPORTS_KEPT,
  type StoredReport,
  type TakenBack,
} from "../recoveries.ts";
import { COUNTED, errorsOf, REPORT_COLUMNS, type ReportRow, toReport } from "../report-row.ts";
import type { BuildRow } from "../builds.ts";
import type { Access } from "./builds/access.ts";
import type { Audit } from "./audit.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Endings } from "./endings.ts";
import type { Events } from "./events.ts";
import type { Tx } from "./group-commit.ts";
import type { Healing } from "./healing.ts";
import type { Locks } from "./locks.ts";
import type { Processes } from "./processes.ts";
import type { Settle } from "./settle.ts";

/** A write-ahead log of this many bytes is worth a thread. */
const LONG = 4 * 1024 * 1024;

interface Parts {
  settle: Settle;
  endings: Endings;
  events: Events;
  healing: Healing;
  locks: Locks;
  processes: Processes;
  audit: Audit;
  /** The builds that a process leads. */
  led: {
    crash(tx: Tx, holder: ProcessId, reason: BuildReason): BuildRow[];
    ids(holder: ProcessId): string[];
  };
  /** The write-ahead log: as it was when this handle opened it, and its size now. */
  log: { atOpening(): { bytes: number; frames: number }; size(): number; shorten(): Promise<void> };
}

/** Burials, and the reports of them, in a SQLite file. */
export class Recoveries implements RecoveryStore {
  readonly #access: Access;
  readonly #parts: Parts;
  readonly #running: Statement;
  readonly #byId: Statement;
  readonly #add: Statement;
  readonly #own: Statement;
  readonly #count: Statement;
  readonly #find: Statement;
  readonly #name: Statement;
  readonly #named: Statement;
  readonly #left: Statement;
  readonly #inHand: Statement;
  readonly #leases: Statement;
  readonly #buried: Statement;
  readonly #end: Statement;
  readonly #trim: Statement;
  readonly #trimNames: Statement;
  readonly #failed: Statement;
  readonly #acknowledge: Statement;
  readonly #listed: Record<"all" | "ended" | "open", Statement>;

  constructor(db: Connection, parts: Parts, access: Access) {
    this.#access = access;
    this.#parts = parts;
    const read = `select ${REPORT_COLUMNS.join(", ")} from holdfast_recoveries`;
    // By holdfast_recoveries_running.
    this.#running = db.prepare(`${read} where state = 'running'`);
    this.#byId = db.prepare(`${read} where id = :id`);
    this.#add = db.prepare(
      `insert into holdfast_recoveries (state, owner, begun_at, recovered_at, wal_bytes, wal_frames)
       values ('running', :by, :now, :now, :bytes, :frames) returning id`,
    );
    this.#own = db.prepare("update holdfast_recoveries set owner = :owner where id = :id and state = 'running'");
    const sums = Object.entries(COUNTED).map(([name, column]) => `${column} = ${column} + :${name}`);
    this.#count = db.prepare(
      `update holdfast_recoveries set ${sums.join(", ")}, recovered_at = :now where id = :id and state = 'running'`,
    );
    this.#find = db.prepare(
      `update holdfast_recoveries
       set errors = :errors, commits_missing = :commitsMissing, wal_frames = :walFramesReplayed where id = :id`,
    );
    this.#name = db.prepare(
      `insert into holdfast_recovery_processes (recovery, process, life, pid, host, program, started_at)
       select :report, id, :life, pid, host, program, started_at from holdfast_processes where id = :id
       on conflict do nothing`,
    );
    this.#named = db.prepare(
      `select host, pid, program, started_at as startedAt from holdfast_recovery_processes where recovery = :report order by process`,
    );
    this.#left = db.prepare(
      `select process as id, life, pid, host, program from holdfast_recovery_processes as dead
       where recovery = :report and exists (select 1 from holdfast_processes where id = dead.process) order by process`,
    );
    this.#inHand = db.prepare("select count(*) from holdfast_jobs where state = 'running' and holder = ?");
    this.#leases = db.prepare(
      "select key, fence, expires_at from holdfast_jobs where state = 'running' and holder = ? order by expires_at limit ?",
    );
    // Whether a report is under way in which this process is named: else somebody else has ended it, and the process with it.
    this.#buried = db.prepare(
      `select 1 from holdfast_recoveries as report
       where id = :report and state = 'running'
         and exists (select 1 from holdfast_recovery_processes where recovery = report.id and process = :process)
         and exists (select 1 from holdfast_processes where id = :process)`,
    );
    this.#end = db.prepare(
      `update holdfast_recoveries set state = :state, owner = null, pending = :pending
       where id = :id and state = 'running' and owner = :by`,
    );
    this.#trim = db.prepare("delete from holdfast_recoveries where id <= :before and state in ('completed', 'acknowledged')");
    this.#trimNames = db.prepare(
      `delete from holdfast_recovery_processes
       where recovery <= :before and recovery not in (select id from holdfast_recoveries where id <= :before)`,
    );
    // By holdfast_recoveries_failed.
    this.#failed = db.prepare(`${read} where state = 'failed' order by id`);
    this.#acknowledge = db.prepare(
      `update holdfast_recoveries set state = 'acknowledged', acknowledged_by = :by, acknowledged_at = :now
       where id = :id and state = 'failed'`,
    );
    this.#listed = {
      all: db.prepare(`${read} order by id desc limit :limit`),
      ended: db.prepare(`${read} where state <> 'running' order by id desc limit :limit`),
      open: db.prepare(`${read} where state in ('running', 'failed') order by id desc limit :limit`),
    };
  }

  /** Asked at every opening, mostly for nothing: then it takes no write lock. */
  async begin(found: Found): Promise<Recovering | null> {
    if (!(await this.#access.read(() => this.#isWorthwhile(found)))) return null;
    return this.#access.write("recover", (tx) => this.#begin(tx, found));
  }

  takeBack(burial: Burial & { as: "crashed" | "interrupted"; limit: number }): Promise<TakenBack> {
    return this.#access.write("reclaim", (tx) => this.#takeBack(tx, burial));
  }

  async bury(burial: Burial & { reason: BuildReason }): Promise<Buried | null> {
    // Its file goes when it is struck off, and not before.
    const forget = this.#parts.processes.forgetting(burial.process);
    const buried = await this.#access.write("bury", (tx) => this.#bury(tx, burial));
    if (buried !== null) forget();
    return buried;
  }

  close(report: number, ending: Ending): Promise<StoredReport | { left: Left[] } | null> {
    return this.#access.write("report", (tx) => this.#close(tx, report, ending));
  }

  handOn(report: number, owner: ProcessId): Promise<boolean> {
    return this.#access.write("report", (tx) => {
      const row = this.#byId.get<ReportRow>({ id: report });
      if (row?.state !== "running" || row.owner !== owner) return false;
      this.#own.runNamed({ id: report, owner: null });
      tx.wrote();
      return true;
    });
  }

  acknowledge(): Promise<StoredReport[]> {
    const by = this.#parts.audit.actor ?? UNNAMED;
    return this.#access.write("acknowledge", (tx) =>
      this.#failed.all<ReportRow>().map((row) => {
        this.#acknowledge.runNamed({ id: row.id, by, now: tx.now });
        const report = this.#see(row.id);
        this.#record(tx, "recovery.acknowledged", by, { before: { state: row.state }, report });
        return report;
      }),
    );
  }

  reports({ limit, which = "ended" }: { limit: number; which?: "ended" | "all" | "open" }): Promise<StoredReport[]> {
    return this.#access.read(() => this.#listed[which].all<ReportRow>({ limit }).map((row) => this.#toReport(row)));
  }

  async shortenLog(): Promise<void> {
    if (this.#parts.log.size() >= LONG) await this.#parts.log.shorten();
  }

  preview(dead: readonly ProcessId[]): Promise<RecoveryPreview> {
    const { led, locks } = this.#parts;
    return this.#access.read(() => ({
      jobs: dead.reduce((sum, id) => sum + this.#inHandOf(id), 0),
      builds: dead.flatMap((id) => led.ids(id)),
      locks: dead.flatMap((id) => locks.ofProcess(id, this.#access.now())).sort(),
    }));
  }

  #isWorthwhile({ dead, by, findings }: Found): boolean {
    if (dead.length > 0 || isWorthReporting(findings)) return true;
    const open = this.#running.get<ReportRow>();
    return open !== undefined && ownerOf(open, by, (owner) => !this.#parts.processes.isEntered(owner as ProcessId)) === by;
  }

  #begin(tx: Tx, found: Found): Recovering | null {
    const { processes, log } = this.#parts;
    const dead = found.dead.filter(({ id }) => processes.isEntered(id));
    const open = this.#running.get<ReportRow>();
    if (dead.length === 0 && !isWorthReporting(found.findings) && open === undefined) return null;
    const isGone = (owner: number) => dead.some(({ id }) => id === owner) || !processes.isEntered(owner as ProcessId);
    const owner = open === undefined ? found.by : ownerOf(open, found.by, isGone);
    const report = open?.id ?? this.#open(tx, found, found.opening ? log.atOpening() : { bytes: log.size(), frames: 0 });
    this.#own.runNamed({ id: report, owner });
    for (const { id, life } of dead) {
      if (this.#name.runNamed({ report, id, life }) === 0) continue;
      this.#counts(tx, report, { jobsRunningBeforeCrash: this.#inHandOf(id) });
    }
    if (found.findings !== undefined) this.#foundOut(report, found.findings);
    tx.wrote();
    return { report, owned: owner === found.by, left: this.#leftOf(report) };
  }

  #open(tx: Tx, { by, alone }: Found, { bytes, frames }: { bytes: number; frames: number }): number {
    // Whoever finds others at work reads nothing back: they have.
    const { id } = this.#add.get<{ id: number }>({ by, now: tx.now, bytes, frames: alone ? frames : 0 }) as { id: number };
    return id;
  }

  #takeBack(tx: Tx, burial: Burial & { as: "crashed" | "interrupted"; limit: number }): TakenBack {
    const { report, process, as: kind, limit, spent, cause } = burial;
    if (!this.#isOpen(burial)) return NOTHING_BACK;
    const { settle, endings, locks, healing } = this.#parts;
    const leases = this.#leases.rows(process, limit) as [JobKey, Fence, number][];
    const nexts: Next[] = [];
    for (const [job, fence, expiresAt] of leases) {
      const next = settle.reclaim(tx, { job, fence, expiresAt }, { kind });
      if (next === null) continue;
      tx.ended(job, fence);
      nexts.push(next);
    }
    endings.write(tx);
    const reclaimed = reclaimedOf(nexts);
    if (reclaimed.entries === 0) return NOTHING_BACK;
    const freed = locks.freeBound(tx, new Set(leases.map(([job]) => job)));
    healing.record(tx, cause, { ...reclaimed, locks: freed });
    this.#counts(tx, report, { ...jobCounts(reclaimed), locksReleased: freed, recoveryDurationMs: spent });
    return { ...reclaimed, locks: freed };
  }

  #bury(tx: Tx, burial: Burial & { reason: BuildReason }): Buried | null {
    const { report, process, reason, spent, cause } = burial;
    if (!this.#isOpen(burial)) return { builds: 0, locks: 0 };
    if (this.#inHandOf(process) > 0) return null;
    const { processes, locks, led, healing } = this.#parts;
    const freed = locks.freeOf(tx, process);
    const builds = led.crash(tx, process, reason).length;
    processes.remove(tx, process);
    if (freed > 0) healing.record(tx, cause, { ...NOTHING_BACK, locks: freed });
    this.#counts(tx, report, { buildsCrashed: builds, locksReleased: freed + builds, recoveryDurationMs: spent });
    return { builds, locks: freed };
  }

  #close(tx: Tx, report: number, ending: Ending): StoredReport | { left: Left[] } | null {
    const { by, jobsPending: pending } = ending;
    const row = this.#byId.get<ReportRow>({ id: report });
    if (row?.state !== "running" || row.owner !== by) return null;
    const left = this.#leftOf(report);
    if (left.length > 0) return { left };
    const { errors } = this.#foundOut(report, ending);
    this.#end.runNamed({ id: report, by, state: endedAs(errors), pending });
    tx.wrote();
    const before = report - REPORTS_KEPT;
    if (before > 0 && this.#trim.runNamed({ before }) > 0) this.#trimNames.runNamed({ before });
    const ended = this.#see(report);
    this.#record(tx, `recovery.${endedAs(errors)}`, RECOVERY, { before: null, report: ended });
    return ended;
  }

  #record(tx: Tx, action: string, by: string, { before, report }: { before: object | null; report: StoredReport }): void {
    const { audit, events } = this.#parts;
    const subject = recoverySubject(report.id);
    const { id, state } = report;
    audit.add(tx, { by, action, subject, before, after: { state, ...reportOf(report) } });
    events.act(tx, action, subject, { recovery: id, ...reportOf(report) });
  }

  /** Added to what was found before. */
  #foundOut(report: number, findings: Partial<Findings>): Findings {
    const row = this.#byId.get<ReportRow>({ id: report }) as ReportRow;
    const { wal_frames: walFramesReplayed, commits_missing: commitsMissing } = row;
    const before = addFindings(NO_FINDINGS, { errors: errorsOf(row), walFramesReplayed, commitsMissing });
    const found = addFindings(before, findings);
    this.#find.runNamed({ id: report, ...found, errors: JSON.stringify(found.errors) });
    return found;
  }

  #counts(tx: Tx, id: number, counts: Partial<RecoveryCounts>): void {
    const all = Object.keys(COUNTED).map((name) => [name, counts[name as keyof RecoveryCounts] ?? 0] as const);
    this.#count.runNamed({ ...Object.fromEntries(all), id, now: tx.now });
    tx.wrote();
  }

  #isOpen({ report, process }: Burial): boolean {
    return this.#buried.get({ report, process }) !== undefined;
  }

  #inHandOf(process: ProcessId): number {
    return (this.#inHand.row(process) as [number])[0];
  }

  #leftOf(report: number): Left[] {
    return this.#left.all<Left>({ report }).map((row) => Object.assign({}, row));
  }

  #see(id: number): StoredReport {
    return this.#toReport(this.#byId.get<ReportRow>({ id }) as ReportRow);
  }

  #toReport(row: ReportRow): StoredReport {
    return toReport(row, this.#named.all<CrashedProcess>({ report: row.id }));
  }
}
