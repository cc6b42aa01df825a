import { damagedRow } from "../../../core/text/errors.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import type { LeaseRef } from "../../../core/jobs/lease.ts";
import type { ProgressReport } from "../../store.ts";
import { isIntact, rowChecksum } from "../checksum.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

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
      `insert into holdfast_notes (job, checkpoint, checksum) select key, ?, ? ${held}
       on conflict (job) do update set checkpoint = excluded.checkpoint, checksum = excluded.checksum`,
    );
    this.#progress = db.prepare(
      `insert into holdfast_notes (job, fraction, message) select key, ?, ? ${held}
       on conflict (job) do update set fraction = excluded.fraction, message = excluded.message`,
    );
    this.#load = db.prepare("select checkpoint, checksum from holdfast_notes where job = ?");
    this.#drop = db.prepare(
      "update holdfast_notes set checkpoint = null, checksum = null where job = ? and checkpoint is not null",
    );
  }

  saveCheckpoint(tx: Tx, lease: LeaseRef, value: string | null): boolean {
    const { job, fence } = lease;
    const checksum = value === null ? null : rowChecksum("holdfast_notes", { job, checkpoint: value });
    return this.#wrote(tx, this.#checkpoint.run(value, checksum, job, fence));
  }

  saveProgress(tx: Tx, report: ProgressReport): boolean {
    const { fraction, job, fence } = report;
    // Node 22 reads a text up to its first NUL.
    const message = report.message?.replaceAll("\0", "\uFFFD") ?? null;
    return this.#wrote(tx, this.#progress.run(fraction, message, job, fence));
  }

  checkpoint(job: JobKey): string | null {
    const row = this.#load.row(job) as [string | null, number | null] | undefined;
    if (row === undefined) return null;
    const [checkpoint, checksum] = row;
    const isEmpty = checkpoint === null && checksum === null;
    if (!isEmpty && !isIntact("holdfast_notes", { job, checkpoint, checksum })) throw damagedRow(`The checkpoint of job ${job}`);
    return checkpoint;
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
