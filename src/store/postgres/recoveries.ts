import { RECOVERY, UNNAMED } from "../../core/audit.ts";
import type { BuildReason } from "../../core/build.ts";
import type { Fence, JobKey, ProcessId } from "../../core/ids.ts";
import { endedAs, isWorthReporting, jobCounts, ownerOf, recoverySubject } from "../../core/recovery-report.ts";
import { reclaimedOf } from "../../core/retry.ts";
import type { Access as Scripts } from "../sql/access.ts";
import type { Builds } from "../sql/builds/builds.ts";
import type { Locks } from "../sql/locks.ts";
import { runAsync, wait } from "../sql/script.ts";
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
import type { Access } from "./access.ts";
import type { Audit } from "../sql/audit.ts";
import { listOf, type Rows } from "./driver.ts";
import type { Events } from "./events.ts";
import type { RecoveryLog } from "../sql/recovery-log.ts";
import type { Processes } from "./processes.ts";
import { Reports } from "./reports.ts";
import type { Statements } from "./scripts.ts";
import type { Settle } from "./settle.ts";
import type { Tx } from "./transaction.ts";

interface Parts {
  settle: Settle;
  events: Events;
  recoveryLog: RecoveryLog;
  locks: Locks;
  processes: Processes;
  audit: Audit;
  builds: Builds;
  statements: Statements;
  scripts: Scripts;
}

/** Burials, and the reports of them, on a PostgreSQL server. Reports are opened and ended in the turn of builds: one at a time. */
export class Recoveries implements RecoveryStore {
  readonly #access: Access;
  readonly #parts: Parts;
  readonly #reports: Reports;
  readonly #sql: Record<"entered" | "inHand" | "leases", string>;

  constructor(s: string, parts: Parts, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#reports = new Reports(s);
    this.#sql = {
      entered: `select id from ${s}.processes where id = any($1::bigint[])`,
      inHand: `select coalesce(sum(at_work), 0)::bigint from ${s}.claims where holder = any($1::bigint[])`,
      leases: `select key, fence, expires_at from ${s}.running where holder = $1 order by expires_at, key limit $2`,
    };
  }

  /** Asked at every opening, mostly for nothing: then nothing is written, and nobody's turn is taken. */
  async begin(found: Found): Promise<Recovering | null> {
    if (!(await this.#isWorthwhile(found))) return null;
    return this.#act("recover", (tx) => this.#begin(tx, found));
  }

  takeBack(burial: Burial & { as: "crashed" | "interrupted"; limit: number }): Promise<TakenBack> {
    return this.#access.write("reclaim", (tx) => this.#takeBack(tx, burial));
  }

  bury(burial: Burial & { reason: BuildReason }): Promise<Buried | null> {
    return this.#act("bury", (tx) => this.#bury(tx, burial));
  }

  close(report: number, ending: Ending): Promise<StoredReport | { left: Left[] } | null> {
    return this.#act("report", (tx) => this.#close(tx, report, ending));
  }

  handOn(report: number, owner: ProcessId): Promise<boolean> {
    return this.#act("report", async (tx) => {
      const row = await this.#reports.row(tx.rows, report);
      if (row?.state !== "running" || row.owner !== owner) return false;
      await this.#reports.own(tx, report, null);
      return true;
    });
  }

  acknowledge(): Promise<StoredReport[]> {
    const by = this.#parts.audit.actor ?? UNNAMED;
    return this.#act("acknowledge", async (tx) => {
      const acknowledged: StoredReport[] = [];
      for (const { id, state } of await this.#reports.failed(tx.rows)) {
        const report = await this.#reports.acknowledge(tx, id, by);
        await this.#record(tx, "recovery.acknowledged", by, { before: { state }, report });
        acknowledged.push(report);
      }
      return acknowledged;
    });
  }

  reports({ limit, which = "ended" }: { limit: number; which?: "ended" | "all" | "open" }): Promise<StoredReport[]> {
    return this.#reports.list(this.#access.read, which, limit);
  }

  totals(): Promise<ReportTotals> {
    return this.#reports.totals(this.#access.read);
  }

  async shortenLog(): Promise<void> {}

  async emptyLog(): Promise<void> {}

  async preview(dead: readonly ProcessId[]): Promise<RecoveryPreview> {
    const { read, at } = this.#access;
    const { builds, locks, statements } = this.#parts;
    const db = statements.reads({ rows: read, at: at() });
    const [jobs, led, held] = await Promise.all([
      this.#inHandOf(read, dead),
      Promise.all(dead.map((id) => runAsync(builds.ledBy(db, id)))),
      runAsync(locks.ofProcesses(db, dead)),
    ]);
    return { jobs, builds: led.flat(), locks: held };
  }

  #act<T>(operation: "recover" | "bury" | "report" | "acknowledge", run: (tx: Tx) => Promise<T>): Promise<T> {
    return this.#parts.scripts.write(operation, (tx) => wait(run(tx as Tx)), { builds: true });
  }

  async #isWorthwhile({ dead, by, findings }: Found): Promise<boolean> {
    if (dead.length > 0 || isWorthReporting(findings)) return true;
    const { read } = this.#access;
    const open = await this.#reports.running(read);
    if (open === undefined) return false;
    const entered = await this.#entered(read, open.owner === null ? [] : [open.owner]);
    return ownerOf(open, by, (owner) => !entered.has(owner)) === by;
  }

  async #begin(tx: Tx, found: Found): Promise<Recovering | null> {
    const open = await this.#reports.running(tx.rows);
    const asked = [...found.dead.map(({ id }) => id as number), ...(open?.owner == null ? [] : [open.owner as number])];
    const entered = await this.#entered(tx.rows, asked);
    const dead = found.dead.filter(({ id }) => entered.has(id));
    if (dead.length === 0 && !isWorthReporting(found.findings) && open === undefined) return null;
    const isGone = (owner: number) => dead.some(({ id }) => id === owner) || !entered.has(owner);
    const owner = open === undefined ? found.by : ownerOf(open, found.by, isGone);
    const report = open?.id ?? (await this.#reports.open(tx, found.by));
    await this.#reports.own(tx, report, owner as ProcessId);
    for (const one of dead) {
      if (!(await this.#reports.name(tx, report, one))) continue;
      await this.#reports.count(tx, report, { jobsRunningBeforeCrash: await this.#inHandOf(tx.rows, [one.id]) });
    }
    if (found.findings !== undefined) await this.#reports.find(tx, report, found.findings);
    return { report, owned: owner === found.by, left: await this.#reports.left(tx.rows, report) };
  }

  async #takeBack(tx: Tx, burial: Burial & { as: "crashed" | "interrupted"; limit: number }): Promise<TakenBack> {
    const { report, process, as: kind, limit, spent, cause } = burial;
    if (!(await this.#reports.names(tx.rows, report, process))) return NOTHING_BACK;
    const { settle, locks, recoveryLog } = this.#parts;
    const leases = await tx.rows<[JobKey, Fence, number]>(this.#sql.leases, process, limit);
    const ended = await settle.end(
      tx,
      leases.map(([job, fence, expiresAt]) => ({ job, fence, expiresAt, outcome: { kind } })),
    );
    const over = leases.filter((_, i) => ended[i] !== null);
    for (const [job, fence] of over) tx.ended(job, fence);
    const reclaimed = reclaimedOf(ended.flatMap((one) => (one === null ? [] : [one.next])));
    if (reclaimed.entries === 0) return NOTHING_BACK;
    const freed = await runAsync(
      locks.freeBound(
        tx,
        over.map(([job, fence]) => ({ job, fence })),
      ),
    );
    await runAsync(recoveryLog.record(tx, cause, { ...reclaimed, locks: freed }));
    await this.#reports.count(tx, report, { ...jobCounts(reclaimed), locksReleased: freed, recoveryDurationMs: spent });
    return { ...reclaimed, locks: freed };
  }

  async #bury(tx: Tx, burial: Burial & { reason: BuildReason }): Promise<Buried | null> {
    const { report, process, reason, spent, cause } = burial;
    if (!(await this.#reports.names(tx.rows, report, process))) return { builds: 0, locks: 0 };
    if ((await this.#inHandOf(tx.rows, [process])) > 0) return null;
    const { processes, locks, recoveryLog } = this.#parts;
    const builds = (await runAsync(this.#parts.builds.crash(tx, process, reason))).length;
    const freed = await runAsync(locks.freeOf(tx, process));
    if (!(await processes.remove(tx, process))) throw new Error(`Process ${process} is dead, and cannot be struck off.`);
    if (freed > 0) await runAsync(recoveryLog.record(tx, cause, { ...NOTHING_BACK, locks: freed }));
    await this.#reports.count(tx, report, { buildsCrashed: builds, locksReleased: freed + builds, recoveryDurationMs: spent });
    return { builds, locks: freed };
  }

  async #close(tx: Tx, report: number, ending: Ending): Promise<StoredReport | { left: Left[] } | null> {
    const { by, jobsPending } = ending;
    const row = await this.#reports.row(tx.rows, report);
    if (row?.state !== "running" || row.owner !== by) return null;
    const left = await this.#reports.left(tx.rows, report);
    if (left.length > 0) return { left };
    const { errors } = await this.#reports.find(tx, report, ending);
    const ended = await this.#reports.end(tx, report, { by, state: endedAs(errors), pending: jobsPending });
    await this.#record(tx, `recovery.${endedAs(errors)}`, ending.asked ?? RECOVERY, { before: null, report: ended });
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
    await runAsync(audit.add(tx, { by, action, subject, before, after: { state, ...reportOf(report) } }));
    await events.act(tx, action, subject, { recovery: id, ...reportOf(report) });
  }

  async #entered(rows: Rows, ids: readonly number[]): Promise<Set<number>> {
    return new Set(ids.length === 0 ? [] : (await rows<[number]>(this.#sql.entered, listOf(ids))).map(([id]) => id));
  }

  async #inHandOf(rows: Rows, processes: readonly ProcessId[]): Promise<number> {
    const [[jobs]] = (await rows<[number]>(this.#sql.inHand, listOf(processes))) as [[number]];
    return jobs;
  }
}
