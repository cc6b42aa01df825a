import { damagedRow } from "../../core/errors.ts";
import type { JobKey } from "../../core/ids.ts";
import type { LeaseRef } from "../../core/lease.ts";
import type { ProgressReport } from "../store.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import { isSame, rowSum } from "./row-sum.ts";

/** Checkpoints and progress, beside the job's row so that saving them does not rewrite its input. */
export class Notes {
  readonly #any: Statement;
  readonly #checkpoint: Statement;
  readonly #progress: Statement;
  readonly #load: Statement;
  readonly #drop: Statement;

  constructor(db: Connection) {
    const held = "from holdfast_jobs where key = ? and fence = ? and state = 'running'";
    this.#any = db.prepare("select 1 from holdfast_notes limit 1");
    this.#checkpoint = db.prepare(
      `insert into holdfast_notes (job, checkpoint, sum) select key, ?, ? ${held}
       on conflict (job) do update set checkpoint = excluded.checkpoint, sum = excluded.sum`,
    );
    this.#progress = db.prepare(
      `insert into holdfast_notes (job, fraction, message) select key, ?, ? ${held}
       on conflict (job) do update set fraction = excluded.fraction, message = excluded.message`,
    );
    this.#load = db.prepare("select checkpoint, sum from holdfast_notes where job = ?");
    this.#drop = db.prepare("update holdfast_notes set checkpoint = null where job = ? and checkpoint is not null");
  }

  saveCheckpoint(tx: Tx, lease: LeaseRef, value: string | null): boolean {
    return this.#wrote(tx, this.#checkpoint.run(value, value === null ? null : rowSum(lease.job, value), lease.job, lease.fence));
  }

  saveProgress(tx: Tx, report: ProgressReport): boolean {
    return this.#wrote(tx, this.#progress.run(report.fraction, report.message, report.job, report.fence));
  }

  checkpoint(job: JobKey): string | null {
    const [value, sum] = (this.#load.row(job) ?? [null, null]) as [string | null, number | null];
    if (value !== null && !isSame(sum, rowSum(job, value))) throw damagedRow(`The checkpoint of job ${job}`);
    return value;
  }

  any(): boolean {
    return this.#any.row() !== undefined;
  }

  dropCheckpoint(job: JobKey): void {
    this.#drop.run(job);
  }

  #wrote(tx: Tx, changes: number): boolean {
    if (changes > 0) tx.wrote();
    return changes > 0;
  }
}
