import type { StartVerdict } from "../../../core/jobs/claiming.ts";
import type { Gate, LimitedJob, LimitGate, LimitPair } from "../../../core/limits/limit-gate.ts";
import type { ParkedRow, UsageRow } from "../../../core/limits/lane-usage.ts";
import { LimitRows, type LimitReads, MAX_DUE_COUNTERS, USAGE } from "../../sql/limits.ts";
import { runSync, wait } from "../../sql/script.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import { DIALECT } from "../scripts.ts";
import type { JobParts } from "./enqueue.ts";

const MAX_LOADED_LIMITS = 20_000;

export class Limits {
  readonly #parts: JobParts;
  readonly #rows: LimitRows;
  readonly #sql;
  /** The loaded counters hold until another process writes, a limit changes, or a transaction of this store is rolled back. */
  #tx: Tx | null = null;
  #seen = -1;
  #settingsSeen = -1;

  constructor(db: Connection, parts: JobParts) {
    this.#parts = parts;
    this.#rows = new LimitRows(DIALECT, limitReads(db), (id) => parts.settings.view.rule(id));
    const due = (which: string) =>
      db.prepare(`select rule, key from holdfast_counters where ${which} order by due_at limit ${MAX_DUE_COUNTERS}`);
    this.#sql = {
      due: due("due_at is not null and due_at <= ?"),
      wrong: due("due_at is not null and due_at > ?"),
      version: db.prepare("pragma data_version"),
    };
  }

  admit(tx: Tx, job: LimitedJob): Gate {
    return this.#gate(tx, job.limits).admit(job);
  }

  tryStart(tx: Tx, job: LimitedJob): StartVerdict {
    return this.#gate(tx, job.limits).tryStart(job);
  }

  finish(tx: Tx, lane: number, limits: string, began: boolean): void {
    this.#gate(tx, limits).finish(lane, limits, began);
  }

  withdraw(tx: Tx, jobs: readonly (LimitedJob & { gate: string | null })[]): void {
    this.#begin(tx);
    runSync(this.#rows.withdraw(tx, jobs));
  }

  /** Lets jobs pass that rates allow by now, and jobs that were admitted before. */
  serveDue(tx: Tx): void {
    if (!this.#parts.settings.view.hasLimits) return;
    this.#recheck(tx, this.#sql.due, tx.now);
    // No rate is used up for longer than its period: the process that wrote such an instant had a clock that was set back since.
    this.#recheck(tx, this.#sql.wrong, tx.now + this.#parts.settings.view.longestRefillMs);
    this.write(tx);
  }

  /** Called last in each operation: admits the next jobs and writes the counters. Returns how many jobs became ready. */
  write(tx: Tx): number {
    const changes = this.#tx === tx ? runSync(this.#rows.write(tx)) : null;
    if (changes === null) return 0;
    for (const lane of changes.lanes) tx.ready(this.#parts.catalog.lane(lane).queue);
    return changes.opened.length;
  }

  forget(): void {
    this.#rows.gate.forget();
    this.#seen = -1;
  }

  #recheck(tx: Tx, statement: Statement, at: number): void {
    const pairs = statement.rows(at) as LimitPair[];
    if (pairs.length === 0) return;
    this.#begin(tx);
    runSync(this.#rows.recheck(tx, pairs));
  }

  #gate(tx: Tx, limits: string): LimitGate {
    if (this.#tx !== tx) this.#begin(tx);
    const { gate } = this.#rows;
    if (!gate.isLoaded(limits)) runSync(this.#rows.load(tx, [limits]));
    return gate;
  }

  /** Makes sure, once in each transaction, that the loaded counters still hold. */
  #begin(tx: Tx): void {
    if (this.#tx === tx) return;
    this.#tx = tx;
    const [version] = this.#sql.version.row() as [number];
    const isOutdated = version !== this.#seen || tx.settings !== this.#settingsSeen;
    if (isOutdated || this.#rows.gate.size > MAX_LOADED_LIMITS) this.forget();
    this.#seen = version;
    this.#settingsSeen = tx.settings;
    this.#parts.settings.at(tx.settings);
    this.#rows.gate.now = tx.now;
  }
}

/** Row by row: a prepared statement with its values takes a third of the time that a list in JSON does. */
function limitReads(db: Connection): LimitReads {
  const counters = db.prepare(`select ${USAGE} from holdfast_counters where rule = ? and key = ?`);
  const parked = db.prepare(
    "select counter, priority, job, limits from holdfast_parked where counter = ? order by priority desc, job limit ?",
  );
  const lastId = db.prepare("select coalesce(max(id), 0) from holdfast_counters");
  let last = 0;
  return {
    counters: (_tx, pairs) => wait(pairs.flatMap((pair) => counters.all<UsageRow>(...pair))),
    parked: (_tx, usages, most) => wait(usages.flatMap(({ id }) => parked.all<ParkedRow>(id, most))),
    *name(_tx, usages) {
      last = Math.max(last, lastId.row()?.[0] as number);
      for (const usage of usages) usage.id = ++last;
      yield* wait(undefined);
    },
  };
}
