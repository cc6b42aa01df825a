import type { Budget } from "../../../core/budget.ts";
import { type BuildState, type BuildTransition, hasEnded } from "../../../core/build.ts";
import { buildId, type BuildKey } from "../../../core/ids.ts";
import { BUILD, type BuildColumns, buildPage, keyOfBuildCursor, toBuild } from "../../build-row.ts";
import type { BuildFilter, BuildRow, NewBuild, StageCounts } from "../../builds.ts";
import { listOf, type Rows } from "../driver.ts";
import type { Tx } from "../transaction.ts";

/** In their order, each by its name. */
const COLUMNS = BUILD.split(",").map((column) => column.trim());

/**
 * The rows of builds. Each is the lock of its build: whoever decides anything by it locks it first, and then reads it, so that
 * all that he finds is of one instant and stays so until his commit.
 */
export class Runs {
  readonly #sql: Record<
    | "byId"
    | "byKey"
    | "lockId"
    | "lockKey"
    | "unended"
    | "lockUnended"
    | "newest"
    | "newestOfEach"
    | "list"
    | "running"
    | "next"
    | "insert"
    | "insertStages"
    | "move"
    | "approve"
    | "nextRound",
    string
  >;

  constructor(s: string) {
    // Its stages are in the same statement, hence of the same instant.
    const read = `select ${BUILD}, (
        select json_agg(json_build_array(stage, ran, cached, stage.failed, passed, stage.open) order by place)
        from ${s}.build_stages as stage where stage.build = run.key)::text
      from ${s}.builds as run`;
    const lock = (of: string) => `select key from ${s}.builds where ${of} for no key update`;
    // By builds_unended: there is one at most.
    const unended = "pipeline = $1 and state not in ('SUCCESS', 'FAILED', 'ABANDONED')";
    this.#sql = {
      byId: `${read} where id = $1`,
      byKey: `${read} where key = $1`,
      lockId: lock("id = $1"),
      lockKey: lock("key = $1"),
      unended: `${read} where ${unended}`,
      lockUnended: lock(unended),
      newest: `${read} where pipeline = $1 and ($2::text is null or state = $2) order by key desc limit 1`,
      // By builds_pipeline, from each pipeline to the next: a seek for each, however many builds it has.
      newestOfEach: `
        with recursive known (name) as (
          select min(pipeline) from ${s}.builds
          union all
          select (select min(pipeline) from ${s}.builds where pipeline > known.name) from known where known.name is not null)
        ${read} where key in (
          select (select max(key) from ${s}.builds where pipeline = known.name) from known where known.name is not null)
        order by pipeline collate "C"`,
      list: `
        ${read} where key > $1 and ($2::text is null or pipeline = $2) and ($3::text is null or state = $3)
        order by key limit $4`,
      // Few jobs run at once, many work items may wait.
      running: `select count(*) from ${s}.running as job join ${s}.work as work on work.job = job.key where work.build = $1`,
      next: `select nextval('${s}.build')`,
      insert: `
        insert into ${s}.builds (key, id, pipeline, queue, state, reason, hash, description, options,
          budget_micros, budget_tokens, max_failures, created_at)
        values ($1, $2, $3, $4, 'PENDING', 'started', $5, $6, $7, $8, $9, $10, $11)`,
      insertStages: `
        insert into ${s}.build_stages (build, place, stage)
        select $1::bigint, place - 1, stage from unnest($2::text[]) with ordinality as one (stage, place)`,
      // What the budget refused is of no account when the build goes on: it will be asked again.
      move: `
        update ${s}.builds set state = $3::text, reason = $5, note = $6, seq = $4, approved = false,
          budget_micros = $7, budget_tokens = $8, finished_at = $9,
          blocked = case when $3::text = 'ACTIVE' then null else blocked end,
          refused_micros = case when $3::text = 'ACTIVE' then 0 else refused_micros end,
          refused_tokens = case when $3::text = 'ACTIVE' then 0 else refused_tokens end
        where key = $1 and state = $2 and seq = $4::integer - 1
        returning 1`,
      approve: `
        update ${s}.builds set approved = true, budget_micros = $2, budget_tokens = $3 where key = $1 and state = 'BUDGET_PAUSE'`,
      nextRound: `
        update ${s}.builds set round = $2::integer, listing = 'running'
        where key = $1 and state = 'ACTIVE' and round = $2::integer - 1
        returning 1`,
    };
  }

  async find(rows: Rows, id: string): Promise<BuildRow | null> {
    const [build] = await this.#read(rows(this.#sql.byId, id));
    return build ?? null;
  }

  /** The same, locked until the commit. */
  async lock(tx: Tx, id: string): Promise<BuildRow | null> {
    const [, [build]] = await Promise.all([tx.rows(this.#sql.lockId, id), this.#read(tx.rows(this.#sql.byId, id))]);
    return build ?? null;
  }

  async lockKey(tx: Tx, key: BuildKey): Promise<BuildRow> {
    const [, [build]] = await Promise.all([tx.rows(this.#sql.lockKey, key), this.#read(tx.rows(this.#sql.byKey, key))]);
    return build as BuildRow;
  }

  /** The one of this pipeline that has not ended, locked. In the turn of builds nobody makes another meanwhile. */
  async lockUnended(tx: Tx, pipeline: string): Promise<BuildRow | null> {
    const locked = tx.rows(this.#sql.lockUnended, pipeline);
    const [, [build]] = await Promise.all([locked, this.#read(tx.rows(this.#sql.unended, pipeline))]);
    return build ?? null;
  }

  async get(rows: Rows, key: BuildKey): Promise<BuildRow> {
    const [build] = await this.#read(rows(this.#sql.byKey, key));
    return build as BuildRow;
  }

  async newest(rows: Rows, pipeline: string, state: BuildState | null): Promise<BuildRow | null> {
    const [build] = await this.#read(rows(this.#sql.newest, pipeline, state));
    return build ?? null;
  }

  newestOfEach(rows: Rows): Promise<BuildRow[]> {
    return this.#read(rows(this.#sql.newestOfEach));
  }

  async list(rows: Rows, { pipeline, state, limit, after }: BuildFilter): Promise<{ items: BuildRow[]; next?: string }> {
    const of = [keyOfBuildCursor(after), pipeline ?? null, state ?? null] as const;
    return buildPage(await this.#read(rows(this.#sql.list, ...of, limit + 1)), limit);
  }

  /** Attempts of this build that are in flight. */
  async running(rows: Rows, { key, open, listing }: BuildRow): Promise<number> {
    if (open === 0 && listing !== "running") return 0;
    const [[running]] = (await rows<[number]>(this.#sql.running, key)) as [[number]];
    return running;
  }

  /** PENDING, and nothing is told of it yet. */
  async insert(tx: Tx, build: NewBuild): Promise<BuildRow> {
    const { pipeline, queue, hash, description, options, maxFailures, budget, stages } = build;
    const now = await tx.now();
    const [[key]] = (await tx.rows<[BuildKey]>(this.#sql.next)) as [[BuildKey]];
    const about = [pipeline, queue, hash, description, options] as const;
    await tx.rows(this.#sql.insert, key, buildId(now, key), ...about, budget.micros, budget.tokens, maxFailures, now);
    await tx.rows(this.#sql.insertStages, key, listOf(stages));
    tx.wrote();
    return this.get(tx.rows, key);
  }

  /** Writes a transition of the build as it was read. */
  async move(
    tx: Tx,
    { key }: BuildRow,
    { from, to, seq, reason, note }: BuildTransition,
    { micros, tokens }: Budget,
  ): Promise<BuildRow> {
    const finishedAt = hasEnded(to) ? await tx.now() : null;
    const moved = await tx.rows(this.#sql.move, key, from, to, seq, reason, note, micros, tokens, finishedAt);
    if (moved.length === 0) throw new Error(`build ${key} is not ${from} any more`);
    tx.wrote();
    return this.get(tx.rows, key);
  }

  async approve(tx: Tx, { key }: BuildRow, { micros, tokens }: Budget): Promise<BuildRow> {
    await tx.rows(this.#sql.approve, key, micros, tokens);
    tx.wrote();
    return this.get(tx.rows, key);
  }

  /** False: it is not in the round before, or not ACTIVE. */
  async nextRound(tx: Tx, { key }: BuildRow, round: number): Promise<boolean> {
    const moved = (await tx.rows(this.#sql.nextRound, key, round)).length > 0;
    if (moved) tx.wrote();
    return moved;
  }

  async #read(rows: Promise<(readonly unknown[])[]>): Promise<BuildRow[]> {
    return (await rows).map((row) => {
      const columns = Object.fromEntries(COLUMNS.map((column, i) => [column, row[i]])) as unknown as BuildColumns;
      return toBuild(columns, stagesOf(row[COLUMNS.length] as string | null));
    });
  }
}

function stagesOf(text: string | null): StageCounts[] {
  const stages = JSON.parse(text ?? "[]") as [string, number, number, number, number, number][];
  return stages.map(([stage, ran, cached, failed, passed, open]) => ({ stage, ran, cached, failed, passed, open }));
}
