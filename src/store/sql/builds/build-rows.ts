import {
  approveBudget,
  type Budget,
  hashToken,
  judgeToken,
  mintToken,
  refusedToken,
  type StoredToken,
} from "../../../core/pipelines/budget.ts";
import { type BuildTransition, hasEnded } from "../../../core/pipelines/build.ts";
import { crashError } from "../../../core/jobs/retry.ts";
import { buildId, type BuildKey, type ProcessId } from "../../../core/text/ids.ts";
import {
  type Approval,
  BUILD,
  type BuildColumns,
  type BuildFilter,
  buildPage,
  type BuildRow,
  keyOfBuildCursor,
  type LockToken,
  type MintedToken,
  type NewBuild,
  type NewOrchestratorLock,
  ORCHESTRATOR_TTL_MS,
  type OrchestratorLockColumns,
  type OrchestratorLockRow,
  retriedIn,
  type StageCounts,
  toBuild,
  type TokenColumns,
  toOrchestratorLock,
  toToken,
} from "../../builds.ts";
import type { KnownProcesses } from "../../processes.ts";
import { type Access, RowGuard, type Dialect, type Params, type Reads, type Script, together, type Tx } from "../script.ts";

type Row = BuildColumns & { stages: string | null };

/** A build's row is also its lock: a transaction locks it before it reads it, so what it has read holds until the commit. */
export class Runs {
  readonly #guard: RowGuard;
  readonly #sql: ReturnType<typeof runsSql>;

  constructor(dialect: Dialect) {
    this.#guard = new RowGuard(dialect, "builds");
    this.#sql = runsSql(dialect, this.#guard);
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
    const { pipeline = null, state = null, limit, order } = filter;
    const isNewest = order === "newest";
    const after = isNewest && filter.after === undefined ? Number.MAX_SAFE_INTEGER : keyOfBuildCursor(filter.after);
    const params = { after, pipeline, state, limit: limit + 1 };
    return buildPage(yield* this.#all(db, isNewest ? this.#sql.listNewest : this.#sql.list, params), limit);
  }

  *running(db: Reads, { key, open, listing }: BuildRow): Script<number> {
    if (open === 0 && listing !== "running") return 0;
    const row = yield* db.get<{ running: number }>(this.#sql.running, { key });
    return (row as { running: number }).running;
  }

  *insert(tx: Tx, build: NewBuild): Script<BuildRow> {
    const { pipeline, queue, hash, description, options, maxFailures, budget, stages } = build;
    const now = yield* tx.time();
    const { next: key } = (yield* tx.get<{ next: BuildKey }>(this.#sql.next)) as { next: BuildKey };
    const created = { max_failures: maxFailures, created_at: now };
    const row = { key, id: buildId(now, key), pipeline, queue, hash, description, options, ...created };
    yield* tx.run(this.#sql.insert, { ...this.#guard.sign(row), ...budget });
    yield* tx.run(this.#sql.insertStages, { key, stages });
    return yield* this.get(tx, key);
  }

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

  /** Returns false unless the build is ACTIVE in the round before. It may return to round 0 when nothing later is open. */
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
      this.#guard.check(row, `Build ${row.id}`);
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

function runsSql(dialect: Dialect, guard: RowGuard) {
  const builds = dialect.table("builds");
  const stages = dialect.table("build_stages");
  const read = `
    select ${BUILD}${guard.column},
      ${dialect.jsonRows(STAGE, `${stages} as stage where stage.build = run.key`, "place")} as stages
    from ${builds} as run`;
  const lock = `select key from ${builds}`;
  const unended = "pipeline = :pipeline and state not in ('SUCCESS', 'FAILED', 'ABANDONED')";
  const isAsked = `(cast(:pipeline as text) is null or pipeline = :pipeline)
    and (cast(:state as text) is null or state = :state)`;
  return {
    byId: `${read} where id = :id`,
    byKey: `${read} where key = :key`,
    lockId: `${lock} where id = :id`,
    lockKey: `${lock} where key = :key`,
    unended: `${read} where ${unended}`,
    lockUnended: `${lock} where ${unended}`,
    newest: `
      ${read} where pipeline = :pipeline and (cast(:state as text) is null or state = :state) order by key desc limit 1`,
    // Uses builds_pipeline, and seeks from each pipeline to the next, so that the number of builds does not matter.
    newestOfEach: `
      with recursive known (name) as (
        select min(pipeline) from ${builds}
        union all
        select (select min(pipeline) from ${builds} where pipeline > known.name) from known where known.name is not null)
      ${read} where key in (
        select (select max(key) from ${builds} where pipeline = known.name) from known where known.name is not null)
      order by pipeline`,
    list: `${read} where key > :after and ${isAsked} order by key limit :limit`,
    listNewest: `${read} where key < :after and ${isAsked} order by key desc limit :limit`,
    // Few jobs run at once, but many work items may wait. The plus keeps databases from starting with the work items.
    running: `
      select count(*) as running from ${dialect.running} as job join ${dialect.table("work")} as work on work.job = job.key
      where +work.build = :key`,
    next: dialect.nextKey("builds"),
    insert: `
      insert into ${builds} (key, id, pipeline, queue, state, reason, hash, description, options,
        budget_micros, budget_tokens, max_failures, created_at${guard.column})
      values (:key, :id, :pipeline, :queue, 'PENDING', 'started', :hash, :description, :options,
        :micros, :tokens, :max_failures, :created_at${guard.value})`,
    insertStages: `
      insert into ${stages} (build, place, stage)
      select cast(:key as bigint), place, value from ${dialect.items("text", ":stages")} as item`,
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

interface LeftBuild {
  key: BuildKey;
  id: string;
  /** The pipeline whose lock its orchestrator has left; null if there is no such lock. */
  lock: string | null;
}

/** Renews orchestrator locks. The keeper thread needs nothing else of builds. */
export class OrchestratorBeats {
  readonly #access: Access;
  readonly #sql: string;

  constructor(dialect: Dialect, access: Access) {
    this.#access = access;
    this.#sql = `update ${dialect.table("leads")} set beat_at = :now where pipeline = :pipeline and token = :token`;
  }

  beat({ pipeline, token }: LockToken): Promise<boolean> {
    return this.#access.write("beat", (tx) => tx.run(this.#sql, { pipeline, token }));
  }
}

export class OrchestratorLocks {
  readonly #sql: ReturnType<typeof orchestratorLocksSql>;

  constructor(dialect: Dialect) {
    this.#sql = orchestratorLocksSql(dialect);
  }

  *held(db: Reads, pipeline: string): Script<OrchestratorLockRow | null> {
    const [lock] = yield* this.#read(db, this.#sql.held, { pipeline });
    return lock ?? null;
  }

  *holding(db: Reads, build: BuildKey, { pipeline, token }: LockToken): Script<OrchestratorLockRow | null> {
    const row = yield* db.get<OrchestratorLockColumns>(this.#sql.find, { pipeline });
    return row === undefined || row.token !== token || row.key !== build ? null : toOrchestratorLock(row);
  }

  list(db: Reads, pipeline?: string): Script<OrchestratorLockRow[]> {
    if (pipeline === undefined) return this.#read(db, this.#sql.all);
    return this.#read(db, this.#sql.find, { pipeline });
  }

  *orchestratedBy(db: Reads, holder: ProcessId): Script<{ build: string; key: BuildKey }[]> {
    return yield* db.all<OrchestratorLockColumns>(this.#sql.orchestratedBy, { holder });
  }

  *#read(db: Reads, sql: string, params?: Params): Script<OrchestratorLockRow[]> {
    return (yield* db.all<OrchestratorLockColumns>(sql, params)).map(toOrchestratorLock);
  }

  *take(tx: Tx, pipeline: string, build: BuildKey, lead: NewOrchestratorLock): Script<void> {
    const { token, holder, pid, host, program, programHash } = lead;
    yield* tx.run(this.#sql.take, { pipeline, build, token, holder, pid, host, program, programHash });
  }

  release(tx: Tx, build: BuildKey): Script<boolean> {
    return tx.run(this.#sql.release, { build });
  }

  /** Returns ACTIVE builds without an orchestrator, or whose orchestrator is dead or has been silent for too long. */
  *withoutOrchestrator(db: Reads, { dead, alive }: KnownProcesses): Script<LeftBuild[]> {
    return yield* db.all<LeftBuild>(this.#sql.withoutOrchestrator, { dead, alive });
  }
}

function orchestratorLocksSql(dialect: Dialect) {
  const leads = dialect.table("leads");
  const builds = dialect.table("builds");
  const registered = `exists (select 1 from ${dialect.table("processes")} where id = lead.holder)`;
  const read = `
    select lead.pipeline, build.id as build, build.key, lead.token, lead.holder, lead.pid, lead.host, lead.program,
      lead.program_hash as "programHash", lead.acquired_at as "acquiredAt", lead.beat_at as "beatAt"
    from ${leads} as lead join ${builds} as build on build.key = lead.build`;
  return {
    find: `${read} where lead.pipeline = :pipeline`,
    held: `${read} where lead.pipeline = :pipeline and ${registered}`,
    all: `${read} order by lead.pipeline`,
    // Fails if a process holds the lock, whatever was read before.
    take: `
      insert into ${leads} (pipeline, build, token, holder, pid, host, program, program_hash, acquired_at, beat_at)
      values (:pipeline, :build, :token, :holder, :pid, :host, :program, :programHash, :now, :now)`,
    release: `delete from ${leads} where build = :build`,
    orchestratedBy: `${read} where lead.holder = :holder order by build.key`,
    // Uses builds_unended, whose condition is repeated so that the planner recognizes it.
    withoutOrchestrator: `
      select build.key, build.id, lead.pipeline as lock from ${builds} as build
        left join ${leads} as lead on lead.pipeline = build.pipeline and lead.build = build.key
      where build.state = 'ACTIVE' and build.state not in ('SUCCESS', 'FAILED', 'ABANDONED')
        and (lead.build is null or not ${registered}
          or ${dialect.in("lead.holder", "bigint", ":dead")}
          or (lead.beat_at <= :now - ${ORCHESTRATOR_TTL_MS} and not ${dialect.in("lead.holder", "bigint", ":alive")}))
      order by +build.key`,
  };
}

/** Confirmation tokens, stored as hashes. The caller has locked the build's row. */
export class Tokens {
  readonly #sql: ReturnType<typeof tokensSql>;

  constructor(dialect: Dialect) {
    this.#sql = tokensSql(dialect);
  }

  *mint(tx: Tx, build: BuildRow, { bytes }: MintedToken): Script<StoredToken> {
    const { stored } = mintToken(bytes, build, yield* tx.time());
    const { hash, pause, mintedAt, expiresAt } = stored;
    yield* tx.run(this.#sql.replace, { build: build.key, at: mintedAt });
    yield* tx.run(this.#sql.add, { hash, build: build.key, pause, mintedAt, expiresAt });
    return stored;
  }

  *use(tx: Tx, build: BuildRow, { token: presented, budget }: Approval): Script<Budget> {
    const now = yield* tx.time();
    const stored = typeof presented === "string" ? yield* this.#find(tx, presented) : null;
    const verdict = judgeToken({ presented, stored, build, now });
    if (!verdict.ok) throw refusedToken(verdict.code, build);
    const approved = approveBudget(build, budget, build.refused);
    yield* tx.run(this.#sql.use, { hash: verdict.used.hash, at: now });
    return approved;
  }

  *#find(db: Reads, token: string): Script<StoredToken | null> {
    const row = yield* db.get<TokenColumns>(this.#sql.find, { hash: hashToken(token) });
    return row === undefined ? null : toToken(row);
  }
}

function tokensSql({ table }: Dialect) {
  const tokens = table("tokens");
  return {
    find: `
      select token.hash, build.id as build, token.pause, token.minted_at, token.expires_at, token.used_at, token.replaced_at
      from ${tokens} as token join ${table("builds")} as build on build.key = token.build where token.hash = :hash`,
    add: `
      insert into ${tokens} (hash, build, pause, minted_at, expires_at) values (:hash, :build, :pause, :mintedAt, :expiresAt)`,
    use: `update ${tokens} set used_at = :at where hash = :hash and used_at is null`,
    replace: `update ${tokens} set replaced_at = :at where build = :build and used_at is null and replaced_at is null`,
  };
}

/** A resume takes failures out of the counts and a listing deletes them in batches. The rest counts again when ACTIVE ends. */
export class Retries {
  readonly #sql: ReturnType<typeof retriesSql>;

  constructor(dialect: Dialect) {
    this.#sql = retriesSql(dialect);
  }

  *any(db: Reads, key: BuildKey): Script<boolean> {
    return (yield* db.get(this.#sql.any, { mark: retriedIn(key) })) !== undefined;
  }

  *begin(tx: Tx, { key, failed, state, reason }: BuildRow, byOperator: boolean): Script<void> {
    const mayLoop = !byOperator && state === "CRASHED" && reason !== "stopped";
    if (failed > 0) yield* this.#move(tx, key, mayLoop ? this.#sql.beginWithoutKillers : this.#sql.begin);
  }

  *end(tx: Tx, { key }: BuildRow): Script<void> {
    if (yield* this.any(tx, key)) yield* this.#move(tx, key, this.#sql.end);
  }

  *#move(tx: Tx, key: BuildKey, move: string): Script<void> {
    yield* tx.run(move, { key, mark: retriedIn(key) });
    yield* tx.run(this.#sql.count, { key });
    yield* tx.run(this.#sql.countStages, { key });
  }
}

/** A quarantined target may have killed the orchestrator: a supervisor that restarts it would run the target for ever. */
const CRASHED = `'${JSON.stringify(crashError(0)).split('"message"', 1)[0]}%'`;

function retriesSql(dialect: Dialect) {
  const results = dialect.table("results");
  const stages = dialect.table("build_stages");
  // The failure of a listing has no stage, and counts for no stage.
  const failed = `select count(*) from ${results} as result where result.build = :key and result.state = 'FAILED'`;
  const begin = `update ${results} set build = :mark where build = :key and state = 'FAILED' and stage <> ''`;
  return {
    any: `select 1 from ${results} where build = :mark and state = 'FAILED' limit 1`,
    begin,
    beginWithoutKillers: `${begin} and error not like ${CRASHED}`,
    end: `update ${results} set build = :key where build = :mark and state = 'FAILED'`,
    count: `update ${dialect.table("builds")} set failed = (${failed} and result.stage <> '') where key = :key`,
    countStages: `update ${stages} set failed = (${failed} and result.stage = ${stages}.stage) where build = :key`,
  };
}

/** Selects builds that have ended and still have work items, by seeks in work_target. */
export function endedWithWork({ table }: Dialect): string {
  const work = table("work");
  return `
    with recursive open (build) as (
      select min(build) from ${work}
      union all
      select (select min(work.build) from ${work} as work where work.build > open.build) from open
      where open.build is not null)
    select key, pipeline, queue from open join ${table("builds")} on key = open.build
    where state in ('SUCCESS', 'FAILED', 'ABANDONED')`;
}
