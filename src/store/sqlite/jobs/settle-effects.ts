import type { FinishedState } from "../../../core/jobs/job.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { COUNTED } from "../../job-row.ts";
import type { FinishedJob } from "../../sql/retention.ts";
import { runSync } from "../../sql/script.ts";
import type { Connection } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { JobParts } from "./enqueue.ts";

/** What follows from the end of a job: counts, retention, and the jobs that come after it. */
export class SettleEffects {
  readonly #parts: JobParts;
  readonly #sql;
  /** Whether another job may wait for an ended one, or ended jobs are not kept for ever. */
  #followed = true;
  #ended: FinishedJob[] = [];
  /** Sums of one operation, written once at its end: a settled batch is one row of the tally. */
  readonly #sums = new Map<number, Map<FinishedState, number>>();

  constructor(db: Connection, parts: JobParts) {
    this.#parts = parts;
    this.#sql = {
      anyWaits: db.prepare("select 1 from holdfast_waits limit 1"),
      count: db.prepare(
        `insert into holdfast_tally as old (lane, state, n, ended, fresh, since) values (?, ?, ?, ?, ?, ?)
         on conflict (lane, state) do update set ${COUNTED}`,
      ),
      subtract: db.prepare("update holdfast_tally set n = n + ? where lane = ? and state = ?"),
    };
  }

  /** Called before a batch ends: if nothing follows from an end, none is recorded. */
  begin(isFollowed: boolean): void {
    this.#followed = isFollowed;
  }

  add(job: JobKey, lane: number, state: FinishedState): void {
    this.count(lane, state, 1);
    if (this.#followed) this.#ended.push({ job, lane, state });
  }

  count(lane: number, state: FinishedState, n: number): void {
    let states = this.#sums.get(lane);
    if (states === undefined) this.#sums.set(lane, (states = new Map()));
    states.set(state, (states.get(state) ?? 0) + n);
  }

  write(tx: Tx): void {
    if (this.#ended.length > 0) this.#follow(tx);
    for (const [lane, states] of this.#sums) {
      for (const [state, n] of states) {
        if (n > 0) this.#sql.count.run(lane, state, n, n, n, tx.now);
        else if (n < 0) this.#sql.subtract.run(n, lane, state);
      }
    }
    this.#sums.clear();
    this.#parts.limits.write(tx);
    this.#followed = true;
  }

  forget(): void {
    this.#ended = [];
    this.#followed = true;
    this.#sums.clear();
  }

  #follow(tx: Tx): void {
    const { settings, retention, dependents } = this.#parts;
    const forgetting = settings.at(tx.settings).hasRetention;
    const waited = this.#sql.anyWaits.row() !== undefined;
    while (this.#ended.length > 0) {
      const ended = this.#ended;
      this.#ended = [];
      if (forgetting) runSync(retention.add(tx, ended, tx.now));
      const cancelled = waited ? runSync(dependents.follow(tx, tx.now, ended)) : [];
      for (const { job, lane, state } of cancelled) this.add(job, lane, state);
    }
  }
}
