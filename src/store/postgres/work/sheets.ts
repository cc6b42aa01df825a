import type { BuildKey, JobKey } from "../../../core/text/ids.ts";
import type { JobState } from "../../../core/jobs/job.ts";
import { isPipelineQueue } from "../../../core/pipelines/work.ts";
import type { Enqueued, NewJob } from "../../store.ts";
import type { ListedBatch, ListedTarget, NewWork, WorkEnd } from "../../work.ts";
import { type ArtifactWatch, namedIn } from "../../work/artifact-watch.ts";
import { Flows } from "../../work/flows.ts";
import { Items } from "../../work/items.ts";
import type { Item, TargetRef } from "../../work/rows.ts";
import type { Catalog } from "../catalog.ts";
import type { Limits } from "../limits/limits.ts";
import type { Settings } from "../settings.ts";
import type { Tx } from "../transactions/transaction.ts";
import { Accounts, type LoadedBooks } from "./accounts.ts";
import { ArtifactRefs, ArtifactSheet } from "./artifact-refs.ts";
import { ItemSheet, ItemTable, type Spot } from "./item-sheet.ts";
import { type Origin, ResultSheet, ResultTable } from "./result-sheet.ts";
import { TargetSheet, TargetTable } from "./target-sheet.ts";

/**
 * What an operation has to know of work items, read before it decides, and what it changes, written in one go: a handful of
 * statements, however many items.
 *
 * Whoever changes work items, or what is counted of their build, holds the lock of their queue (`QueueLocks`), which comes
 * before any row: builds of several pipelines, touched by the calls that share a transaction, are locked in one order, or
 * it runs again with all of them first. Then come the rows of builds, by key; then jobs, work items, targets, results. Who
 * moves a build from state to state holds its row, and wants no row of its work after that.
 */
export class Sheets {
  readonly watch: ArtifactWatch;
  readonly accounts: Accounts;
  readonly items: ItemTable;
  readonly artifacts: ArtifactRefs;
  readonly targets: TargetTable;
  readonly #results: ResultTable;
  readonly #catalog: Catalog;
  readonly #limits: Limits;

  constructor(s: string, parts: { catalog: Catalog; settings: Settings; limits: Limits; watch: ArtifactWatch }) {
    this.watch = parts.watch;
    this.#catalog = parts.catalog;
    this.#limits = parts.limits;
    this.accounts = new Accounts(s, parts.settings);
    this.items = new ItemTable(s);
    this.artifacts = new ArtifactRefs(s);
    this.targets = new TargetTable(s);
    this.#results = new ResultTable(s);
  }

  /** Whether its jobs are work items. The lane is known. */
  isPipelines(lane: number): boolean {
    return isPipelineQueue(this.#catalog.lane(lane).queue);
  }

  /** Of attempts that end, each with what belongs to its end. Null: none of them is a work item's. */
  async ending(tx: Tx, ends: readonly Ending[]): Promise<Sheet | null> {
    const items = ends.filter(({ lane }) => this.isPipelines(lane));
    if (items.length === 0) return null;
    await this.lock(
      tx,
      items.map(({ lane }) => lane),
    );
    const jobs = items.map(({ job }) => job);
    this.#limits.unclaimed(jobs);
    const works = new Map(items.flatMap(({ job, work }) => (work === undefined ? [] : [[job, work]])));
    const [books, found] = await Promise.all([
      this.accounts.load(tx, [], jobs),
      this.items.byJob(tx.rows, jobs),
      [...works.values()].some((end) => namedIn(end).length > 0) && this.artifacts.share(tx),
    ]);
    const spots = found.flatMap(({ job, build, segment }): Spot[] => {
      const forget = works.get(job)?.forget;
      return forget === undefined ? [] : [{ build, segment, path: forget.path }];
    });
    const asked = found.map((item) => askedOf(item, works.get(item.job), books));
    const made = asked.flatMap((one) => one.made);
    const reused = asked.flatMap((one) => one.reused);
    const [besides, targets, results] = await Promise.all([
      this.items.at(tx.rows, spots),
      this.targets.load(tx, distinct(asked.flatMap((one) => one.refs))),
      this.#results.load(tx, [...made, ...reused], [], made.length),
    ]);
    return this.#sheet(books, new ItemSheet([...found, ...besides]), targets, results);
  }

  /** Of a batch of a listing. The lock of its queue is held, and its build's row. */
  async listing(tx: Tx, batch: ListedBatch, books: LoadedBooks): Promise<Sheet> {
    const { build, pipeline, segment, gone = [] } = batch;
    const changed = batch.targets.filter(({ flow }) => flow !== null);
    const paths = [...new Set([...changed, ...gone].map(({ path }) => path))];
    const all = [...batch.targets, ...gone];
    const [items, targets] = await Promise.all([
      this.items.at(
        tx.rows,
        paths.map((path) => ({ build, segment, path })),
      ),
      this.targets.load(
        tx,
        all.map(({ path }) => ({ pipeline, segment, path })),
      ),
    ]);
    const made = changed.flatMap((target) => failedOf(build, target));
    const reused = [
      ...changed.flatMap((target) => reusedOf(build, target)),
      ...gone.flatMap(({ path, had = [] }) => had.map((stage) => ({ build, stage, path }))),
    ];
    const failures = paths.flatMap((path) => targets.standing({ pipeline, segment, path })?.failure ?? []);
    const results = await this.#results.load(tx, [...made, ...reused], failures, made.length);
    return this.#sheet(books, new ItemSheet(items), targets, results);
  }

  /** For work items to be, of these builds. */
  async adding(tx: Tx, builds: readonly BuildKey[]): Promise<Sheet> {
    const books = await this.accounts.load(tx, builds, []);
    return this.#sheet(books, new ItemSheet([]), new TargetSheet(), new ResultSheet([], []));
  }

  /** Which of these jobs are work items that are open already: there is one of each. */
  async twins(tx: Tx, jobs: readonly NewJob[]): Promise<Twins> {
    const items = jobs.flatMap(({ work }) => work ?? []);
    return new Twins(await this.items.twins(tx.rows, items));
  }

  /** Jobs were cancelled; what that means for those of them that are work items. `was`: their states before. */
  async cancelled(tx: Tx, now: number, jobs: readonly (Ending & { was: JobState })[]): Promise<void> {
    const sheet = await this.ending(tx, jobs);
    if (sheet === null) return;
    for (const { job, was } of jobs) sheet.items.cancelled(now, job, was);
    await sheet.close(tx);
  }

  knowLanes(tx: Tx, lanes: readonly number[]): Promise<void> {
    return this.#catalog.knowLanes(tx.rows, lanes);
  }

  /** The queues of these lanes. */
  lock(tx: Tx, lanes: readonly number[]): Promise<void> {
    return this.#limits.lock(tx, new Set(lanes.map((lane) => this.#catalog.lane(lane).queue)));
  }

  #sheet(books: LoadedBooks, items: ItemSheet, targets: TargetSheet, results: ResultSheet): Sheet {
    const artifacts = new ArtifactSheet();
    const write = async (tx: Tx) => {
      // Each sends its own at once; they are done in this order.
      await Promise.all([
        this.items.write(tx, items.changes()),
        this.#results.write(tx, results.changes()),
        this.artifacts.write(tx, artifacts.changes()),
        this.targets.write(tx, targets.changes()),
      ]);
    };
    const close = async (tx: Tx) => void (await Promise.all([write(tx), this.accounts.write(tx, books)]));
    return new Sheet({ books, watch: this.watch, rows: { items, targets, results, artifacts }, write, close });
  }
}

/** The ids of the jobs that work items are already. */
class Twins {
  readonly #ids = new Map<string, string>();

  constructor(known: readonly { work: NewWork; id: string }[]) {
    for (const { work, id } of known) this.#ids.set(itemName(work), id);
  }

  of({ work }: NewJob): Enqueued | undefined {
    const id = work && this.#ids.get(itemName(work));
    return id === undefined ? undefined : { id, duplicate: true };
  }

  add({ work }: NewJob, id: string): void {
    if (work !== undefined) this.#ids.set(itemName(work), id);
  }
}

function itemName({ build, segment, path, stage, kind }: NewWork): string {
  return JSON.stringify([build, segment, path, stage, kind]);
}

/** A job that ends; its lane is known. */
export interface Ending {
  job: JobKey;
  lane: number;
  work?: WorkEnd | undefined;
}

type Rows = ConstructorParameters<typeof Flows>[0]["rows"];

/** What is known of work items in an operation, what they mean for their builds, and what is to be written of it. */
export class Sheet {
  readonly books: LoadedBooks;
  readonly rows: Rows;
  readonly items: Items;
  readonly flows: Flows;
  /** Writes what has changed so far, but for the books. */
  readonly write: (tx: Tx) => Promise<void>;
  /** Writes the rest, and the books. */
  readonly close: (tx: Tx) => Promise<void>;

  constructor(parts: { books: LoadedBooks; watch: ArtifactWatch; rows: Rows } & Pick<Sheet, "write" | "close">) {
    const { books, watch, rows } = parts;
    this.books = books;
    this.rows = rows;
    this.items = new Items({ books, rows });
    this.flows = new Flows({ books, watch, items: this.items, rows });
    this.write = parts.write;
    this.close = parts.close;
  }
}

/** The rows that an operation may be about. `made`: where results may be put. */
interface Asked {
  refs: TargetRef[];
  made: Origin[];
  reused: Origin[];
}

function askedOf(item: Item, end: WorkEnd | undefined, books: LoadedBooks): Asked {
  const { build, segment, stage, path, kind } = item;
  const { pipeline } = books.of(build);
  const paths = [
    ...(kind === "listing" ? [] : [path]),
    ...(end?.target ? [end.target.path] : []),
    ...(end?.forget ? [end.forget.path] : []),
  ];
  const target = end?.target ?? null;
  return {
    refs: paths.map((one) => ({ pipeline, segment, path: one })),
    made: [{ build, stage, path }, ...(target === null ? [] : failedOf(build, target))],
    reused: target === null ? [] : reusedOf(build, target),
  };
}

/** Of the record of a target that can go nowhere. */
function failedOf(build: BuildKey, { path, flow }: ListedTarget): Origin[] {
  return flow?.to === "failed" ? [{ build, stage: flow.stage, path }] : [];
}

/** Of what a target has from this build on without having been through the stage. */
function reusedOf(build: BuildKey, { path, passed }: ListedTarget): Origin[] {
  return passed.flatMap(({ stage, result }) => (result === undefined ? [] : [{ build, stage, path }]));
}

function distinct(refs: readonly TargetRef[]): TargetRef[] {
  return [...new Map(refs.map((ref) => [`${ref.segment} ${ref.pipeline}\n${ref.path}`, ref])).values()];
}
