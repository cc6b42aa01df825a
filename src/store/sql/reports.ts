import type { Reclaimed } from "../../core/jobs/retry.ts";
import {
  addFindings,
  type CrashedProcess,
  type Findings,
  NO_COUNTS,
  NO_FINDINGS,
  type RecoveryCounts,
  type ReportState,
  wasSuccessful,
} from "../../core/recovery/recovery-report.ts";
import type { ProcessId } from "../../core/text/ids.ts";
import type { Life } from "../processes.ts";
import { COUNTED, type Left, type ReclaimTotals, REPORTS_KEPT, type ReportTotals, type StoredReport } from "../recoveries.ts";
import { type Dialect, type Events, type Reads, type Script, type Tx, wait } from "./script.ts";

type ReportRow = Omit<StoredReport, "crashed" | "errors" | "wasSuccessful"> & { errors: string };

export class Reports {
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect) {
    this.#sql = statements(dialect);
  }

  running(db: Reads): Script<ReportRow | undefined> {
    return db.get<ReportRow>(this.#sql.running);
  }

  row(db: Reads, id: number): Script<ReportRow | undefined> {
    return db.get<ReportRow>(this.#sql.byId, { id });
  }

  failed(db: Reads): Script<ReportRow[]> {
    return db.all<ReportRow>(this.#sql.failed);
  }

  *list(db: Reads, which: "all" | "ended" | "open", limit: number): Script<StoredReport[]> {
    return yield* this.#toReports(db, yield* db.all<ReportRow>(this.#sql.listed[which], { limit }));
  }

  *totals(db: Reads): Script<ReportTotals> {
    return { ...((yield* db.get<ReportTotals>(this.#sql.totals)) as ReportTotals) };
  }

  *get(db: Reads, id: number): Script<StoredReport> {
    const [report] = yield* this.#toReports(db, [(yield* this.row(db, id)) as ReportRow]);
    return report as StoredReport;
  }

  *open(tx: Tx, by: ProcessId, log: { bytes: number; frames: number }): Script<number> {
    const [opened] = yield* tx.returning<{ id: number }>(this.#sql.open, { by, ...log });
    return (opened as { id: number }).id;
  }

  setOwner(tx: Tx, id: number, owner: ProcessId | null): Script<boolean> {
    return tx.run(this.#sql.setOwner, { id, owner });
  }

  name(tx: Tx, report: number, { id, life }: { id: ProcessId; life: Life }): Script<boolean> {
    return tx.run(this.#sql.name, { report, id, life });
  }

  *left(db: Reads, report: number): Script<Left[]> {
    return (yield* db.all<Left>(this.#sql.left, { report })).map((row) => Object.assign({}, row));
  }

  *names(db: Reads, report: number, process: ProcessId): Script<boolean> {
    return (yield* db.get(this.#sql.names, { report, process })) !== undefined;
  }

  count(tx: Tx, id: number, counts: Partial<RecoveryCounts>): Script<boolean> {
    return tx.run(this.#sql.count, { ...NO_COUNTS, ...counts, id });
  }

  *find(tx: Tx, id: number, findings: Partial<Findings>): Script<Findings> {
    const row = (yield* this.row(tx, id)) as ReportRow;
    const before = addFindings(NO_FINDINGS, { ...row, errors: JSON.parse(row.errors) as string[] });
    const found = addFindings(before, findings);
    yield* tx.run(this.#sql.find, { id, ...found, errors: JSON.stringify(found.errors) });
    return found;
  }

  *end(tx: Tx, id: number, ending: { by: ProcessId; state: ReportState; pending: number }): Script<StoredReport> {
    if (yield* tx.run(this.#sql.end, { id, ...ending })) yield* tx.run(this.#sql.addToTotals, { id });
    const before = id - REPORTS_KEPT;
    if (before > 0 && (yield* tx.run(this.#sql.trim, { before }))) yield* tx.run(this.#sql.trimNames, { before });
    return yield* this.get(tx, id);
  }

  *acknowledge(tx: Tx, id: number, by: string): Script<StoredReport> {
    yield* tx.run(this.#sql.acknowledge, { id, by });
    return yield* this.get(tx, id);
  }

  *#toReports(db: Reads, reports: readonly ReportRow[]): Script<StoredReport[]> {
    if (reports.length === 0) return [];
    const ids = reports.map(({ id }) => id);
    const named = yield* db.all<CrashedProcess & { recovery: number }>(this.#sql.named, { ids });
    const byReport = Map.groupBy(named, ({ recovery }) => recovery);
    return reports.map((row): StoredReport => {
      const crashed = (byReport.get(row.id) ?? []).map(({ host, pid, program, startedAt }) => ({
        host,
        pid,
        program,
        startedAt,
      }));
      const errors = JSON.parse(row.errors) as string[];
      return { ...row, crashed, errors, wasSuccessful: wasSuccessful(errors) };
    });
  }
}

function statements({ table, in: isIn }: Dialect) {
  const reports = table("recoveries");
  const named = table("recovery_processes");
  const processes = table("processes");
  const counts = Object.entries(COUNTED);
  const totals = ["reports", ...Object.values(COUNTED), "commits_missing"];
  const read = `
    select id, state, owner, begun_at as "begunAt", recovered_at as "recoveredAt",
      ${counts.map(([name, column]) => `${column} as "${name}"`).join(", ")}, pending as "jobsPending", wal_bytes as "walSizeBeforeRecoveryBytes", wal_frames as "walFramesReplayed",
      commits_missing as "commitsMissing", errors, acknowledged_by as "acknowledgedBy", acknowledged_at as "acknowledgedAt"
    from ${reports}`;
  const sums = counts.map(([name, column]) => `${column} = ${column} + cast(:${name} as bigint)`);
  const isRunning = "id = :id and state = 'running'";
  return {
    running: `${read} where state = 'running'`,
    byId: `${read} where id = :id`,
    open: `
      insert into ${reports} (state, owner, begun_at, recovered_at, wal_bytes, wal_frames)
      values ('running', :by, :now, :now, :bytes, :frames) returning id`,
    setOwner: `update ${reports} set owner = :owner where ${isRunning}`,
    // Runs last in its transaction, so that no transaction waits for one that waits for this row.
    count: `update ${reports} set ${sums.join(", ")}, recovered_at = :now where ${isRunning}`,
    find: `
      update ${reports} set errors = :errors, commits_missing = :commitsMissing, wal_frames = :walFramesReplayed where id = :id`,
    name: `
      insert into ${named} (recovery, process, life, pid, host, program, started_at)
      select :report, id, :life, pid, host, program, started_at from ${processes} where id = :id on conflict do nothing`,
    named: `
      select recovery, host, pid, program, started_at as "startedAt" from ${named}
      where ${isIn("recovery", "bigint", ":ids")} order by recovery, process`,
    left: `
      select process as id, life, pid, host, program, started_at as "startedAt" from ${named} as dead
      where recovery = :report and exists (select 1 from ${processes} where id = dead.process) order by process`,
    names: `
      select 1 from ${reports} as report
      where id = :report and state = 'running'
        and exists (select 1 from ${named} where recovery = report.id and process = :process)
        and exists (select 1 from ${processes} where id = :process)`,
    end: `update ${reports} set state = :state, owner = null, pending = :pending where ${isRunning} and owner = :by`,
    addToTotals: `
      insert into ${table("report_totals")} as total (id, ${totals.join(", ")})
      select 1, 1, ${Object.values(COUNTED).join(", ")}, coalesce(commits_missing, 0) from ${reports} where id = :id
      on conflict (id) do update set ${totals.map((column) => `${column} = total.${column} + excluded.${column}`).join(", ")}`,
    totals: `
      select coalesce(reports, 0) as reports, coalesce(commits_missing, 0) as "commitsMissing",
        ${counts.map(([name, column]) => `coalesce(${column}, 0) as "${name}"`).join(", ")},
        (select count(*) from ${reports} where state = 'failed') as open,
        (select count(*) from ${reports} where state in ('failed', 'acknowledged')) as failed
      from (select 1 as one) as always left join ${table("report_totals")} on id = 1`,
    trim: `delete from ${reports} where id <= :before and state in ('completed', 'acknowledged')`,
    trimNames: `
      delete from ${named} where recovery <= :before and recovery not in (select id from ${reports} where id <= :before)`,
    failed: `${read} where state = 'failed' order by id`,
    acknowledge: `
      update ${reports} set state = 'acknowledged', acknowledged_by = :by, acknowledged_at = :now
      where id = :id and state = 'failed'`,
    listed: {
      all: `${read} order by id desc limit :limit`,
      ended: `${read} where state <> 'running' order by id desc limit :limit`,
      open: `${read} where state in ('running', 'failed') order by id desc limit :limit`,
    },
  };
}

const KEPT_ROWS = 1_000;
const SHOWN_ROWS = 50;

type Logged = ReclaimTotals["log"][number];
interface TotalsRow extends Omit<Logged, "at"> {
  at: number | null;
  allEntries: number;
  allLocks: number;
  recoveredAt: number;
}

export class RecoveryLog {
  readonly #events: Events;
  readonly #sql: ReturnType<typeof logStatements>;

  constructor(dialect: Dialect, events: Events) {
    this.#events = events;
    this.#sql = logStatements(dialect);
  }

  *record(tx: Tx, cause: string, reclaimed: Reclaimed & { locks: number }): Script<void> {
    const { entries, quarantined, failed, locks } = reclaimed;
    const row = { cause, entries, quarantined, failed, locks };
    for (const sql of this.#sql.record.before) yield* tx.run(sql, row);
    const [logged] = yield* tx.returning<{ id: number }>(this.#sql.record.last, row);
    const { id } = logged as { id: number };
    yield* wait(this.#events.act(tx, "recovery.reclaimed", String(id), { cause, ...reclaimed }));
  }

  *totals(db: Reads): Script<ReclaimTotals> {
    const rows = yield* db.all<TotalsRow>(this.#sql.totals);
    const log = rows.flatMap(({ at, cause, entries, quarantined, failed, locks }) =>
      at === null ? [] : [{ at, cause, entries, quarantined, failed, locks }],
    );
    const { allEntries = 0, allLocks = 0, recoveredAt = 0 } = rows[0] ?? {};
    return { locksCleaned: allLocks, entriesReclaimed: allEntries, recoveredAt, log };
  }
}

function logStatements({ table, inOrder }: Dialect) {
  const log = table("recovery_log");
  const totals = table("recovery_totals");
  return {
    record: inOrder(
      `delete from ${log} where id <= (select max(id) from ${log}) - ${KEPT_ROWS - 1}`,
      `update ${totals} set entries = entries + cast(:entries as integer), locks = locks + cast(:locks as integer),
        recovered_at = :now where id = 1`,
      `insert into ${log} (at, cause, entries, quarantined, failed, locks)
       values (:now, :cause, cast(:entries as integer), :quarantined, :failed, cast(:locks as integer)) returning id`,
    ),
    totals: `
      select totals.entries as "allEntries", totals.locks as "allLocks", totals.recovered_at as "recoveredAt",
        log.at, log.cause, log.entries, log.quarantined, log.failed, log.locks
      from ${totals} as totals left join (select * from ${log} order by id desc limit ${SHOWN_ROWS}) as log on true
      where totals.id = 1 order by log.id desc`,
  };
}
