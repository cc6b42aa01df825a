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
import { reclaimedOf } from "../../core/retry.ts";
import type { BuildRow } from "../builds.ts";
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
import type { Life } from "../store.ts";
import type { Access } from "./builds/access.ts";
import type { Audit } from "./audit.ts";
import { listOf, type Rows, type Value } from "./driver.ts";
import type { Events } from "./events.ts";
import type { Healing } from "./healing.ts";
import type { Locks } from "./locks.ts";
import type { Processes } from "./processes.ts";
import type { Settle } from "./settle.ts";
import type { Tx } from "./transaction.ts";

const COUNTS = Object.keys(COUNTED) as (keyof RecoveryCounts)[];

interface Parts {
  settle: Settle;
  events: Events;
  healing: Healing;
  locks: Locks;
  processes: Processes;
  audit: Audit;
  /** The builds that a process leads, and the turn in which they are moved and the audit is written. */
  led: {
    act<T>(operation: "recover" | "bury" | "report" | "acknowledge", run: (tx: Tx) => Promise<T>): Promise<T>;
    crash(tx: Tx, holder: ProcessId, reason: BuildReason): Promise<BuildRow[]>;
    ids(rows: Rows, holder: ProcessId): Promise<string[]>;
  };
}

/** Burials, and the reports of them, on a PostgreSQL server. Reports are opened and ended in the turn of builds: one at a time. */
export class Recoveries implements RecoveryStore {
  readonly #access: Access;
  readonly #parts: Parts;
  readonly #sql: Record<
    | "running"
    | "byId"
    | "add"
    | "own"
    | "count"
    | "find"
    | "name"
    | "named"
    | "left"
    | "entered"
    | "inHand"
    | "leases"
    | "open"
    | "end"
    | "trim"
    | "trimNames"
    | "failed"
    | "acknowledge"
    | "all"
    | "ended"
    | "unended",
    string
  >;

  constructor(s: string, parts: Parts, access: Access) {
    this.#access = access;
    this.#parts = parts;
    const read = `select ${REPORT_COLUMNS.join(", ")} from ${s}.recoveries`;
    const sums = COUNTS.map((name, i) => `${COUNTED[name]} = ${COUNTED[name]} + $${i + 3}::bigint`);
    this.#sql = {
      // By recoveries_running.
      running: `${read} where state = 'running'`,
      byId: `${read} where id = $1`,
      add: `
        insert into ${s}.recoveries (state, owner, begun_at, recovered_at) values ('running', $1, $2::bigint, $2::bigint) returning id`,
      own: `update ${s}.recoveries set owner = $2 where id = $1 and state = 'running' returning 1`,
      // It comes last in its transaction: what is waited for here waits for nothing.
      count: `
        update ${s}.recoveries set ${sums.join(", ")}, recovered_at = ${s}.clock($2) where id = $1 and state = 'running'`,
      find: `update ${s}.recoveries set errors = $2, commits_missing = $3, wal_frames = $4 where id = $1`,
      name: `
        insert into ${s}.recovery_processes (recovery, process, life, pid, host, program, started_at)
        select $1, id, $3, pid, host, program, started_at from ${s}.processes where id = $2 on conflict do nothing returning 1`,
      named: `
        select recovery, host, pid, program, started_at from ${s}.recovery_processes
        where recovery = any($1::bigint[]) order by recovery, process`,
      left: `
        select process, life, pid, host, program from ${s}.recovery_processes as dead
        where recovery = $1 and exists (select 1 from ${s}.processes where id = dead.process) order by process`,
      entered: `select id from ${s}.processes where id = any($1::bigint[])`,
      inHand: `select coalesce(sum(at_work), 0)::bigint from ${s}.claims where holder = any($1::bigint[])`,
      leases: `select key, fence, expires_at from ${s}.running where holder = $1 order by expires_at, key limit $2`,
      // Whether a report is under way in which this process is named: else somebody else has ended it, and the process with it.
      open: `
        select 1 from ${s}.recoveries as report
        where id = $1 and state = 'running'
          and exists (select 1 from ${s}.recovery_processes where recovery = report.id and process = $2)
          and exists (select 1 from ${s}.processes where id = $2)`,
      end: `
        update ${s}.recoveries set state = $3, owner = null, pending = $4 where id = $1 and state = 'running' and owner = $2 returning 1`,
      trim: `delete from ${s}.recoveries where id <= $1 and state in ('completed', 'acknowledged') returning 1`,
      trimNames: `
        delete from ${s}.recovery_processes
        where recovery <= $1 and recovery not in (select id from ${s}.recoveries where id <= $1)`,
      // By recoveries_failed.
      failed: `${read} where state = 'failed' order by id`,
      acknowledge: `
        update ${s}.recoveries set state = 'acknowledged', acknowledged_by = $2, acknowledged_at = $3
        where id = $1 and state = 'failed'`,
      all: `${read} order by id desc limit $1`,
      ended: `${read} where state <> 'running' order by id desc limit $1`,
      unended: `${read} where state in ('running', 'failed') order by id desc limit $1`,
    };
  }

  /** Asked at every opening, mostly for nothing: then nothing is written, and nobody's turn is taken. */
  async begin(found: Found): Promise<Recovering | null> {
    if (!(await this.#isWorthwhile(found))) return null;
    return this.#parts.led.act("recover", (tx) => this.#begin(tx, found));
  }

  takeBack(burial: Burial & { as: "crashed" | "interrupted"; limit: number }): Promise<TakenBack> {
    return this.#access.write("reclaim", (tx) => this.#takeBack(tx, burial));
  }

  bury(burial: Burial & { reason: BuildReason }): Promise<Buried | null> {
    return this.#parts.led.act("bury", (tx) => this.#bury(tx, burial));
  }

  close(report: number, ending: Ending): Promise<StoredReport | { left: Left[] } | null> {
    return this.#parts.led.act("report", (tx) => this.#close(tx, report, ending));
  }

  handOn(report: number, owner: ProcessId): Promise<boolean> {
    return this.#parts.led.act("report", async (tx) => {
      const row = await this.#row(tx.rows, report);
      if (row?.state !== "running" || row.owner !== owner) return false;
      await tx.rows(this.#sql.own, report, null);
      tx.wrote();
      return true;
    });
  }

  acknowledge(): Promise<StoredReport[]> {
    const by = this.#parts.audit.actor ?? UNNAMED;
    return this.#parts.led.act("acknowledge", async (tx) => {
      const acknowledged: StoredReport[] = [];
      for (const row of await this.#rows(tx.rows, this.#sql.failed)) {
        await tx.rows(this.#sql.acknowledge, row.id, by, await tx.now());
        const report = await this.#see(tx.rows, row.id);
        await this.#record(tx, "recovery.acknowledged", by, { before: { state: row.state }, report });
        acknowledged.push(report);
      }
      return acknowledged;
    });
  }

  async reports({ limit, which = "ended" }: { limit: number; which?: "ended" | "all" | "open" }): Promise<StoredReport[]> {
    const { read } = this.#access;
    const rows = await this.#rows(read, this.#sql[which === "open" ? "unended" : which], limit);
    return this.#toReports(read, rows);
  }

  async shortenLog(): Promise<void> {}

  async preview(dead: readonly ProcessId[]): Promise<RecoveryPreview> {
    const { read, at } = this.#access;
    const { led, locks } = this.#parts;
    const [jobs, builds, held] = await Promise.all([
      this.#inHandOf(read, dead),
      Promise.all(dead.map((id) => led.ids(read, id))),
      locks.ofProcesses(read, at(), dead),
    ]);
    return { jobs, builds: builds.flat(), locks: held };
  }

  async #isWorthwhile({ dead, by, findings }: Found): Promise<boolean> {
    if (dead.length > 0 || isWorthReporting(findings)) return true;
    const { read } = this.#access;
    const [open] = await this.#rows(read, this.#sql.running);
    if (open === undefined) return false;
    const entered = await this.#entered(read, open.owner === null ? [] : [open.owner]);
    return ownerOf(open, by, (owner) => !entered.has(owner)) === by;
  }

  async #begin(tx: Tx, found: Found): Promise<Recovering | null> {
    const [open] = await this.#rows(tx.rows, this.#sql.running);
    const asked = [...found.dead.map(({ id }) => id as number), ...(open?.owner == null ? [] : [open.owner as number])];
    const entered = await this.#entered(tx.rows, asked);
    const dead = found.dead.filter(({ id }) => entered.has(id));
    if (dead.length === 0 && !isWorthReporting(found.findings) && open === undefined) return null;
    const isGone = (owner: number) => dead.some(({ id }) => id === owner) || !entered.has(owner);
    const owner = open === undefined ? found.by : ownerOf(open, found.by, isGone);
    const report = open?.id ?? (await this.#open(tx, found.by));
    await tx.rows(this.#sql.own, report, owner);
    for (const { id, life } of dead) {
      if ((await tx.rows(this.#sql.name, report, id, life)).length === 0) continue;
      await this.#counts(tx, report, { jobsRunningBeforeCrash: await this.#inHandOf(tx.rows, [id]) });
    }
    if (found.findings !== undefined) await this.#foundOut(tx, report, found.findings);
    tx.wrote();
    return { report, owned: owner === found.by, left: await this.#leftOf(tx.rows, report) };
  }

  async #open(tx: Tx, by: ProcessId): Promise<number> {
    const [[id]] = (await tx.rows<[number]>(this.#sql.add, by, await tx.now())) as [[number]];
    return id;
  }

  async #takeBack(tx: Tx, burial: Burial & { as: "crashed" | "interrupted"; limit: number }): Promise<TakenBack> {
    const { report, process, as: kind, limit, spent, cause } = burial;
    if (!(await this.#isOpen(tx, burial))) return NOTHING_BACK;
    const { settle, locks, healing } = this.#parts;
    const leases = await tx.rows<[JobKey, Fence, number]>(this.#sql.leases, process, limit);
    const ended = await settle.end(
      tx,
      leases.map(([job, fence, expiresAt]) => ({ job, fence, expiresAt, outcome: { kind } })),
    );
    const over = leases.filter((_, i) => ended[i] !== null);
    for (const [job, fence] of over) tx.ended(job, fence);
    const reclaimed = reclaimedOf(ended.flatMap((one) => (one === null ? [] : [one.next])));
    if (reclaimed.entries === 0) return NOTHING_BACK;
    const freed = await locks.freeBound(
      tx,
      over.map(([job]) => job),
    );
    await healing.record(tx, cause, { ...reclaimed, locks: freed });
    await this.#counts(tx, report, { ...jobCounts(reclaimed), locksReleased: freed, recoveryDurationMs: spent });
    return { ...reclaimed, locks: freed };
  }

  async #bury(tx: Tx, burial: Burial & { reason: BuildReason }): Promise<Buried | null> {
    const { report, process, reason, spent, cause } = burial;
    if (!(await this.#isOpen(tx, burial))) return { builds: 0, locks: 0 };
    if ((await this.#inHandOf(tx.rows, [process])) > 0) return null;
    const { processes, locks, led, healing } = this.#parts;
    const builds = (await led.crash(tx, process, reason)).length;
    const freed = await locks.freeOf(tx, process);
    if (!(await processes.remove(tx, process))) throw new Error(`Process ${process} is dead, and cannot be struck off.`);
    if (freed > 0) await healing.record(tx, cause, { ...NOTHING_BACK, locks: freed });
    await this.#counts(tx, report, { buildsCrashed: builds, locksReleased: freed + builds, recoveryDurationMs: spent });
    return { builds, locks: freed };
  }

  async #close(tx: Tx, report: number, ending: Ending): Promise<StoredReport | { left: Left[] } | null> {
    const { by, jobsPending } = ending;
    const row = await this.#row(tx.rows, report);
    if (row?.state !== "running" || row.owner !== by) return null;
    const left = await this.#leftOf(tx.rows, report);
    if (left.length > 0) return { left };
    const { errors } = await this.#foundOut(tx, report, ending);
    await tx.rows(this.#sql.end, report, by, endedAs(errors), jobsPending);
    tx.wrote();
    const before = report - REPORTS_KEPT;
    if (before > 0 && (await tx.rows(this.#sql.trim, before)).length > 0) await tx.rows(this.#sql.trimNames, before);
    const ended = await this.#see(tx.rows, report);
    await this.#record(tx, `recovery.${endedAs(errors)}`, RECOVERY, { before: null, report: ended });
    return ended;
  }

  async #record(
    tx: Tx,
    action: string,
    by: string,
    { before, report }: { before: object | null; report: StoredReport },
  ): Promise<void> {
    const { audit, events } = this.#parts;
    const subject = recoverySubject(report.id);
    const { id, state } = report;
    await audit.add(tx, { by, action, subject, before, after: { state, ...reportOf(report) } });
    await events.act(tx, action, subject, { recovery: id, ...reportOf(report) });
  }

  /** Added to what was found before. */
  async #foundOut(tx: Tx, report: number, findings: Partial<Findings>): Promise<Findings> {
    const row = (await this.#row(tx.rows, report)) as ReportRow;
    const { wal_frames: walFramesReplayed, commits_missing: commitsMissing } = row;
    const before = addFindings(NO_FINDINGS, { errors: errorsOf(row), walFramesReplayed, commitsMissing });
    const found = addFindings(before, findings);
    await tx.rows(this.#sql.find, report, JSON.stringify(found.errors), found.commitsMissing, found.walFramesReplayed);
    return found;
  }

  async #counts(tx: Tx, id: number, counts: Partial<RecoveryCounts>): Promise<void> {
    await tx.rows(this.#sql.count, id, tx.at, ...COUNTS.map((name) => counts[name] ?? 0));
    tx.wrote();
  }

  async #isOpen(tx: Tx, { report, process }: Burial): Promise<boolean> {
    return (await tx.rows(this.#sql.open, report, process)).length > 0;
  }

  async #entered(rows: Rows, ids: readonly number[]): Promise<Set<number>> {
    return new Set(ids.length === 0 ? [] : (await rows<[number]>(this.#sql.entered, listOf(ids))).map(([id]) => id));
  }

  async #inHandOf(rows: Rows, processes: readonly ProcessId[]): Promise<number> {
    const [[jobs]] = (await rows<[number]>(this.#sql.inHand, listOf(processes))) as [[number]];
    return jobs;
  }

  async #leftOf(rows: Rows, report: number): Promise<Left[]> {
    const left = await rows<[ProcessId, Life, number, string, string]>(this.#sql.left, report);
    return left.map(([id, life, pid, host, program]) => ({ id, life, pid, host, program }));
  }

  async #see(rows: Rows, id: number): Promise<StoredReport> {
    const [report] = await this.#toReports(rows, [(await this.#row(rows, id)) as ReportRow]);
    return report as StoredReport;
  }

  async #toReports(rows: Rows, reports: readonly ReportRow[]): Promise<StoredReport[]> {
    if (reports.length === 0) return [];
    const named = await rows<[number, string, number, string, number]>(this.#sql.named, listOf(reports.map(({ id }) => id)));
    const byReport = Map.groupBy(named, ([report]) => report);
    return reports.map((row) =>
      toReport(
        row,
        (byReport.get(row.id) ?? []).map(([, host, pid, program, startedAt]): CrashedProcess => ({
          host,
          pid,
          program,
          startedAt,
        })),
      ),
    );
  }

  async #row(rows: Rows, id: number): Promise<ReportRow | undefined> {
    return (await this.#rows(rows, this.#sql.byId, id))[0];
  }

  async #rows(rows: Rows, text: string, ...values: Value[]): Promise<ReportRow[]> {
    const found = await rows<unknown[]>(text, ...values);
    return found.map((row) => Object.fromEntries(REPORT_COLUMNS.map((name, i) => [name, row[i]])) as unknown as ReportRow);
  }
}
