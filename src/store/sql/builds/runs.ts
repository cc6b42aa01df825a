import type { Budget } from "../../../core/pipelines/budget.ts";
import { type BuildTransition, hasEnded } from "../../../core/pipelines/build.ts";
import { buildId, type BuildKey } from "../../../core/text/ids.ts";
import {
  BUILD,
  type BuildColumns,
  type BuildFilter,
  buildPage,
  type BuildRow,
  keyOfBuildCursor,
  type NewBuild,
  type StageCounts,
  toBuild,
} from "../../builds.ts";
import { type Dialect, type Params, type Reads, type Script, together, type Tx } from "../script.ts";

/** What a store adds to the rows of builds so that damage to them is noticed. Names of columns begin with a comma. */
export interface BuildGuard {
  /** What is read in addition. */
  columns: string;
  /** Throws if a row is not what was written. */
  check(row: BuildColumns): void;
  inserted: { columns: string; values: string; params(row: InsertedBuild): Params };
}

export interface InsertedBuild {
  key: BuildKey;
  id: string;
  pipeline: string;
  queue: string;
  hash: string;
  description: string;
  options: string;
  max_failures: number | null;
  created_at: number;
}

type Row = BuildColumns & { stages: string | null };

/**
 * The rows of builds. A row is also the lock of its build: a transaction that bases a decision on it locks it first and reads it then, so
 * that everything it finds is of one instant and stays so until the commit.
 */
export class Runs {
  readonly #guard: BuildGuard;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, guard: BuildGuard) {
    this.#guard = guard;
    this.#sql = statements(dialect, guard);
  }

  find(db: Reads, id: string): Script<BuildRow | null> {
    return this.#first(db, this.#sql.byId, { id });
  }

  *get(db: Reads, key: BuildKey): Script<BuildRow> {
    return (yield* this.#first(db, this.#sql.byKey, { key })) as BuildRow;
  }

  lock(tx: Tx, id: string): Script<BuildRow | null> {
    return this.#locked(tx, this.#sql.lockId, this.#sql.byId, { id });
  }

  *lockKey(tx: Tx, key: BuildKey): Script<BuildRow> {
    return (yield* this.#locked(tx, this.#sql.lockKey, this.#sql.byKey, { key })) as BuildRow;
  }

  /** The one build of a pipeline that has not ended. */
  lockUnended(tx: Tx, pipeline: string): Script<BuildRow | null> {
    return this.#locked(tx, this.#sql.lockUnended, this.#sql.unended, { pipeline });
  }

  *list(db: Reads, filter: BuildFilter): Script<{ items: BuildRow[]; next?: string }> {
    if ("id" in filter) return { items: yield* this.#all(db, this.#sql.byId, { id: filter.id }) };
    if ("newest" in filter) {
      if (!("pipeline" in filter)) return { items: yield* this.#all(db, this.#sql.newestOfEach) };
      const { pipeline, state = null } = filter;
      return { items: yield* this.#all(db, this.#sql.newest, { pipeline, state }) };
    }
    const { pipeline = null, state = null, limit } = filter;
    const params = { after: keyOfBuildCursor(filter.after), pipeline, state, limit: limit + 1 };
    return buildPage(yield* this.#all(db, this.#sql.list, params), limit);
  }

  /** How many attempts of this build are running. */
  *running(db: Reads, { key, open, listing }: BuildRow): Script<number> {
    if (open === 0 && listing !== "running") return 0;
    const row = yield* db.get<{ running: number }>(this.#sql.running, { key });
    return (row as { running: number }).running;
  }

  /** A PENDING build, which is not announced yet. */
  *insert(tx: Tx, build: NewBuild): Script<BuildRow> {
    const { pipeline, queue, hash, description, options, maxFailures, budget, stages } = build;
    const now = yield* tx.time();
    const { next: key } = (yield* tx.get<{ next: BuildKey }>(this.#sql.next)) as { next: BuildKey };
    const created = { max_failures: maxFailures, created_at: now };
    const row = { key, id: buildId(now, key), pipeline, queue, hash, description, options, ...created };
    yield* tx.run(this.#sql.insert, { ...row, ...budget, ...this.#guard.inserted.params(row) });
    yield* tx.run(this.#sql.insertStages, { key, stages });
    return yield* this.get(tx, key);
  }

  /** Writes a transition of the build as it was read. */
  *move(tx: Tx, { key }: BuildRow, transition: BuildTransition, { micros, tokens }: Budget): Script<BuildRow> {
    const { from, to, seq, reason, note } = transition;
    const finishedAt = hasEnded(to) ? yield* tx.time() : null;
    const moved = yield* tx.run(this.#sql.move, { key, from, to, seq, reason, note, micros, tokens, finishedAt });
    if (!moved) throw new Error(`build ${key} is not ${from} any more`);
    return yield* this.get(tx, key);
  }

  *approve(tx: Tx, { key }: BuildRow, { micros, tokens }: Budget): Script<BuildRow> {
    yield* tx.run(this.#sql.approve, { key, micros, tokens });
    return yield* this.get(tx, key);
  }

  /** False if the build is not ACTIVE, or not in the round before this one; it may return to round 0 when nothing later is open. */
  nextRound(tx: Tx, { key }: BuildRow, round: number): Script<boolean> {
    return tx.run(this.#sql.nextRound, { key, round });
  }

  *#locked(tx: Tx, lock: string, read: string, params: Params): Script<BuildRow | null> {
    const [, build] = yield* together(tx.lock(lock, params), this.#first(tx, read, params));
    return build;
  }

  *#first(db: Reads, sql: string, params: Params): Script<BuildRow | null> {
    const [build] = yield* this.#all(db, sql, params);
    return build ?? null;
  }

  *#all(db: Reads, sql: string, params?: Params): Script<BuildRow[]> {
    return (yield* db.all<Row>(sql, params)).map((row) => {
      this.#guard.check(row);
      return toBuild(row, stagesOf(row.stages));
    });
  }
}

const STAGE = ["stage", "ran", "cached", "stage.failed", "passed", "stage.open"];

function stagesOf(text: string | null): StageCounts[] {
  const stages = JSON.parse(text ?? "[]") as [string, number, number, number, number, number][];
  return stages.map(([stage, ran, cached, failed, passed, open]) => ({ stage, ran, cached, failed, passed, open }));
}

function ifActive(value: string, column: string): string {
  return `${column} = case when :to = 'ACTIVE' then ${value} else ${column} end`;
}

function statements(dialect: Dialect, { columns, inserted }: BuildGuard) {
  const builds = dialect.table("builds");
  const stages = dialect.table("build_stages");
  // The stages are read in the same statement, hence as of the same instant.
  const read = `
    select ${BUILD}${columns},
      ${dialect.jsonRows(STAGE, `${stages} as stage where stage.build = run.key`, "place")} as stages
    from ${builds} as run`;
  const lock = `select key from ${builds}`;
  // Uses the index builds_unended: there is one at most.
  const unended = "pipeline = :pipeline and state not in ('SUCCESS', 'FAILED', 'ABANDONED')";
  return {
    byId: `${read} where id = :id`,
    byKey: `${read} where key = :key`,
    lockId: `${lock} where id = :id`,
    lockKey: `${lock} where key = :key`,
    unended: `${read} where ${unended}`,
    lockUnended: `${lock} where ${unended}`,
    newest: `
      ${read} where pipeline = :pipeline and (cast(:state as text) is null or state = :state) order by key desc limit 1`,
    // Uses the index builds_pipeline, and seeks from each pipeline to the next: it does not matter how many builds they have.
    newestOfEach: `
      with recursive known (name) as (
        select min(pipeline) from ${builds}
        union all
        select (select min(pipeline) from ${builds} where pipeline > known.name) from known where known.name is not null)
      ${read} where key in (
        select (select max(key) from ${builds} where pipeline = known.name) from known where known.name is not null)
      order by pipeline`,
    list: `
      ${read} where key > :after and (cast(:pipeline as text) is null or pipeline = :pipeline)
        and (cast(:state as text) is null or state = :state)
      order by key limit :limit`,
    // Few jobs run at once, but many work items may wait. The plus keeps databases from starting with those.
    running: `
      select count(*) as running from ${dialect.running} as job join ${dialect.table("work")} as work on work.job = job.key
      where +work.build = :key`,
    next: dialect.nextKey("builds"),
    insert: `
      insert into ${builds} (key, id, pipeline, queue, state, reason, hash, description, options,
        budget_micros, budget_tokens, max_failures, created_at${inserted.columns})
      values (:key, :id, :pipeline, :queue, 'PENDING', 'started', :hash, :description, :options,
        :micros, :tokens, :max_failures, :created_at${inserted.values})`,
    insertStages: `
      insert into ${stages} (build, place, stage)
      select cast(:key as bigint), place, value from ${dialect.items("text", ":stages")} as item`,
    // What the budget refused does not matter once the build continues: it will be asked again.
    move: `
      update ${builds} set state = cast(:to as text), reason = :reason, note = :note, seq = :seq, approved = false,
        budget_micros = :micros, budget_tokens = :tokens, finished_at = :finishedAt,
        ${ifActive("null", "blocked")}, ${ifActive("0", "refused_micros")}, ${ifActive("0", "refused_tokens")}
      where key = :key and state = :from and seq = :seq - 1`,
    approve: `
      update ${builds} set approved = true, budget_micros = :micros, budget_tokens = :tokens
      where key = :key and state = 'BUDGET_PAUSE'`,
    nextRound: `
      update ${builds} set round = :round, listing = 'running' where key = :key and state = 'ACTIVE'
        and (round = :round - 1 or (:round = 0 and listing = 'done' and (round = 0 or open = 0)))`,
  };
}
