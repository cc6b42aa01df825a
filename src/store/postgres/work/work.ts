import type { Amount } from "../../../core/pipelines/cost.ts";
import type { Fate, LeaseRef } from "../../../core/jobs/lease.ts";
import type { UnfinishedItem } from "../../sql/work/unfinished.ts";
import type { WorkWrites } from "../../sql/work/work.ts";
import type { Beginning, ListedBatch } from "../../work.ts";
import type { Access, Tx } from "../transactions/transaction.ts";
import type { Cancel } from "../operate.ts";
import type { Intake } from "../store-parts.ts";
import type { Limits } from "../limits/limits.ts";
import type { Notes } from "../settle/checkpoints.ts";
import type { Reader } from "../connection/connections.ts";
import type { Settings } from "../settings.ts";
import type { Settle } from "../settle/settle.ts";
import { Ledger } from "./ledger.ts";
import { Listing } from "./listing.ts";
import type { Sheets } from "./sheets.ts";

/** Writes what builds work on to a PostgreSQL server. */
export class WorkWriter implements WorkWrites {
  readonly #access: Access;
  readonly #reader: Reader;
  readonly #limits: Limits;
  readonly #sheets: Sheets;
  readonly #listing: Listing;
  readonly #ledger: Ledger;
  readonly #cancel: Cancel;
  readonly #settings: Settings;

  constructor(
    s: string,
    parts: { intake: Intake; settle: Settle; cancel: Cancel; notes: Notes; reader: Reader },
    access: Access,
  ) {
    const { intake, settle, cancel, notes } = parts;
    const { settings, limits, enqueue, sheets } = intake;
    this.#access = access;
    this.#reader = parts.reader;
    this.#limits = limits;
    this.#sheets = sheets;
    this.#listing = new Listing(s, { settings, limits, settle, enqueue, cancel, notes, sheets });
    this.#ledger = new Ledger({ settings, limits, settle, sheets });
    this.#cancel = cancel;
    this.#settings = settings;
  }

  listed(lease: LeaseRef, batch: ListedBatch): Promise<Fate> {
    return this.#access.write("listed", (tx) => this.#listing.run(tx, lease, batch), {
      wants: () => this.#limits.claimedIn([lease.job]),
    });
  }

  async lockQueues(tx: Tx, queues: readonly string[]): Promise<void> {
    await this.#settings.at(tx);
    await this.#limits.lock(tx, queues);
  }

  async cancelItems(tx: Tx, items: readonly UnfinishedItem[]): Promise<number> {
    await this.#sheets.knowLanes(
      tx,
      items.map(({ lane }) => lane),
    );
    const sheet = await this.#sheets.ending(tx, items);
    if (sheet === null) return 0;
    const dropped = await this.#cancel.quietly(
      tx,
      items.map(({ job }) => job),
    );
    for (const [job, was] of dropped) sheet.items.dropped(job, was);
    await sheet.close(tx);
    return dropped.size;
  }

  begin(starts: readonly (LeaseRef & { estimate: Amount })[]): Promise<Beginning[]> {
    return this.#access.write("begin", (tx) => this.#ledger.begin(tx, starts), {
      wants: () => this.#limits.claimedIn(starts.map(({ job }) => job)),
    });
  }

  saveCosts(reports: readonly (LeaseRef & { cost: Amount })[]): Promise<Fate[]> {
    return this.#access.write("costs", (tx) => this.#ledger.saveCosts(tx, reports));
  }

  watchArtifacts(missing: (hashes: Iterable<string>) => readonly string[]): void {
    this.#sheets.watch.watch(missing);
  }

  /** After the writes that were submitted before, and after transactions of other processes that add references. */
  async referenced(hashes: readonly string[]): Promise<ReadonlySet<string>> {
    await this.#access.write("prune", async () => {});
    return this.#sheets.artifacts.referenced(this.#reader, hashes);
  }
}
