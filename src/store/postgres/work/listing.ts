import type { JobKey } from "../../../core/text/ids.ts";
import type { Fate, LeaseRef } from "../../../core/jobs/lease.ts";
import { retriedIn } from "../../builds.ts";
import type { ListedBatch } from "../../work.ts";
import { Arrivals } from "../../work/arrivals.ts";
import type { Cancel } from "../operate.ts";
import { listOf, type Rows } from "../connection/driver.ts";
import type { Enqueue } from "../enqueue.ts";
import type { Limits } from "../limits/limits.ts";
import type { Notes } from "../settle/checkpoints.ts";
import type { Settings } from "../settings.ts";
import type { Settle } from "../settle/settle.ts";
import type { Tx } from "../transactions/transaction.ts";
import type { Sheet, Sheets } from "./sheets.ts";

interface Parts {
  settings: Settings;
  limits: Limits;
  settle: Settle;
  enqueue: Enqueue;
  cancel: Cancel;
  notes: Notes;
  sheets: Sheets;
}

/** What a listing finds, batch by batch, each with the place where it goes on: after a crash one batch is looked up again. */
export class Listing {
  readonly #parts: Parts;
  readonly #sql: Record<"queue" | "held" | "retried", string>;

  constructor(s: string, parts: Parts) {
    this.#parts = parts;
    this.#sql = {
      queue: `select queue from ${s}.builds where key = $1`,
      held: `select 1 from ${s}.jobs where key = $1 and fence = $2 and coalesce(state, '') = 'running' for no key update`,
      retried: `delete from ${s}.results where build = $1 and state = 'FAILED' and key = any($2::bigint[])`,
    };
  }

  async run(tx: Tx, lease: LeaseRef, batch: ListedBatch): Promise<Fate> {
    const { settings, limits, settle, notes, sheets } = this.#parts;
    const { targets, gone = [], retried = [], cursor } = batch;
    await settings.at(tx);
    await limits.lock(tx, await this.#queues(tx.rows, lease, batch));
    const names = targets.some(({ artifacts }) => artifacts !== undefined && artifacts.length > 0);
    const [books, held] = await Promise.all([
      sheets.accounts.load(tx, [batch.build], []),
      tx.rows(this.#sql.held, lease.job, lease.fence),
      names && sheets.artifacts.share(tx),
    ]);
    if (held.length === 0) return (await settle.fates(tx.rows, [lease]))[0] as Fate;
    if (names) sheets.watch.refuseMissing(targets);
    const sheet = await sheets.listing(tx, batch, books);
    await this.#unchanged(tx, sheet, batch);
    if (targets.length + gone.length + retried.length > 0) tx.wrote();
    await this.#others(tx, sheet, batch);
    if (retried.length > 0) await tx.rows(this.#sql.retried, retriedIn(batch.build), listOf(retried));
    if (cursor !== undefined) await notes.saveCheckpoint(tx, lease, cursor);
    return "held";
  }

  /** They were read with the others, and one statement marks them. */
  async #unchanged(tx: Tx, sheet: Sheet, batch: ListedBatch): Promise<void> {
    const unchanged = batch.targets.filter(({ flow }) => flow === null);
    if (unchanged.length === 0) return;
    const account = sheet.books.of(batch.build);
    const { pipeline, segment } = batch;
    const same = unchanged.filter(({ path, rev }) => sheet.rows.targets.standing({ pipeline, segment, path })?.rev === rev);
    const paths = same.map(({ path }) => path);
    const seen = this.#parts.sheets.targets.see(tx, batch, paths, batch.build);
    for (const target of same) {
      sheet.flows.passed(account, target);
      if (target.artifacts !== undefined) sheet.rows.artifacts.add(batch.build, "", target.path, target.artifacts);
    }
    await seen;
  }

  async #others(tx: Tx, sheet: Sheet, batch: ListedBatch): Promise<void> {
    const { enqueue, cancel } = this.#parts;
    const { gone = [], pipeline, segment } = batch;
    const { books, flows, rows } = sheet;
    const now = await tx.now();
    const account = books.of(batch.build);
    const dropped = new Set<JobKey>();
    const arrivals = new Arrivals({ books, flows, rows, drop: (job) => void dropped.add(job) });
    const standingOf = (path: string) => rows.targets.standing({ pipeline, segment, path });
    const jobs = [
      ...batch.targets
        .filter(({ flow }) => flow !== null)
        .flatMap((one) => arrivals.changed(now, account, batch, one, standingOf(one.path))),
      ...gone.flatMap((one) => arrivals.gone(now, account, batch, one, standingOf(one.path))),
    ];
    for (const [job, was] of await cancel.quietly(tx, [...dropped])) sheet.items.dropped(job, was);
    // What was cancelled goes first: its place is free for what follows it.
    await sheet.write(tx);
    if (jobs.length > 0) await enqueue.run(tx, jobs, sheet);
    await sheet.close(tx);
  }

  async #queues(rows: Rows, { job }: LeaseRef, { build }: ListedBatch): Promise<string[]> {
    const known = this.#parts.limits.claimedIn([job]);
    if (known.length > 0) return known;
    return (await rows<[string]>(this.#sql.queue, build)).map(([queue]) => queue);
  }
}
