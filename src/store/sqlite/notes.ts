import { damagedRow } from "../../core/errors.ts";
import type { JobKey } from "../../core/ids.ts";
import type { LeaseRef } from "../../core/lease.ts";
import type { ProgressReport } from "../store.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import { rowSum } from "./row-sum.ts";

/** A sum of two: of the checkpoint, and above it of the progress, which come by statements of their own. */
const HIGH = 2 ** 32;
const CHECKPOINT = HIGH - 1;
const PROGRESS = 2 ** 53 - HIGH;

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
      `insert into holdfast_notes as old (job, checkpoint, sum) select key, ?, ? ${held}
       on conflict (job) do update set checkpoint = excluded.checkpoint, sum = (old.sum & ${PROGRESS}) | excluded.sum`,
    );
    this.#progress = db.prepare(
      `insert into holdfast_notes as old (job, fraction, message, sum) select key, ?, ?, ? ${held}
       on conflict (job) do update set
         fraction = excluded.fraction, message = excluded.message, sum = (old.sum & ${CHECKPOINT}) | excluded.sum`,
    );
    this.#load = db.prepare("select checkpoint, sum from holdfast_notes where job = ?");
    this.#drop = db.prepare(
      `update holdfast_notes set checkpoint = null, sum = sum & ${PROGRESS} where job = ? and checkpoint is not null`,
    );
  }

  saveCheckpoint(tx: Tx, lease: LeaseRef, value: string | null): boolean {
    return this.#wrote(tx, this.#checkpoint.run(value, checkpointSum(lease.job, value), lease.job, lease.fence));
  }

  saveProgress(tx: Tx, report: ProgressReport): boolean {
    const { fraction, job, fence } = report;
    // Node 22 reads a text up to its first NUL.
    const message = report.message?.replaceAll("\0", "\uFFFD") ?? null;
    return this.#wrote(tx, this.#progress.run(fraction, message, progressSum(job, fraction, message), job, fence));
  }

  checkpoint(job: JobKey): string | null {
    const row = this.#load.row(job) as [string | null, number | null] | undefined;
    if (row === undefined) return null;
    const [value, sum] = row;
    if (sum === null || sum % HIGH !== checkpointSum(job, value)) throw damagedRow(`The checkpoint of job ${job}`);
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

function checkpointSum(job: JobKey, value: string | null): number {
  return value === null ? 0 : rowSum(job, value) >>> 0;
}

function progressSum(job: JobKey, fraction: number | null, message: string | null): number {
  return (rowSum(job, fraction, message) >>> 11) * HIGH;
}

/** What a row's sum has to be. */
export function noteSum(row: {
  job: JobKey;
  checkpoint: string | null;
  fraction: number | null;
  message: string | null;
}): number {
  const { job, checkpoint, fraction, message } = row;
  // Without any progress so far there is none of it either.
  return checkpointSum(job, checkpoint) + (fraction === null && message === null ? 0 : progressSum(job, fraction, message));
}
