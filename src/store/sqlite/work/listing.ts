import type { Fate, LeaseRef } from "../../../core/jobs/lease.ts";
import type { NewJob } from "../../store.ts";
import type { ListedBatch } from "../../work.ts";
import { Arrivals } from "../../work/arrivals.ts";
import type { ArtifactWatch } from "../../work/artifact-watch.ts";
import type { Account } from "../../work/books.ts";
import type { Flows } from "../../work/flows.ts";
import type { Cancel } from "../jobs/cancel.ts";
import type { Endings } from "../jobs/endings.ts";
import type { Enqueue } from "../jobs/enqueue.ts";
import type { Tx } from "../group-commit.ts";
import type { Notes } from "../jobs/notes.ts";
import type { Settle } from "../jobs/settle.ts";
import type { Accounts } from "./accounts.ts";
import type { ArtifactRefs } from "./artifact-refs.ts";
import type { ItemTable } from "./item-table.ts";
import type { Results } from "./results.ts";
import type { Targets } from "./targets.ts";

interface Parts {
  settle: Settle;
  enqueue: Enqueue;
  endings: Endings;
  cancel: Cancel;
  notes: Notes;
  accounts: Accounts;
  watch: ArtifactWatch;
  artifacts: ArtifactRefs;
  table: ItemTable;
  results: Results;
  targets: Targets;
  flows: Flows;
}

/** What a listing finds, batch by batch, each with the place where it goes on: after a crash one batch is looked up again. */
export class Listing {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  run(tx: Tx, lease: LeaseRef, batch: ListedBatch): Fate {
    const { settle, watch, accounts, notes, endings, enqueue } = this.#parts;
    const fate = settle.fate(lease);
    if (fate !== "held") return fate;
    const { targets, gone = [], retried = [], cursor } = batch;
    watch.refuseMissing(targets);
    const account = accounts.of(batch.build);
    this.#unchanged(account, batch);
    const jobs = this.#others(tx, account, batch);
    if (retried.length > 0) this.#parts.results.retried(batch.build, retried);
    if (targets.length + gone.length + retried.length > 0) tx.wrote();
    if (cursor !== undefined) notes.saveCheckpoint(tx, lease, cursor);
    // What was cancelled goes first: its place is free for what follows it.
    endings.write(tx);
    if (jobs.length > 0) enqueue.run(tx, jobs);
    return "held";
  }

  /** A few statements, however many they are. */
  #unchanged(account: Account, { targets, pipeline, segment, build }: ListedBatch): void {
    const unchanged = targets.filter(({ flow }) => flow === null);
    if (unchanged.length === 0) return;
    const others = this.#parts.targets.seen(pipeline, segment, unchanged, build);
    for (const [place, target] of unchanged.entries()) {
      if (others.has(place)) continue;
      this.#parts.flows.passed(account, target);
      if (target.artifacts !== undefined) this.#parts.artifacts.add(build, "", target.path, target.artifacts);
    }
  }

  #others(tx: Tx, account: Account, batch: ListedBatch): NewJob[] {
    const { accounts, flows, table, targets, results, artifacts, cancel } = this.#parts;
    const { gone = [] } = batch;
    const changed = batch.targets.filter(({ flow }) => flow !== null);
    const rows = { items: table, targets, results, artifacts };
    const arrivals = new Arrivals({ books: accounts, flows, rows, drop: (job) => cancel.quietly(tx, job) });
    const standings = targets.standings(
      batch.pipeline,
      batch.segment,
      [...changed, ...gone].map(({ path }) => path),
    );
    return [
      ...changed.flatMap((one) => arrivals.changed(tx.now, account, batch, one, standings.get(one.path))),
      ...gone.flatMap((one) => arrivals.gone(tx.now, account, batch, one, standings.get(one.path))),
    ];
  }
}
