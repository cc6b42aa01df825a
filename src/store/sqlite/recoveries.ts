import { RECOVERY, UNNAMED } from "../../core/audit.ts";
import type { BuildReason } from "../../core/build.ts";
import type { Fence, JobKey, ProcessId } from "../../core/ids.ts";
import type { LeaseRef } from "../../core/lease.ts";
import { endedAs, isWorthReporting, jobCounts, ownerOf, recoverySubject } from "../../core/recovery-report.ts";
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
  type ReportTotals,
  type StoredReport,
  type TakenBack,
} from "../recoveries.ts";
import type { Builds } from "../sql/builds/builds.ts";
import type { Locks } from "../sql/locks.ts";
import { runSync } from "../sql/script.ts";
import type { Access } from "./access.ts";
import type { Audit } from "../sql/audit.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Endings } from "./endings.ts";
import type { Events } from "./events.ts";
import type { Tx } from "./group-commit.ts";
import type { RecoveryLog } from "../sql/recovery-log.ts";
import type { Processes } from "./processes.ts";
import { Reports } from "./reports.ts";
import { readsAt, type Statements } from "./scripts.ts";
import type { Settle } from "./settle.ts";

/** A write-ahead log of this many bytes is worth a thread while others work. */
const LONG = 4 * 1024 * 1024;
const SHORT = 1024 * 1024;

interface Parts {
  settle: Settle;
  endings: Endings;
  events: Events;
  recoveryLog: RecoveryLog;
  locks: Locks;
  processes: Processes;
  audit: Audit;
  builds: Builds;
  statements: Statements;
  /** The write-ahead log: as it was when this handle opened it, and its size now. */
  log: { atOpening(): { bytes: number; frames: number }; size(): number; shorten(waitMs?: number): Promise<void> };
}

/** Burials, and the reports of them, in a SQLite file. */
export class Recoveries implements RecoveryStore {
  readonly #access: Access;
  readonly #parts: Parts;
  readonly #reports: Reports;
  readonly #inHand: Statement;
  readonly #leases: Statement;
  readonly #copyLog: Statement;

  constructor(db: Connection, parts: Parts, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#reports = new Reports(db);
    this.#inHand = db.prepare("select count(*) from holdfast_jobs where state = 'running' and holder = ?");
    this.#copyLog = db.prepare("pragma wal_checkpoint(passive)");
    this.#leases = db.prepare(
      "select key, fence, expires_at from holdfast_jobs where state = 'running' and holder = ? order by expires_at limit ?",
    );
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
      const row = this.#reports.row(report);
      if (row?.state !== "running" || row.owner !== owner) return false;
      this.#reports.own(tx, report, null);
      return true;
    });
  }

  acknowledge(): Promise<StoredReport[]> {
    const by = this.#parts.audit.actor ?? UNNAMED;
    return this.#access.write("acknowledge", (tx) =>
      this.#reports.failed().map(({ id, state }) => {
        const report = this.#reports.acknowledge(tx, id, by);
        this.#record(tx, "recovery.acknowledged", by, { before: { state }, report });
        return report;
      }),
    );
  }

  reports({ limit, which = "ended" }: { limit: number; which?: "ended" | "all" | "open" }): Promise<StoredReport[]> {
    return this.#access.read(() => this.#reports.list(which, limit));
  }

  totals(): Promise<ReportTotals> {
    return this.#access.read(() => this.#reports.totals());
  }

  async shortenLog(alone: boolean): Promise<void> {
    const size = this.#parts.log.size();
    if (size === 0 || (size < LONG && !alone)) return;
    // A short one is copied sooner than a thread is started.
    if (size < SHORT) await this.#access.read(() => this.#copyLog.row());
    else await this.#parts.log.shorten();
  }

  async emptyLog(waitMs: number): Promise<void> {
    if (this.#parts.log.size() > 0) await this.#parts.log.shorten(waitMs);
  }

  preview(dead: readonly ProcessId[]): Promise<RecoveryPreview> {
    const { builds, locks, statements } = this.#parts;
    return this.#access.read(() => {
      const db = readsAt(statements, this.#access.now());
      return {
        jobs: dead.reduce((sum, id) => sum + this.#inHandOf(id), 0),
        builds: dead.flatMap((id) => runSync(builds.ledBy(db, id))),
        locks: runSync(locks.ofProcesses(db, dead)),
      };
    });
  }

  #isWorthwhile({ dead, by, findings }: Found): boolean {
    if (dead.length > 0 || isWorthReporting(findings)) return true;
    const open = this.#reports.running();
    return open !== undefined && ownerOf(open, by, (owner) => !this.#parts.processes.isEntered(owner as ProcessId)) === by;
  }

  #begin(tx: Tx, found: Found): Recovering | null {
    const { processes, log } = this.#parts;
    const dead = found.dead.filter(({ id }) => processes.isEntered(id));
    const open = this.#reports.running();
    if (dead.length === 0 && !isWorthReporting(found.findings) && open === undefined) return null;
    const isGone = (owner: number) => dead.some(({ id }) => id === owner) || !processes.isEntered(owner as ProcessId);
    const owner = open === undefined ? found.by : ownerOf(open, found.by, isGone);
    const met = found.opening ? log.atOpening() : { bytes: log.size(), frames: 0 };
    // Whoever finds others at work reads nothing back: they have.
    const report = open?.id ?? this.#reports.open(tx, found.by, found.alone ? met : { ...met, frames: 0 });
    this.#reports.own(tx, report, owner as ProcessId);
    for (const one of dead) {
      if (!this.#reports.name(tx, report, one)) continue;
      this.#reports.count(tx, report, { jobsRunningBeforeCrash: this.#inHandOf(one.id) });
    }
    if (found.findings !== undefined) this.#reports.find(tx, report, found.findings);
    return { report, owned: owner === found.by, left: this.#reports.left(report) };
  }

  #takeBack(tx: Tx, burial: Burial & { as: "crashed" | "interrupted"; limit: number }): TakenBack {
    const { report, process, as: kind, limit, spent, cause } = burial;
    if (!this.#reports.names(report, process)) return NOTHING_BACK;
    const { settle, endings, locks, recoveryLog } = this.#parts;
    const leases = this.#leases.rows(process, limit) as [JobKey, Fence, number][];
    const over: LeaseRef[] = [];
    const nexts: Next[] = [];
    for (const [job, fence, expiresAt] of leases) {
      const next = settle.reclaim(tx, { job, fence, expiresAt }, { kind });
      if (next === null) continue;
      tx.ended(job, fence);
      over.push({ job, fence });
      nexts.push(next);
    }
    endings.write(tx);
    const reclaimed = reclaimedOf(nexts);
    if (reclaimed.entries === 0) return NOTHING_BACK;
    const freed = runSync(locks.freeBound(tx, over));
    runSync(recoveryLog.record(tx, cause, { ...reclaimed, locks: freed }));
    this.#reports.count(tx, report, { ...jobCounts(reclaimed), locksReleased: freed, recoveryDurationMs: spent });
    return { ...reclaimed, locks: freed };
  }

  #bury(tx: Tx, burial: Burial & { reason: BuildReason }): Buried | null {
    const { report, process, reason, spent, cause } = burial;
    if (!this.#reports.names(report, process)) return { builds: 0, locks: 0 };
    if (this.#inHandOf(process) > 0) return null;
    const { processes, locks, recoveryLog } = this.#parts;
    const freed = runSync(locks.freeOf(tx, process));
    const builds = runSync(this.#parts.builds.crash(tx, process, reason)).length;
    processes.remove(tx, process);
    if (freed > 0) runSync(recoveryLog.record(tx, cause, { ...NOTHING_BACK, locks: freed }));
    this.#reports.count(tx, report, { buildsCrashed: builds, locksReleased: freed + builds, recoveryDurationMs: spent });
    return { builds, locks: freed };
  }

  #close(tx: Tx, report: number, ending: Ending): StoredReport | { left: Left[] } | null {
    const { by, jobsPending: pending } = ending;
    const row = this.#reports.row(report);
    if (row?.state !== "running" || row.owner !== by) return null;
    const left = this.#reports.left(report);
    if (left.length > 0) return { left };
    const { errors } = this.#reports.find(tx, report, ending);
    const ended = this.#reports.end(tx, report, { by, state: endedAs(errors), pending });
    this.#record(tx, `recovery.${endedAs(errors)}`, ending.asked ?? RECOVERY, { before: null, report: ended });
    return ended;
  }

  #record(tx: Tx, action: string, by: string, { before, report }: { before: object | null; report: StoredReport }): void {
    const { audit, events } = this.#parts;
    const subject = recoverySubject(report.id);
    const { id, state } = report;
    runSync(audit.add(tx, { by, action, subject, before, after: { state, ...reportOf(report) } }));
    events.act(tx, action, subject, { recovery: id, ...reportOf(report) });
  }

  #inHandOf(process: ProcessId): number {
    return (this.#inHand.row(process) as [number])[0];
  }
}
