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
import { ADDED, COUNTED, errorsOf, REPORT_COLUMNS, type ReportRow, TOTALLED, toReport, toTotals } from "../report-row.ts";
import type { Life } from "../processes.ts";
import { listOf, type Rows, type Value } from "./driver.ts";
import type { Tx } from "./transaction.ts";

const COUNTS = Object.keys(COUNTED) as (keyof RecoveryCounts)[];

type Statements =
  | "running"
  | "byId"
  | "add"
  | "own"
  | "count"
  | "find"
  | "name"
  | "named"
  | "left"
  | "names"
  | "end"
  | "addUp"
  | "totals"
  | "trim"
  | "trimNames"
  | "failed"
  | "acknowledge"
  | "all"
  | "ended"
  | "open";

/** The tables of what recoveries have done, and of whom they were about. */
export class Reports {
  readonly #sql: Record<Statements, string>;

  constructor(s: string) {
    const read = `select ${REPORT_COLUMNS.join(", ")} from ${s}.recoveries`;
    const sums = COUNTS.map((name, i) => `${COUNTED[name]} = ${COUNTED[name]} + $${i + 3}::bigint`);
    this.#sql = {
      // By recoveries_running.
      running: `${read} where state = 'running'`,
      byId: `${read} where id = $1`,
      add: `
        insert into ${s}.recoveries (state, owner, begun_at, recovered_at) values ('running', $1, $2::bigint, $2::bigint) returning id`,
      own: `update ${s}.recoveries set owner = $2 where id = $1 and state = 'running'`,
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
      names: `
        select 1 from ${s}.recoveries as report
        where id = $1 and state = 'running'
          and exists (select 1 from ${s}.recovery_processes where recovery = report.id and process = $2)
          and exists (select 1 from ${s}.processes where id = $2)`,
      end: `
        update ${s}.recoveries set state = $3, owner = null, pending = $4 where id = $1 and state = 'running' and owner = $2`,
      // Nobody else writes there, and it comes last: whoever waits for it is waited for by nobody.
      addUp: `
        insert into ${s}.report_totals as total (id, ${TOTALLED.join(", ")})
        select 1, 1, ${Object.values(COUNTED).join(", ")}, coalesce(commits_missing, 0) from ${s}.recoveries where id = $1
        on conflict (id) do update set ${ADDED}`,
      // By recoveries_failed, and over the reports that are kept, which are a thousand at most.
      totals: `
        select ${TOTALLED.join(", ")}, (select count(*) from ${s}.recoveries where state = 'failed'),
          (select count(*) from ${s}.recoveries where state in ('failed', 'acknowledged'))
        from (select) as always left join ${s}.report_totals on id = 1`,
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
      open: `${read} where state in ('running', 'failed') order by id desc limit $1`,
    };
  }

  /** The one that is under way. */
  async running(rows: Rows): Promise<ReportRow | undefined> {
    return (await this.#rows(rows, this.#sql.running))[0];
  }

  async row(rows: Rows, id: number): Promise<ReportRow | undefined> {
    return (await this.#rows(rows, this.#sql.byId, id))[0];
  }

  failed(rows: Rows): Promise<ReportRow[]> {
    return this.#rows(rows, this.#sql.failed);
  }

  async list(rows: Rows, which: "all" | "ended" | "open", limit: number): Promise<StoredReport[]> {
    return this.#toReports(rows, await this.#rows(rows, this.#sql[which], limit));
  }

  async totals(rows: Rows): Promise<ReportTotals> {
    const [row] = await rows<(number | null)[]>(this.#sql.totals);
    return toTotals(row && Object.fromEntries([...TOTALLED, "open", "failed"].map((column, i) => [column, row[i]])));
  }

  async see(rows: Rows, id: number): Promise<StoredReport> {
    const [report] = await this.#toReports(rows, [(await this.row(rows, id)) as ReportRow]);
    return report as StoredReport;
  }

  async open(tx: Tx, by: ProcessId): Promise<number> {
    const [[id]] = (await tx.rows<[number]>(this.#sql.add, by, await tx.now())) as [[number]];
    tx.wrote();
    return id;
  }

  async own(tx: Tx, id: number, owner: ProcessId | null): Promise<void> {
    await tx.rows(this.#sql.own, id, owner);
    tx.wrote();
  }

  /** False: he stands there already. */
  async name(tx: Tx, report: number, { id, life }: { id: ProcessId; life: Life }): Promise<boolean> {
    const isNew = (await tx.rows(this.#sql.name, report, id, life)).length > 0;
    if (isNew) tx.wrote();
    return isNew;
  }

  /** Named, and not buried yet. */
  async left(rows: Rows, report: number): Promise<Left[]> {
    const left = await rows<[ProcessId, Life, number, string, string]>(this.#sql.left, report);
    return left.map(([id, life, pid, host, program]) => ({ id, life, pid, host, program }));
  }

  /** It is under way, and this process is to be buried: else somebody else has done it. */
  async names(rows: Rows, report: number, process: ProcessId): Promise<boolean> {
    return (await rows(this.#sql.names, report, process)).length > 0;
  }

  async count(tx: Tx, id: number, counts: Partial<RecoveryCounts>): Promise<void> {
    await tx.rows(this.#sql.count, id, tx.at, ...COUNTS.map((name) => counts[name] ?? 0));
    tx.wrote();
  }

  /** Added to what was found before: all of it. */
  async find(tx: Tx, id: number, findings: Partial<Findings>): Promise<Findings> {
    const row = (await this.row(tx.rows, id)) as ReportRow;
    const { wal_frames: walFramesReplayed, commits_missing: commitsMissing } = row;
    const before = addFindings(NO_FINDINGS, { errors: errorsOf(row), walFramesReplayed, commitsMissing });
    const found = addFindings(before, findings);
    await tx.rows(this.#sql.find, id, JSON.stringify(found.errors), found.commitsMissing, found.walFramesReplayed);
    tx.wrote();
    return found;
  }

  async end(tx: Tx, id: number, ending: { by: ProcessId; state: ReportState; pending: number }): Promise<StoredReport> {
    await tx.rows(this.#sql.end, id, ending.by, ending.state, ending.pending);
    await tx.rows(this.#sql.addUp, id);
    tx.wrote();
    const before = id - REPORTS_KEPT;
    if (before > 0 && (await tx.rows(this.#sql.trim, before)).length > 0) await tx.rows(this.#sql.trimNames, before);
    return this.see(tx.rows, id);
  }

  async acknowledge(tx: Tx, id: number, by: string): Promise<StoredReport> {
    await tx.rows(this.#sql.acknowledge, id, by, await tx.now());
    tx.wrote();
    return this.see(tx.rows, id);
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

  async #rows(rows: Rows, text: string, ...values: Value[]): Promise<ReportRow[]> {
    const found = await rows<unknown[]>(text, ...values);
    return found.map((row) => Object.fromEntries(REPORT_COLUMNS.map((name, i) => [name, row[i]])) as unknown as ReportRow);
  }
}
