import type { LeaseRef } from "../../../core/jobs/lease.ts";
import { reserveBatch, settleReservation, type Amount, NO_COST } from "../../../core/pipelines/budget.ts";
import type { BuildKey, JobKey } from "../../../core/text/ids.ts";
import { publicId } from "../../job-row.ts";
import type { Enqueued, NewJob } from "../../store.ts";
import type { Beginning, NewWork } from "../../work.ts";
import { type Dialect, type Reads, type Script, type Settings, together, type Tx, wait } from "../script.ts";
import { type BuildSpend, isSame } from "./build-totals.ts";
import type { WorkBatches } from "./work-batches.ts";

export interface WorkItem extends Omit<NewWork, "build"> {
  job: JobKey;
  build: BuildKey;
  /** Reserved for the running attempt. */
  estimate: Amount;
  /** Reported by the running attempt so far. */
  cost: Amount;
  /** Cost of the attempts before it. */
  charged: Amount;
}

export type TargetInBuild = Pick<WorkItem, "build" | "segment" | "path">;

type ItemColumns = Omit<WorkItem, "estimate" | "cost" | "charged"> &
  Record<`${"estimate" | "cost" | "charged"}_${"micros" | "tokens"}`, number>;

/** Finds rows by lists, not by a join: PostgreSQL's planner does not know how long a list is, and would scan the table. */
export class ItemTable {
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect) {
    this.#sql = statements(dialect);
  }

  *byJob(tx: Reads, jobs: readonly JobKey[]): Script<WorkItem[]> {
    return jobs.length === 0 ? [] : (yield* tx.all<ItemColumns>(this.#sql.byJob, { jobs })).map(toItem);
  }

  *at(tx: Reads, targets: readonly TargetInBuild[]): Script<WorkItem[]> {
    return targets.length === 0 ? [] : (yield* tx.all<ItemColumns>(this.#sql.at, listsOf(targets))).map(toItem);
  }

  /** Finds existing items. With `follows`, the jobs follow from targets whose revisions show that their stages have no jobs. */
  *existing(tx: Reads, jobs: readonly NewJob[], follows: boolean): Script<ExistingItems> {
    type Row = NewWork & { key: JobKey; createdAt: number; id: string | null };
    const items = jobs.flatMap(({ work }) => (work === undefined || (follows && work.kind === "stage") ? [] : [work]));
    const rows = items.length === 0 ? [] : yield* tx.all<Row>(this.#sql.existing, listsOf(items));
    return new ExistingItems(rows.map((row) => [nameOf(row), publicId(row.id, row.createdAt, row.key)]));
  }

  /** Returns the items of the held leases among these. Their jobs are locked and cannot end before the commit. */
  *held(tx: Tx, leases: readonly LeaseRef[]): Script<{ place: number; item: WorkItem }[]> {
    const asked = leases.map(({ job, fence }, place) => ({ place, job, fence }));
    const params = { jobs: leases.map(({ job }) => job), leases: JSON.stringify(asked) };
    const rows = yield* tx.all<ItemColumns & { place: number }>(this.#sql.held, params);
    return rows.map((row) => ({ place: row.place, item: toItem(row) })).sort((a, b) => a.place - b.place);
  }

  reserve(tx: Tx, reserved: readonly { item: WorkItem; wanted: Amount }[]): Script<number> {
    const rows = reserved.map(({ item: { job }, wanted: { micros, tokens } }) => ({ job, micros, tokens }));
    return tx.each(this.#sql.reserve, rows);
  }

  /** Saves reported costs of held leases and returns their jobs. Of two reports of one job, the later one counts. */
  *saveCosts(tx: Tx, reports: readonly (LeaseRef & { cost: Amount })[]): Script<Set<JobKey>> {
    const rows = reports.map(({ job, fence, cost }) => ({ key: job, fence, micros: cost.micros, tokens: cost.tokens }));
    const latest = new Map(rows.map((row) => [`${row.key} ${row.fence}`, row]));
    const saved = yield* tx.eachReturning<{ job: JobKey }>(this.#sql.saveCosts, [...latest.values()]);
    return new Set(saved.map(({ job }) => job));
  }

  *write(tx: Tx, { removed, kept, added }: ItemChanges): Script<void> {
    const charged = kept.map(({ job, charged: { micros, tokens } }) => ({ job, micros, tokens }));
    const items = added.map(({ job, build, kind, stage, segment, path }) => ({ job, build, kind, stage, segment, path }));
    yield* together(this.#remove(tx, removed), tx.each(this.#sql.keep, charged), tx.each(this.#sql.add, items));
  }

  *#remove(tx: Tx, jobs: readonly JobKey[]): Script<void> {
    if (jobs.length > 0) yield* tx.run(this.#sql.remove, { jobs });
  }
}

function statements(dialect: Dialect) {
  const { table, in: isIn, each } = dialect;
  const work = table("work");
  const columns = `work.job, work.build, work.kind, work.stage, work.segment, work.path, work.estimate_micros, work.estimate_tokens,
    work.cost_micros, work.cost_tokens, work.charged_micros, work.charged_tokens`;
  const among = `${isIn("work.build", "bigint", ":builds")} and ${isIn("work.segment", "bigint", ":segments")}
    and ${isIn("work.path", "text", ":paths")}`;
  const amount = { job: "bigint", micros: "bigint", tokens: "bigint" } as const;
  const running = "coalesce(job.state, '') = 'running'";
  return {
    byJob: `select ${columns} from ${work} as work where ${isIn("job", "bigint", ":jobs")}`,
    at: `select ${columns} from ${work} as work where ${among}`,
    existing: `
      select work.build, work.segment, work.path, work.stage, work.kind, job.key, job.created_at as "createdAt", job.id
      from ${work} as work ${dialect.firstRow(table("jobs"), "job", "where one.key = work.job")} where ${among}`,
    held: `
      select asked.place, ${columns} from ${dialect.rows(":leases", { place: "bigint", job: "bigint", fence: "bigint" })} as asked
      join ${table("jobs")} as job on job.key = asked.job and job.fence = asked.fence and ${running}
      join ${work} as work on work.job = job.key
      where ${isIn("job.key", "bigint", ":jobs")} and ${isIn("work.job", "bigint", ":jobs")}
      order by job.key ${dialect.lockingOf("job")}`,
    add: each(
      { job: "bigint", build: "bigint", kind: "text", stage: "text", segment: "bigint", path: "text" },
      (row) => `insert into ${work} (job, build, kind, stage, segment, path) ${row.inserted}`,
    ),
    keep: each(
      amount,
      (row) => `
        update ${work} as work set estimate_micros = 0, estimate_tokens = 0, cost_micros = 0, cost_tokens = 0,
          charged_micros = ${row.value("micros")}, charged_tokens = ${row.value("tokens")}
        ${row.from()} where ${row.is("work", "job")}`,
    ),
    remove: `delete from ${work} where ${isIn("job", "bigint", ":jobs")}`,
    reserve: each(
      amount,
      (row) => `
        update ${work} as work set estimate_micros = ${row.value("micros")}, estimate_tokens = ${row.value("tokens")}
        ${row.from()} where ${row.is("work", "job")}`,
    ),
    // Locks the job's row first, so that an attempt that ends meanwhile does not pass its cost on to the next one.
    saveCosts: each(
      { key: "bigint", fence: "bigint", micros: "bigint", tokens: "bigint" },
      (row) => `
        with held as materialized (
          select job.key, job.fence ${row.from(`${table("jobs")} as job`)}
          where ${row.is("job", "key", "fence")} and ${running}
          order by job.key ${dialect.lockingOf("job")})
        update ${work} as work set cost_micros = ${row.value("micros")}, cost_tokens = ${row.value("tokens")}
        ${row.from()} where ${row.is("work", ["job", "key"])}
          and exists (select 1 from held where held.key = work.job and held.fence = ${row.value("fence")})
        returning job`,
    ),
  };
}

interface ItemChanges {
  removed: JobKey[];
  kept: WorkItem[];
  added: WorkItem[];
}

export class ItemBatch {
  readonly #items = new Map<JobKey, WorkItem>();
  readonly #byTarget = new Map<string, JobKey[]>();
  #removed: JobKey[] = [];
  #kept = new Map<JobKey, WorkItem>();
  #added = new Map<JobKey, WorkItem>();

  constructor(items: readonly WorkItem[]) {
    for (const item of items) this.#know(item);
  }

  get(job: JobKey): WorkItem | undefined {
    return this.#items.get(job);
  }

  add(job: JobKey, build: BuildKey, { kind, stage, segment, path }: NewWork): void {
    const item = { job, build, kind, stage, segment, path, estimate: NO_COST, cost: NO_COST, charged: NO_COST };
    this.#know(item);
    this.#added.set(job, item);
  }

  keep(item: WorkItem, charged: Amount): void {
    const kept = { ...item, estimate: NO_COST, cost: NO_COST, charged };
    this.#items.set(item.job, kept);
    this.#kept.set(item.job, kept);
  }

  remove({ job }: WorkItem): void {
    this.#items.delete(job);
    this.#kept.delete(job);
    if (!this.#added.delete(job)) this.#removed.push(job);
  }

  of(target: TargetInBuild, kind: WorkItem["kind"]): WorkItem[] {
    const items = (this.#byTarget.get(targetName(target)) ?? []).flatMap((job) => this.#items.get(job) ?? []);
    return items.filter((item) => item.kind === kind);
  }

  changes(): ItemChanges {
    const changes = { removed: this.#removed, kept: [...this.#kept.values()], added: [...this.#added.values()] };
    this.#removed = [];
    this.#kept = new Map();
    this.#added = new Map();
    return changes;
  }

  #know(item: WorkItem): void {
    this.#items.set(item.job, item);
    const name = targetName(item);
    const jobs = this.#byTarget.get(name);
    if (jobs === undefined) this.#byTarget.set(name, [item.job]);
    else if (!jobs.includes(item.job)) jobs.push(item.job);
  }
}

export class ExistingItems {
  readonly #ids: Map<string, string>;

  constructor(ids: readonly [name: string, id: string][]) {
    this.#ids = new Map(ids);
  }

  of({ work }: NewJob): Enqueued | undefined {
    const id = work && this.#ids.get(nameOf(work));
    return id === undefined ? undefined : { id, duplicate: true };
  }

  add({ work }: NewJob, id: string): void {
    if (work !== undefined) this.#ids.set(nameOf(work), id);
  }
}

function nameOf({ build, segment, path, stage, kind }: NewWork): string {
  return `${build} ${segment} ${kind} ${stage}\n${path}`;
}

function targetName({ build, segment, path }: TargetInBuild): string {
  return `${build} ${segment} ${path}`;
}

function toItem(row: ItemColumns): WorkItem {
  const { job, build, kind, stage, segment, path } = row;
  return {
    job,
    build,
    kind,
    stage,
    segment,
    path,
    estimate: { micros: row.estimate_micros, tokens: row.estimate_tokens },
    cost: { micros: row.cost_micros, tokens: row.cost_tokens },
    charged: { micros: row.charged_micros, tokens: row.charged_tokens },
  };
}

function listsOf(targets: readonly Pick<NewWork, "build" | "segment" | "path">[]) {
  return {
    builds: [...new Set(targets.flatMap(({ build }) => build ?? []))],
    segments: [...new Set(targets.map(({ segment }) => segment))],
    paths: [...new Set(targets.map(({ path }) => path))],
  };
}

interface Start {
  place: number;
  item: WorkItem;
  estimate: Amount;
}

interface Parts {
  batches: WorkBatches;
  settings: Settings;
}

export class CostLedger {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** The caller holds the locks of the items' queues. */
  *begin(tx: Tx, starts: readonly (LeaseRef & { estimate: Amount })[]): Script<Beginning[]> {
    const { batches, settings } = this.#parts;
    const answers = starts.map((): Beginning => "lost");
    const jobs = starts.map(({ job }) => job);
    const [totals, held] = yield* together(batches.totals.load(tx, [], jobs), batches.items.held(tx, starts));
    const reserved: { item: WorkItem; wanted: Amount }[] = [];
    const exhausted: string[] = [];
    for (const [build, group] of Map.groupBy(held, ({ item }) => item.build)) {
      const spend = totals.of(build);
      const asked = group.map(({ place, item }) => ({ place, item, estimate: (starts[place] as { estimate: Amount }).estimate }));
      const begun = begin(spend, asked);
      reserved.push(...begun.reserved);
      if (begun.isExhausted) exhausted.push(spend.queue);
      for (const [i, { place }] of asked.entries()) answers[place] = begun.answers[i] as Beginning;
    }
    yield* together(batches.items.reserve(tx, reserved), batches.totals.write(tx, totals));
    for (const queue of exhausted) yield* wait(settings.pause(tx, queue, true));
    return answers;
  }
}

interface Begun {
  answers: Beginning[];
  reserved: { item: WorkItem; wanted: Amount }[];
  /** True if no attempt of this build starts any more, so that its queue pauses. */
  isExhausted: boolean;
}

/** Decides which of these attempts of one build may start, in their order, and reserves their estimates. */
function begin(spend: BuildSpend, starts: readonly Start[]): Begun {
  if (spend.state !== "ACTIVE") return { answers: starts.map(() => "pause"), reserved: [], isExhausted: false };
  // A caller that lost the first answer asks again, but its estimate is reserved once.
  for (const { item } of starts) spend.ledger = settleReservation(spend.ledger, item.estimate, NO_COST);
  const estimates = starts.map(({ estimate }) => estimate);
  const { start, ledger, next } = reserveBatch(spend.ledger, estimates);
  spend.ledger = ledger;
  const reserved = starts.flatMap(({ item, estimate }, i) => {
    const wanted = i < start ? estimate : NO_COST;
    return isSame(item.estimate, wanted) ? [] : [{ item, wanted }];
  });
  const isExhausted = next.kind === "pause";
  if (isExhausted) spend.blocked = { reason: next.reason, refused: estimates[start] as Amount };
  return { answers: starts.map((_, i) => (i < start ? "start" : next.kind)), reserved, isExhausted };
}
