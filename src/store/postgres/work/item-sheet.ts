import { type Amount, NOTHING } from "../../../core/pipelines/cost.ts";
import type { BuildKey, JobKey } from "../../../core/text/ids.ts";
import { publicId } from "../../job-row.ts";
import type { NewWork } from "../../work.ts";
import type { Item, ItemRows } from "../../work/rows.ts";
import { listOf, type Rows } from "../connection/driver.ts";
import type { Tx } from "../transactions/transaction.ts";
import { listsOf } from "./columns.ts";

const ITEM = `work.job, work.build, work.kind, work.stage, work.segment, work.path, work.estimate_micros, work.estimate_tokens,
  work.cost_micros, work.cost_tokens, work.charged_micros, work.charged_tokens`;
export type ItemColumns = [
  job: JobKey,
  build: BuildKey,
  kind: NewWork["kind"],
  stage: string,
  segment: number,
  path: string,
  ...money: [number, number, number, number, number, number],
];

/** Where a target is, in a build. */
export type Spot = Pick<Item, "build" | "segment" | "path">;

/**
 * The rows of work items that have not ended. They are found by what is asked for itself, not by a join with it: a planner who
 * does not know yet how many there are would walk all of them.
 */
export class ItemTable {
  readonly #sql: Record<"byJob" | "at" | "twins" | "add" | "goOn" | "remove" | "held" | "reserve" | "save", string>;

  constructor(s: string) {
    const held = (asked: string) => `
      select asked.turn, ${ITEM} from ${asked}
      join ${s}.jobs as job on job.key = asked.key and job.fence = asked.fence and coalesce(job.state, '') = 'running'
      join ${s}.work as work on work.job = job.key
      where job.key = any($1::bigint[]) and work.job = any($1::bigint[])
      order by job.key for no key update of job`;
    // Others may be among them, too.
    const among = "work.build = any($1::bigint[]) and work.segment = any($2::integer[]) and work.path = any($3::text[])";
    this.#sql = {
      byJob: `select ${ITEM} from ${s}.work as work where job = any($1::bigint[])`,
      // These by work_target.
      at: `
        select ${ITEM} from ${s}.work as work where ${among}`,
      twins: `
        select work.build, work.segment, work.path, work.stage, work.kind, job.key, job.created_at, job.id
        from ${s}.work as work cross join lateral (select key, created_at, id from ${s}.jobs where key = work.job offset 0) as job
        where ${among}`,
      add: `
        insert into ${s}.work (job, build, kind, stage, segment, path)
        select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::integer[], $6::text[])`,
      goOn: `
        update ${s}.work as work set estimate_micros = 0, estimate_tokens = 0, cost_micros = 0, cost_tokens = 0,
          charged_micros = asked.micros, charged_tokens = asked.tokens
        from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as asked (job, micros, tokens)
        where work.job = any($1::bigint[]) and work.job = asked.job`,
      remove: `delete from ${s}.work where job = any($1::bigint[])`,
      // Nobody ends them before the commit.
      held: held("unnest($1::bigint[], $2::bigint[]) with ordinality as asked (key, fence, turn)"),
      reserve: `
        update ${s}.work as work set estimate_micros = asked.micros, estimate_tokens = asked.tokens
        from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as asked (job, micros, tokens)
        where work.job = any($1::bigint[]) and work.job = asked.job`,
      // Of two reports of one job the later counts.
      save: `
        with held as materialized (
          select distinct on (item.job) item.job, asked.micros, asked.tokens
          from (${held("unnest($1::bigint[], $2::bigint[]) with ordinality as asked (key, fence, turn)")}) as item
          join unnest($3::bigint[], $4::bigint[]) with ordinality as asked (micros, tokens, turn) on asked.turn = item.turn
          order by item.job, item.turn desc)
        update ${s}.work as work set cost_micros = held.micros, cost_tokens = held.tokens
        from held where work.job = any($1::bigint[]) and work.job = held.job returning work.job`,
    };
  }

  async byJob(rows: Rows, jobs: readonly JobKey[]): Promise<Item[]> {
    return jobs.length === 0 ? [] : (await rows<ItemColumns>(this.#sql.byJob, listOf(jobs))).map(toItem);
  }

  /** All that these targets have, and perhaps more. */
  async at(rows: Rows, spots: readonly Spot[]): Promise<Item[]> {
    if (spots.length === 0) return [];
    return (await rows<ItemColumns>(this.#sql.at, ...spotLists(spots))).map(toItem);
  }

  /** Items that are there already, these among them, and the ids of their jobs. */
  async twins(rows: Rows, items: readonly NewWork[]): Promise<{ work: NewWork; id: string }[]> {
    if (items.length === 0) return [];
    type Row = [BuildKey, number, string, string, NewWork["kind"], JobKey, number, string | null];
    const found = await rows<Row>(this.#sql.twins, ...spotLists(items));
    return found.map(([build, segment, path, stage, kind, key, createdAt, id]) => {
      return { work: { build, segment, path, stage, kind }, id: publicId(id, createdAt, key) };
    });
  }

  /** Those of these leases that are held, with their places among them; nobody ends them before the commit. */
  async held(tx: Tx, leases: readonly { job: JobKey; fence: number }[]): Promise<{ place: number; item: Item }[]> {
    const [jobs, fences] = listsOf(
      leases,
      ({ job }) => job,
      ({ fence }) => fence,
    ) as [string, string];
    const rows = await tx.rows<[number, ...ItemColumns]>(this.#sql.held, jobs, fences);
    return rows.map(([turn, ...item]) => ({ place: turn - 1, item: toItem(item) })).sort((a, b) => a.place - b.place);
  }

  async reserve(tx: Tx, aside: readonly { item: Item; wanted: Amount }[]): Promise<void> {
    if (aside.length === 0) return;
    await tx.rows(
      this.#sql.reserve,
      ...listsOf(
        aside,
        ({ item }) => item.job,
        ({ wanted }) => wanted.micros,
        ({ wanted }) => wanted.tokens,
      ),
    );
    tx.wrote();
  }

  /** What attempts have reported, of those that are held: their jobs. */
  async save(tx: Tx, reports: readonly { job: JobKey; fence: number; cost: Amount }[]): Promise<Set<JobKey>> {
    const rows = await tx.rows<[JobKey]>(
      this.#sql.save,
      ...listsOf(
        reports,
        ({ job }) => job,
        ({ fence }) => fence,
        ({ cost }) => cost.micros,
        ({ cost }) => cost.tokens,
      ),
    );
    if (rows.length > 0) tx.wrote();
    return new Set(rows.map(([job]) => job));
  }

  async write(tx: Tx, { removed, kept, added }: ItemChanges): Promise<void> {
    if (removed.length + kept.length + added.length > 0) tx.wrote();
    await Promise.all([
      removed.length > 0 && tx.rows(this.#sql.remove, listOf(removed)),
      kept.length > 0 &&
        tx.rows(
          this.#sql.goOn,
          ...listsOf(
            kept,
            ({ job }) => job,
            ({ charged }) => charged.micros,
            ({ charged }) => charged.tokens,
          ),
        ),
      added.length > 0 &&
        tx.rows(
          this.#sql.add,
          ...listsOf(
            added,
            ({ job }) => job,
            ({ build }) => build,
            ({ kind }) => kind,
            ({ stage }) => stage,
            ({ segment }) => segment,
            ({ path }) => path,
          ),
        ),
    ]);
  }
}

interface ItemChanges {
  removed: JobKey[];
  kept: Item[];
  added: Item[];
}

/** What is known of work items in an operation, and what becomes of them in it. */
export class ItemSheet implements ItemRows {
  readonly #items = new Map<JobKey, Item>();
  /** The jobs of a target. */
  readonly #spots = new Map<string, Set<JobKey>>();
  #removed: JobKey[] = [];
  #kept = new Map<JobKey, Item>();
  #added = new Map<JobKey, Item>();

  constructor(items: readonly Item[]) {
    for (const item of items) this.#know(item);
  }

  get(job: JobKey): Item | undefined {
    return this.#items.get(job);
  }

  add(job: JobKey, build: BuildKey, { kind, stage, segment, path }: NewWork): void {
    const item = { job, build, kind, stage, segment, path, estimate: NOTHING, cost: NOTHING, charged: NOTHING };
    this.#know(item);
    this.#added.set(job, item);
  }

  goOn(item: Item, charged: Amount): void {
    const kept = { ...item, estimate: NOTHING, cost: NOTHING, charged };
    this.#items.set(item.job, kept);
    this.#kept.set(item.job, kept);
  }

  remove({ job }: Item): void {
    this.#items.delete(job);
    this.#kept.delete(job);
    if (!this.#added.delete(job)) this.#removed.push(job);
  }

  at(build: BuildKey, segment: number, path: string): JobKey[] {
    return this.#of({ build, segment, path }, "stage").map(({ job }) => job);
  }

  isRemoving(spot: Spot): boolean {
    return this.#of(spot, "remove").length > 0;
  }

  /** What there is to write, once. */
  changes(): ItemChanges {
    const changes = { removed: this.#removed, kept: [...this.#kept.values()], added: [...this.#added.values()] };
    this.#removed = [];
    this.#kept = new Map();
    this.#added = new Map();
    return changes;
  }

  #know(item: Item): void {
    this.#items.set(item.job, item);
    const spot = spotOf(item);
    const jobs = this.#spots.get(spot);
    if (jobs === undefined) this.#spots.set(spot, new Set([item.job]));
    else jobs.add(item.job);
  }

  #of(spot: Spot, kind: Item["kind"]): Item[] {
    const items = [...(this.#spots.get(spotOf(spot)) ?? [])].flatMap((job) => this.#items.get(job) ?? []);
    return items.filter((item) => item.kind === kind);
  }
}

function spotOf({ build, segment, path }: Spot): string {
  return `${build} ${segment} ${path}`;
}

export function toItem([job, build, kind, stage, segment, path, ...money]: ItemColumns): Item {
  const amount = (at: number): Amount => ({ micros: money[at] as number, tokens: money[at + 1] as number });
  return { job, build, kind, stage, segment, path, estimate: amount(0), cost: amount(2), charged: amount(4) };
}

function spotLists(spots: readonly Pick<NewWork, "build" | "segment" | "path">[]): string[] {
  return [
    listOf([...new Set(spots.map(({ build }) => build))]),
    listOf([...new Set(spots.map(({ segment }) => segment))]),
    listOf([...new Set(spots.map(({ path }) => path))]),
  ];
}
