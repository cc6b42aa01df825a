import type { Amount } from "../../../core/pipelines/cost.ts";
import type { Fate, LeaseRef } from "../../../core/jobs/lease.ts";
import type { UnfinishedItem } from "../../sql/work/unfinished.ts";
import type { WorkWrites } from "../../sql/work/work.ts";
import type { Beginning, ListedBatch } from "../../work.ts";
import type { Access } from "../access.ts";
import type { Cancel } from "../jobs/cancel.ts";
import type { Connection } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { Intake } from "../jobs/intake.ts";
import type { Notes } from "../jobs/notes.ts";
import type { Settle } from "../jobs/settle.ts";
import { Ledger } from "./ledger.ts";
import { Listing } from "./listing.ts";

/** Writes what builds work on into a SQLite file. */
export class WorkWriter implements WorkWrites {
  readonly #access: Access;
  readonly #intake: Intake;
  readonly #listing: Listing;
  readonly #ledger: Ledger;
  readonly #cancel: Cancel;

  constructor(db: Connection, parts: { intake: Intake; settle: Settle; cancel: Cancel; notes: Notes }, access: Access) {
    const { intake, settle, cancel, notes } = parts;
    const { enqueue, endings, settings } = intake;
    this.#access = access;
    this.#intake = intake;
    this.#listing = new Listing({ ...intake.work, settle, enqueue, endings, cancel, notes });
    this.#ledger = new Ledger(db, { ...intake.work, settings, settle });
    this.#cancel = cancel;
  }

  listed(lease: LeaseRef, batch: ListedBatch): Promise<Fate> {
    return this.#access.write("listed", (tx) => this.#listing.run(tx, lease, batch));
  }

  /** SQLite has one writer at a time. */
  lockQueues(): void {}

  cancelItems(tx: Tx, items: readonly UnfinishedItem[]): number {
    for (const { job } of items) this.#cancel.quietly(tx, job);
    this.#intake.endings.write(tx);
    return items.length;
  }

  begin(starts: readonly (LeaseRef & { estimate: Amount })[]): Promise<Beginning[]> {
    return this.#access.write("begin", (tx) => this.#ledger.begin(tx, starts));
  }

  saveCosts(reports: readonly (LeaseRef & { cost: Amount })[]): Promise<Fate[]> {
    return this.#access.write("costs", (tx) => this.#ledger.saveCosts(tx, reports));
  }

  watchArtifacts(missing: (hashes: Iterable<string>) => readonly string[]): void {
    this.#intake.work.watch.watch(missing);
  }

  /** With the write lock: transactions that were under way are committed or undone by then. */
  referenced(hashes: readonly string[]): Promise<ReadonlySet<string>> {
    return this.#access.write("prune", () => this.#intake.work.artifacts.referenced(hashes));
  }
}
