import type { Fate, LeaseRef } from "../../../core/lease.ts";
import type { NewJob } from "../../store.ts";
import type { ListedBatch, ListedTarget } from "../../work.ts";
import type { Cancel } from "../cancel.ts";
import type { Endings } from "../endings.ts";
import type { Enqueue } from "../enqueue.ts";
import type { Tx } from "../group-commit.ts";
import type { Notes } from "../notes.ts";
import type { Settle } from "../settle.ts";
import type { Account, Accounts } from "./accounts.ts";
import type { ArtifactRefs } from "./artifact-refs.ts";
import { type Flows, ofBuild } from "./flows.ts";
import type { Items } from "./items.ts";
import type { Results } from "./results.ts";
import type { Standing, TargetRef, Targets } from "./targets.ts";

/** What a listing finds, batch by batch, each with the place where it goes on: after a crash one batch is looked up again. */
export class Listing {
  readonly #settle: Settle;
  readonly #enqueue: Enqueue;
  readonly #endings: Endings;
  readonly #cancel: Cancel;
  readonly #notes: Notes;
  readonly #accounts: Accounts;
  readonly #artifacts: ArtifactRefs;
  readonly #items: Items;
  readonly #results: Results;
  readonly #targets: Targets;
  readonly #flows: Flows;

  constructor(parts: {
    settle: Settle;
    enqueue: Enqueue;
    endings: Endings;
    cancel: Cancel;
    notes: Notes;
    accounts: Accounts;
    artifacts: ArtifactRefs;
    items: Items;
    results: Results;
    targets: Targets;
    flows: Flows;
  }) {
    this.#settle = parts.settle;
    this.#enqueue = parts.enqueue;
    this.#endings = parts.endings;
    this.#cancel = parts.cancel;
    this.#notes = parts.notes;
    this.#accounts = parts.accounts;
    this.#artifacts = parts.artifacts;
    this.#items = parts.items;
    this.#results = parts.results;
    this.#targets = parts.targets;
    this.#flows = parts.flows;
  }

  run(tx: Tx, lease: LeaseRef, batch: ListedBatch): Fate {
    const fate = this.#settle.fate(lease);
    if (fate !== "held") return fate;
    const { targets, gone = [], cursor } = batch;
    this.#artifacts.refuseMissing(hashesOf(targets));
    const account = this.#accounts.of(batch.build);
    this.#unchanged(account, batch);
    const changed = targets.filter(({ flow }) => flow !== null);
    const paths = [...changed, ...gone].map(({ path }) => path);
    const standings = this.#targets.standings(batch.pipeline, batch.segment, paths);
    const jobs: NewJob[] = [];
    for (const target of changed) jobs.push(...this.#changed(tx, account, batch, target, standings.get(target.path)));
    for (const one of gone) jobs.push(...this.#gone(tx, account, batch, one, standings.get(one.path)));
    if (targets.length + gone.length > 0) tx.wrote();
    if (cursor !== undefined) this.#notes.saveCheckpoint(tx, lease, cursor);
    // What was cancelled goes first: its place is free for what follows it.
    this.#endings.write(tx);
    if (jobs.length > 0) this.#enqueue.run(tx, jobs);
    return "held";
  }

  /** A few statements, however many they are. */
  #unchanged(account: Account, { targets, pipeline, segment, build }: ListedBatch): void {
    const unchanged = targets.filter(({ flow }) => flow === null);
    if (unchanged.length === 0) return;
    const others = this.#targets.seen(pipeline, segment, unchanged, build);
    for (const [place, target] of unchanged.entries()) {
      if (others.has(place)) continue;
      this.#flows.passed(account, target);
      if (target.artifacts !== undefined) this.#artifacts.add(build, "", target.path, target.artifacts);
    }
  }

  #changed(tx: Tx, account: Account, batch: ListedBatch, target: ListedTarget, standing: Standing | undefined): NewJob[] {
    const ref = { pipeline: batch.pipeline, segment: batch.segment, path: target.path };
    if ((standing?.rev ?? 0) !== target.rev) return [];
    if (standing !== undefined) this.#supersede(tx, account, ref, standing);
    return this.#flows.pass(tx, account, ref, target, standing, null) ?? [];
  }

  #gone(
    tx: Tx,
    account: Account,
    batch: ListedBatch,
    { path, rev, removals }: NonNullable<ListedBatch["gone"]>[number],
    standing: Standing | undefined,
  ): NewJob[] {
    if (standing?.rev !== rev) return [];
    const ref = { pipeline: batch.pipeline, segment: batch.segment, path };
    this.#supersede(tx, account, ref, standing);
    if (removals.length === 0) this.#targets.remove(ref);
    else if (standing.failure !== null) this.#targets.blame(ref, null);
    return removals.map((job) => ofBuild(job, account.build));
  }

  /** What this build does, or did in vain, for what the target was before. */
  #supersede(tx: Tx, account: Account, { segment, path }: TargetRef, { failure }: Standing): void {
    for (const job of this.#items.at(account.build, segment, path)) this.#cancel.quietly(tx, job);
    if (failure === null) return;
    const stage = this.#results.recall(account.build, failure);
    if (stage !== undefined) this.#accounts.failed(account, stage, -1);
  }
}

function hashesOf(targets: readonly ListedTarget[]): Set<string> {
  const hashes = new Set<string>();
  for (const { artifacts } of targets) for (const { hash } of artifacts ?? []) hashes.add(hash);
  return hashes;
}
