import { RECOVERY, UNNAMED } from "../../core/recovery/audit.ts";
import type { BuildReason } from "../../core/pipelines/build.ts";
import type { Fence, JobKey, ProcessId } from "../../core/text/ids.ts";
import { endedAs, isWorthReporting, jobCounts, ownerOf, recoverySubject } from "../../core/recovery/recovery-report.ts";
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
import type { Access, Reads, Tx } from "./access.ts";
import type { Audit } from "./audit.ts";
import type { Builds } from "./builds/builds.ts";
import type { Dialect } from "./dialect.ts";
import type { Locks } from "./locks.ts";
import type { Events, Processes, Settle } from "./parts.ts";
import { endLeases } from "./reclaim.ts";
import type { RecoveryLog } from "./recovery-log.ts";
import { Reports } from "./reports.ts";
import { type Script, together, wait } from "./script.ts";

interface Parts {
  settle: Settle;
  events: Events;
  recoveryLog: RecoveryLog;
  locks: Locks;
  processes: Processes;
  audit: Audit;
  builds: Builds;
  log: WriteAheadLog;
}

/** The write-ahead log of a SQLite file. A PostgreSQL server looks after its own. */
export interface WriteAheadLog {
  /** As it was when this handle opened the file. */
  atOpening(): { bytes: number; frames: number };
  size(): number;
  checkpoint: RecoveryStore["checkpoint"];
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

  /** Called at every opening, mostly for nothing: then nothing is written. */
  async begin(found: Found): Promise<Recovering | null> {
    if (!(await this.#access.read((db) => this.#isWorthwhile(db, found)))) return null;
    return this.#write("recover", (tx) => this.#begin(tx, found));
  }

  *#isWorthwhile(db: Reads, { dead, by, findings }: Found): Script<boolean> {
    if (dead.length > 0 || isWorthReporting(findings)) return true;
    const open = yield* this.#reports.running(db);
    if (open === undefined) return false;
    const registered = yield* this.#registered(db, open.owner === null ? [] : [open.owner]);
    return ownerOf(open, by, (owner) => !registered.has(owner)) === by;
  }

  *#begin(tx: Tx, found: Found): Script<Recovering | null> {
    const reports = this.#reports;
    const { log } = this.#parts;
    const open = yield* reports.running(tx);
    const asked = [...found.dead.map(({ id }) => id as number), ...(open?.owner == null ? [] : [open.owner as number])];
    const registered = yield* this.#registered(tx, asked);
    const dead = found.dead.filter(({ id }) => registered.has(id));
    if (dead.length === 0 && !isWorthReporting(found.findings) && open === undefined) return null;
    const isGone = (owner: number) => dead.some(({ id }) => id === owner) || !registered.has(owner);
    const owner = open === undefined ? found.by : ownerOf(open, found.by, isGone);
    const met = found.opening ? log.atOpening() : { bytes: log.size(), frames: 0 };
    // If other processes had the file open, they have replayed its log.
    const report = open?.id ?? (yield* reports.open(tx, found.by, found.alone ? met : { ...met, frames: 0 }));
    yield* reports.setOwner(tx, report, owner as ProcessId);
    for (const one of dead) {
      if (!(yield* reports.name(tx, report, one))) continue;
      yield* reports.count(tx, report, { jobsRunningBeforeCrash: yield* this.#heldBy(tx, [one.id]) });
    }
    if (found.findings !== undefined) yield* reports.find(tx, report, found.findings);
    return { report, owned: owner === found.by, left: yield* reports.left(tx, report) };
  }

  takeBack(burial: Burial & { as: "crashed" | "interrupted"; limit: number }): Promise<TakenBack> {
    return this.#access.write("reclaim", (tx) => this.#takeBack(tx, burial));
  }

  *#takeBack(tx: Tx, burial: Burial & { as: "crashed" | "interrupted"; limit: number }): Script<TakenBack> {
    const { report, process, as: kind, limit, spent, cause } = burial;
    if (!(yield* this.#reports.names(tx, report, process))) return NOTHING_BACK;
    const { settle, locks, recoveryLog } = this.#parts;
    const leases = yield* tx.all<{ job: JobKey; fence: Fence; expiresAt: number }>(this.#sql.leases, { process, limit });
    const over = leases.map(({ job, fence, expiresAt }) => ({ job, fence, expiresAt, kind }));
    const { ended, reclaimed } = yield* endLeases(tx, settle, over);
    if (reclaimed.entries === 0) return NOTHING_BACK;
    const freed = yield* locks.freeBound(tx, ended);
    yield* recoveryLog.record(tx, cause, { ...reclaimed, locks: freed });
    yield* this.#reports.count(tx, report, { ...jobCounts(reclaimed), locksReleased: freed, recoveryDurationMs: spent });
    return { ...reclaimed, locks: freed };
  }

  async bury(burial: Burial & { reason: BuildReason }): Promise<Buried | null> {
    // What proves that a process lives is removed after the process is unregistered, and not before.
    const forget = this.#parts.processes.forgetting?.(burial.process);
    const buried = await this.#write("bury", (tx) => this.#bury(tx, burial));
    if (buried !== null) forget?.();
    return buried;
  }

  *#bury(tx: Tx, burial: Burial & { reason: BuildReason }): Script<Buried | null> {
    const { report, process, reason, spent, cause } = burial;
    if (!(yield* this.#reports.names(tx, report, process))) return { builds: 0, locks: 0 };
    if ((yield* this.#heldBy(tx, [process])) > 0) return null;
    const { processes, locks, recoveryLog } = this.#parts;
    const builds = (yield* this.#parts.builds.crash(tx, process, reason)).length;
    const freed = yield* locks.freeOf(tx, process);
    if (!(yield* wait(processes.remove(tx, process)))) {
      throw new Error(`Process ${process} is dead, and cannot be unregistered.`);
    }
    if (freed > 0) yield* recoveryLog.record(tx, cause, { ...NOTHING_BACK, locks: freed });
    const counts = { buildsCrashed: builds, locksReleased: freed + builds, recoveryDurationMs: spent };
    yield* this.#reports.count(tx, report, counts);
    return { builds, locks: freed };
  }

  close(report: number, ending: Ending): Promise<StoredReport | { left: Left[] } | null> {
    return this.#write("report", (tx) => this.#close(tx, report, ending));
  }

  *#close(tx: Tx, report: number, ending: Ending): Script<StoredReport | { left: Left[] } | null> {
    const { by, jobsPending: pending } = ending;
    if (!(yield* this.#isOwnedBy(tx, report, by))) return null;
    const left = yield* this.#reports.left(tx, report);
    if (left.length > 0) return { left };
    const { errors } = yield* this.#reports.find(tx, report, ending);
    const ended = yield* this.#reports.end(tx, report, { by, state: endedAs(errors), pending });
    yield* this.#record(tx, `recovery.${endedAs(errors)}`, ending.asked ?? RECOVERY, { before: null, report: ended });
    return ended;
  }

  transfer(report: number, owner: ProcessId): Promise<boolean> {
    return this.#write("report", (tx) => this.#transfer(tx, report, owner));
  }

  *#transfer(tx: Tx, report: number, owner: ProcessId): Script<boolean> {
    if (!(yield* this.#isOwnedBy(tx, report, owner))) return false;
    return yield* this.#reports.setOwner(tx, report, null);
  }

  acknowledge(): Promise<StoredReport[]> {
    return this.#write("acknowledge", (tx) => this.#acknowledge(tx, this.#parts.audit.actor ?? UNNAMED));
  }

  *#acknowledge(tx: Tx, by: string): Script<StoredReport[]> {
    const acknowledged: StoredReport[] = [];
    for (const { id, state } of yield* this.#reports.failed(tx)) {
      const report = yield* this.#reports.acknowledge(tx, id, by);
      yield* this.#record(tx, "recovery.acknowledged", by, { before: { state }, report });
      acknowledged.push(report);
    }
    return acknowledged;
  }

  reports({ limit, which = "ended" }: { limit: number; which?: "ended" | "all" | "open" }): Promise<StoredReport[]> {
    return this.#access.read((db) => this.#reports.list(db, which, limit));
  }

  totals(): Promise<ReportTotals> {
    return this.#access.read((db) => this.#reports.totals(db));
  }

  checkpoint(how: { alone: boolean } | { waitMs: number }): Promise<void> {
    return this.#parts.log.checkpoint(how);
  }

  preview(dead: readonly ProcessId[]): Promise<RecoveryPreview> {
    return this.#access.read((db) => this.#preview(db, dead));
  }

  *#preview(db: Reads, dead: readonly ProcessId[]): Script<RecoveryPreview> {
    const { locks, builds } = this.#parts;
    const led = dead.map((id) => builds.ledBy(db, id));
    const [jobs, held, ...ids] = yield* together(this.#heldBy(db, dead), locks.ofProcesses(db, dead), ...led);
    return { jobs, builds: ids.flat(), locks: held };
  }

  #write<T>(operation: "recover" | "bury" | "report" | "acknowledge", script: (tx: Tx) => Script<T>): Promise<T> {
    return this.#access.write(operation, script, { builds: true });
  }

  *#record(tx: Tx, action: string, by: string, of: { before: object | null; report: StoredReport }): Script<void> {
    const { audit, events } = this.#parts;
    const { before, report } = of;
    const { id, state } = report;
    const subject = recoverySubject(id);
    yield* audit.add(tx, { by, action, subject, before, after: { state, ...reportOf(report) } });
    yield* wait(events.act(tx, action, subject, { recovery: id, ...reportOf(report) }));
  }

  *#isOwnedBy(db: Reads, report: number, owner: ProcessId): Script<boolean> {
    const row = yield* this.#reports.row(db, report);
    return row?.state === "running" && row.owner === owner;
  }

  *#registered(db: Reads, ids: readonly number[]): Script<Set<number>> {
    if (ids.length === 0) return new Set();
    return new Set((yield* db.all<{ id: number }>(this.#sql.registered, { ids })).map(({ id }) => id));
  }

  /** How many jobs these processes hold. */
  *#heldBy(db: Reads, processes: readonly ProcessId[]): Script<number> {
    return ((yield* db.get<{ jobs: number }>(this.#sql.heldBy, { processes })) as { jobs: number }).jobs;
  }
}

function statements(dialect: Dialect) {
  return {
    registered: `select id from ${dialect.table("processes")} where ${dialect.in("id", "bigint", ":ids")}`,
    heldBy: `select ${dialect.heldBy(":processes")} as jobs`,
    leases: `
      select key as job, fence, expires_at as "expiresAt" from ${dialect.running} as running
      where holder = :process order by expires_at, key limit :limit`,
  };
}
