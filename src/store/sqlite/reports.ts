import type { ProcessId } from "../../core/ids.ts";
import {
  addFindings,
  type CrashedProcess,
  type Findings,
  NO_FINDINGS,
  type RecoveryCounts,
  type ReportState,
} from "../../core/recovery-report.ts";
import { type Left, REPORTS_KEPT, type ReportTotals, type StoredReport } from "../recoveries.ts";
import {
  ADDED,
  COUNTED,
  errorsOf,
  REPORT_COLUMNS,
  type ReportRow,
  TOTALLED,
  toReport,
  type TotalsRow,
  toTotals,
} from "../report-row.ts";
import type { Life } from "../processes.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";

/** The tables of what recoveries have done, and of whom they were about. */
export class Reports {
  readonly #running: Statement;
  readonly #byId: Statement;
  readonly #add: Statement;
  readonly #own: Statement;
  readonly #count: Statement;
  readonly #find: Statement;
  readonly #name: Statement;
  readonly #named: Statement;
  readonly #left: Statement;
  readonly #names: Statement;
  readonly #end: Statement;
  readonly #addUp: Statement;
  readonly #totals: Statement;
  readonly #trim: Statement;
  readonly #trimNames: Statement;
  readonly #failed: Statement;
  readonly #acknowledge: Statement;
  readonly #listed: Record<"all" | "ended" | "open", Statement>;

  constructor(db: Connection) {
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
    this.#names = db.prepare(
      `select 1 from holdfast_recoveries as report
       where id = :report and state = 'running'
         and exists (select 1 from holdfast_recovery_processes where recovery = report.id and process = :process)
         and exists (select 1 from holdfast_processes where id = :process)`,
    );
    this.#end = db.prepare(
      `update holdfast_recoveries set state = :state, owner = null, pending = :pending
       where id = :id and state = 'running' and owner = :by`,
    );
    this.#addUp = db.prepare(
      `insert into holdfast_report_totals as total (id, ${TOTALLED.join(", ")})
       select 1, 1, ${Object.values(COUNTED).join(", ")}, coalesce(commits_missing, 0) from holdfast_recoveries where id = :id
       on conflict (id) do update set ${ADDED}`,
    );
    // By holdfast_recoveries_failed, and over the reports that are kept, which are a thousand at most.
    this.#totals = db.prepare(
      `select ${TOTALLED.join(", ")}, (select count(*) from holdfast_recoveries where state = 'failed') as open,
         (select count(*) from holdfast_recoveries where state in ('failed', 'acknowledged')) as failed
       from (select 1) left join holdfast_report_totals on id = 1`,
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

  /** The one that is under way. */
  running(): ReportRow | undefined {
    return this.#running.get<ReportRow>();
  }

  row(id: number): ReportRow | undefined {
    return this.#byId.get<ReportRow>({ id });
  }

  failed(): ReportRow[] {
    return this.#failed.all<ReportRow>();
  }

  list(which: "all" | "ended" | "open", limit: number): StoredReport[] {
    return this.#listed[which].all<ReportRow>({ limit }).map((row) => this.#toReport(row));
  }

  totals(): ReportTotals {
    return toTotals(this.#totals.get<TotalsRow>());
  }

  see(id: number): StoredReport {
    return this.#toReport(this.row(id) as ReportRow);
  }

  open(tx: Tx, by: ProcessId, log: { bytes: number; frames: number }): number {
    const { id } = this.#add.get<{ id: number }>({ by, now: tx.now, ...log }) as { id: number };
    tx.wrote();
    return id;
  }

  own(tx: Tx, id: number, owner: ProcessId | null): void {
    if (this.#own.runNamed({ id, owner }) > 0) tx.wrote();
  }

  /** False: he stands there already. */
  name(tx: Tx, report: number, { id, life }: { id: ProcessId; life: Life }): boolean {
    const isNew = this.#name.runNamed({ report, id, life }) > 0;
    if (isNew) tx.wrote();
    return isNew;
  }

  /** Named, and not buried yet. */
  left(report: number): Left[] {
    return this.#left.all<Left>({ report }).map((row) => Object.assign({}, row));
  }

  /** It is under way, and this process is to be buried: else somebody else has done it. */
  names(report: number, process: ProcessId): boolean {
    return this.#names.get({ report, process }) !== undefined;
  }

  count(tx: Tx, id: number, counts: Partial<RecoveryCounts>): void {
    const all = Object.keys(COUNTED).map((name) => [name, counts[name as keyof RecoveryCounts] ?? 0] as const);
    if (this.#count.runNamed({ ...Object.fromEntries(all), id, now: tx.now }) > 0) tx.wrote();
  }

  /** Added to what was found before: all of it. */
  find(tx: Tx, id: number, findings: Partial<Findings>): Findings {
    const row = this.row(id) as ReportRow;
    const { wal_frames: walFramesReplayed, commits_missing: commitsMissing } = row;
    const before = addFindings(NO_FINDINGS, { errors: errorsOf(row), walFramesReplayed, commitsMissing });
    const found = addFindings(before, findings);
    this.#find.runNamed({ id, ...found, errors: JSON.stringify(found.errors) });
    tx.wrote();
    return found;
  }

  end(tx: Tx, id: number, ending: { by: ProcessId; state: ReportState; pending: number }): StoredReport {
    if (this.#end.runNamed({ id, ...ending }) > 0) this.#addUp.runNamed({ id });
    const before = id - REPORTS_KEPT;
    if (before > 0 && this.#trim.runNamed({ before }) > 0) this.#trimNames.runNamed({ before });
    tx.wrote();
    return this.see(id);
  }

  acknowledge(tx: Tx, id: number, by: string): StoredReport {
    if (this.#acknowledge.runNamed({ id, by, now: tx.now }) > 0) tx.wrote();
    return this.see(id);
  }

  #toReport(row: ReportRow): StoredReport {
    return toReport(row, this.#named.all<CrashedProcess>({ report: row.id }));
  }
}
