import type { Budget } from "../../../core/budget.ts";
import { type BuildState, type BuildTransition, hasEnded } from "../../../core/build.ts";
import { buildId, type BuildKey } from "../../../core/ids.ts";
import { BUILD, type BuildColumns, buildPage, keyOfBuildCursor, toBuild } from "../../build-row.ts";
import { damagedRow } from "../../../core/errors.ts";
import type { BuildFilter, BuildRow, NewBuild, StageCounts } from "../../builds.ts";
import { BUILDS, NULL, totalOf } from "../damage/balance.ts";
import { buildSum } from "../damage/sums.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

type SummedRow = BuildColumns & { sum: number | null; balanced: 0 | 1 };

/** The rows of builds. */
export class Runs {
  readonly #byId: Statement;
  readonly #byKey: Statement;
  readonly #stages: Statement;
  readonly #unended: Statement;
  readonly #newest: Statement;
  readonly #newestOfEach: Statement;
  readonly #list: Statement;
  readonly #running: Statement;
  readonly #highest: Statement;
  readonly #insert: Statement;
  readonly #insertStage: Statement;
  readonly #move: Statement;
  readonly #approve: Statement;
  readonly #nextRound: Statement;

  constructor(db: Connection) {
    const read = `select ${BUILD}, sum, balance = ${totalOf(BUILDS)} as balanced from holdfast_builds`;
    this.#byId = db.prepare(`${read} where id = :id`);
    this.#byKey = db.prepare(`${read} where key = :key`);
    this.#stages = db.prepare(
      "select stage, ran, cached, failed, passed, open from holdfast_build_stages where build = :build order by place",
    );
    // By holdfast_builds_unended: there is one at most.
    this.#unended = db.prepare(`${read} where pipeline = :pipeline and state not in ('SUCCESS', 'FAILED', 'ABANDONED')`);
    const of = "(:pipeline is null or pipeline = :pipeline) and (:state is null or state = :state)";
    this.#newest = db.prepare(
      `${read} where pipeline = :pipeline and (:state is null or state = :state) order by key desc limit 1`,
    );
    // By holdfast_builds_pipeline, from each pipeline to the next: a seek for each, however many builds it has.
    this.#newestOfEach = db.prepare(
      `${read} where key in (
         with recursive known (name) as (
           select min(pipeline) from holdfast_builds
           union all
           select (select min(pipeline) from holdfast_builds where pipeline > known.name) from known where known.name is not null)
         select (select max(key) from holdfast_builds where pipeline = known.name) from known where known.name is not null)
       order by pipeline`,
    );
    this.#list = db.prepare(`${read} where key > :after and ${of} order by key limit :limit`);
    // By holdfast_jobs_running: few jobs run at once, many work items may wait.
    this.#running = db.prepare(
      `select count(*) from holdfast_jobs as job cross join holdfast_work as work on work.job = job.key
       where job.state = 'running' and work.build = ?`,
    );
    this.#highest = db.prepare("select coalesce((select seq from sqlite_sequence where name = 'holdfast_builds'), 0)");
    this.#insert = db.prepare(
      `insert into holdfast_builds (key, id, pipeline, queue, state, reason, hash, description, options,
         budget_micros, budget_tokens, max_failures, created_at, sum, balance)
       values (:key, :id, :pipeline, :queue, 'PENDING', 'started', :hash, :description, :options,
         :micros, :tokens, :maxFailures, :now, :sum, coalesce(:micros, ${NULL}) + coalesce(:tokens, ${NULL}) + ${NULL})`,
    );
    this.#insertStage = db.prepare("insert into holdfast_build_stages (build, place, stage, balance) values (?, ?, ?, ?)");
    // What the budget refused is of no account when the build goes on: it will be asked again.
    this.#move = db.prepare(
      `update holdfast_builds set state = :to, reason = :reason, note = :note, seq = :seq, approved = 0,
         budget_micros = :micros, budget_tokens = :tokens, finished_at = :finishedAt,
         blocked = case when :to = 'ACTIVE' then null else blocked end,
         refused_micros = case when :to = 'ACTIVE' then 0 else refused_micros end,
         refused_tokens = case when :to = 'ACTIVE' then 0 else refused_tokens end
       where key = :key and state = :from and seq = :seq - 1`,
    );
    this.#approve = db.prepare(
      `update holdfast_builds set approved = 1, budget_micros = :micros, budget_tokens = :tokens
       where key = :key and state = 'BUDGET_PAUSE'`,
    );
    this.#nextRound = db.prepare(
      `update holdfast_builds set round = :round, listing = 'running'
       where key = :key and state = 'ACTIVE' and round = :round - 1`,
    );
  }

  find(id: string): BuildRow | null {
    return this.#whole(this.#byId.get<SummedRow>({ id }));
  }

  get(key: BuildKey): BuildRow {
    return this.#whole(this.#byKey.get<SummedRow>({ key })) as BuildRow;
  }

  unended(pipeline: string): BuildRow | null {
    return this.#whole(this.#unended.get<SummedRow>({ pipeline }));
  }

  newest(pipeline: string, state: BuildState | null): BuildRow | null {
    return this.#whole(this.#newest.get<SummedRow>({ pipeline, state }));
  }

  newestOfEach(): BuildRow[] {
    return this.#newestOfEach.all<SummedRow>().map((row) => this.#whole(row) as BuildRow);
  }

  list({ pipeline, state, limit, after }: BuildFilter): { items: BuildRow[]; next?: string } {
    const of = { pipeline: pipeline ?? null, state: state ?? null };
    const rows = this.#list.all<SummedRow>({ ...of, after: keyOfBuildCursor(after), limit: limit + 1 });
    return buildPage(
      rows.map((row) => this.#whole(row) as BuildRow),
      limit,
    );
  }

  /** Attempts of this build that are in flight. */
  running({ key, open, listing }: BuildRow): number {
    if (open === 0 && listing !== "running") return 0;
    return (this.#running.row(key) as [number])[0];
  }

  /** PENDING, and nothing is told of it yet. */
  insert(tx: Tx, build: NewBuild): BuildRow {
    const { pipeline, queue, hash, description, options, maxFailures, budget, stages } = build;
    const key = ((this.#highest.row() as [number])[0] + 1) as BuildKey;
    const id = buildId(tx.now, key);
    const row = { key, id, pipeline, queue, hash, description, options, maxFailures, now: tx.now };
    const sum = buildSum({ ...row, max_failures: maxFailures, created_at: tx.now });
    this.#insert.runNamed({ ...row, sum, micros: budget.micros, tokens: budget.tokens });
    for (const [place, stage] of stages.entries()) this.#insertStage.run(key, place, stage, place);
    tx.wrote();
    return this.get(key);
  }

  /** Writes a transition of the build as it was read. */
  move(tx: Tx, { key }: BuildRow, { from, to, seq, reason, note }: BuildTransition, { micros, tokens }: Budget): BuildRow {
    const finishedAt = hasEnded(to) ? tx.now : null;
    const moved = this.#move.runNamed({ key, from, to, seq, reason, note, micros, tokens, finishedAt });
    if (moved === 0) throw new Error(`build ${key} is not ${from} any more`);
    tx.wrote();
    return this.get(key);
  }

  approve(tx: Tx, { key }: BuildRow, { micros, tokens }: Budget): BuildRow {
    this.#approve.runNamed({ key, micros, tokens });
    tx.wrote();
    return this.get(key);
  }

  /** False: it is not in the round before, or not ACTIVE. */
  nextRound(tx: Tx, { key }: BuildRow, round: number): boolean {
    const moved = this.#nextRound.runNamed({ key, round }) > 0;
    if (moved) tx.wrote();
    return moved;
  }

  #whole(row: SummedRow | undefined): BuildRow | null {
    if (row === undefined) return null;
    if (row.sum !== buildSum(row) || row.balanced !== 1) throw damagedRow(`Build ${row.id}`);
    return toBuild(row, this.#stages.all<StageCounts>({ build: row.key }));
  }
}
