import type { ResultKey } from "../../../core/text/ids.ts";
import { retriedIn } from "../../builds.ts";
import {
  type FoundResult,
  type OutputColumns,
  type ResultColumns,
  type ResultContext,
  type ResultQuery,
  type StoredResult,
  toOutput,
  toResult,
} from "../../work.ts";
import type { Dialect, Params, Reads, Script } from "../script.ts";

/** What a store adds to the rows of results so that damage to them is noticed. */
export interface ResultGuard {
  /** Begins with a comma. */
  columns: string;
  /** The columns of a result that is looked up by its hash. */
  found: string;
  isIntact(row: OutputColumns): boolean;
  /** Throws if a row is not what was written. */
  check(row: CheckedResult): void;
  /** The checksum that is written with a row; null where rows have none. */
  readonly checksum: ((row: CheckedResult) => number) | null;
}

/** What the check of a result covers, at the least. */
export type CheckedResult = Omit<ResultColumns, "build" | "state" | "key"> & { state: string };

/** Reads what stages have made, and what went wrong. */
export class Results {
  readonly #guard: ResultGuard;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, guard: ResultGuard) {
    this.#guard = guard;
    this.#sql = statements(dialect, guard);
  }

  *lookUp(db: Reads, pipeline: string, contexts: readonly ResultContext[]): Script<(FoundResult | null)[]> {
    type Found = OutputColumns & { place: number; result: ResultKey };
    const found: (FoundResult | null)[] = contexts.map(() => null);
    const asked = contexts.map(({ stage, hash, path, build }, place) => ({ place, stage, hash, path, build }));
    for (const [sql, some] of [
      [this.#sql.lookUp, asked.filter(({ path }) => path !== undefined)],
      [this.#sql.lookUpShared, asked.filter(({ path }) => path === undefined)],
    ] as const) {
      if (some.length === 0) continue;
      // A damaged result counts as none: it is made again.
      for (const row of yield* db.all<Found>(sql, { pipeline, keys: JSON.stringify(some) }))
        if (this.#guard.isIntact(row)) found[row.place] = { key: row.result, output: toOutput(row) };
    }
    return found;
  }

  *read(db: Reads, query: ResultQuery): Script<StoredResult[]> {
    const sql = this.#sql;
    if ("keys" in query) return yield* this.#read(db, sql.byKey, { keys: query.keys });
    if ("retried" in query) {
      const { retried, after, limit } = query;
      return yield* this.#read(db, sql.retried, { build: retriedIn(retried), after, limit });
    }
    if ("failed" in query) return yield* this.#read(db, sql.failures, { build: query.build, limit: query.limit });
    const { build, stage } = query;
    if ("path" in query) {
      const found = yield* this.#read(db, query.before ? sql.before : sql.of, { build, stage, path: query.path });
      return found.filter(({ state }) => (state as string) !== "GONE");
    }
    const { after = null, limit } = query;
    return yield* this.#read(db, after === null ? sql.ofStage.first : sql.ofStage.next, { build, stage, after, limit });
  }

  *#read(db: Reads, sql: string, params: Params): Script<StoredResult[]> {
    return (yield* db.all<ResultColumns>(sql, params)).map((row) => {
      this.#guard.check(row);
      return toResult(row);
    });
  }
}

function statements({ table, rows, items, firstRow }: Dialect, guard: ResultGuard) {
  const results = table("results");
  const builds = table("builds");
  const columns = `result.key, build.id as build, result.stage, result.path, result.target, result.state, result.hash, result.parts,
    result.output_hash, result.output_text, result.output_file, result.output_size, result.micros, result.tokens, result.error,
    result.at${guard.columns}`;
  const andBuild = `left join ${builds} as build on build.key = result.build`;
  const read = `select ${columns} from ${results} as result ${andBuild}`;
  const own = `(select key from ${builds} where id = :build)`;
  const pipeline = `(select pipeline from ${builds} where id = :build)`;
  // By the index results_target; a build has one row at most.
  const before = (state: string) => `
    ${read} where result.pipeline = ${pipeline} and result.stage = :stage and result.path = :path
      and result.build < ${own} and result.build > 0 and result.state <> '${state}'
    order by result.build desc limit 1`;
  const nextPath = (after: string) => `(
    select path from ${results} where pipeline = ${pipeline} and stage = :stage ${after} order by path limit 1)`;
  // From one path to the next, and of each path the build's own row, else the newest before it that is no failure.
  const ofStage = (after: string) => `
    with recursive paths (path) as (
      select ${nextPath(after)}
      union all
      select ${nextPath("and path > paths.path")} from paths where paths.path is not null)
    select ${columns} from paths ${firstRow(
      results,
      "result",
      `where one.pipeline = ${pipeline} and one.stage = :stage and one.path = paths.path
        and one.build <= ${own} and one.build > 0 and (one.state <> 'FAILED' or one.build = ${own})
      order by one.build desc`,
    )} ${andBuild}
    where result.state in ('SUCCESS', 'REUSED') limit :limit`;
  const lookUp = (isOne: string) => `
    select asked.place, result.key as result, ${guard.found}
    from ${rows(":keys", { place: "bigint", stage: "text", hash: "text", path: "text", build: "bigint" })} as asked ${firstRow(
      results,
      "result",
      `where ${isOne} and one.state = 'SUCCESS' and (asked.build is null or one.build = asked.build) order by one.key desc`,
    )}`;
  return {
    // The newest first, by the index results_context, or results_hash.
    lookUp: lookUp("one.pipeline = :pipeline and one.stage = asked.stage and one.path = asked.path and one.hash = asked.hash"),
    lookUpShared: lookUp("one.hash = asked.hash and one.shared = 1 and one.pipeline = :pipeline and one.stage = asked.stage"),
    byKey: `
      select ${columns} from ${items("bigint", ":keys")} as asked join ${results} as result on result.key = asked.value
      ${andBuild} order by asked.place`,
    of: `
      select * from (${read} where result.pipeline = ${pipeline} and result.stage = :stage and result.path = :path and result.build = ${own}) as own
      union all select * from (${before("FAILED")}) as earlier limit 1`,
    before: before("GONE"),
    ofStage: { first: ofStage(""), next: ofStage("and path > :after") },
    // By the index results_failed.
    failures: `${read} where result.build = ${own} and result.state = 'FAILED' order by result.key limit :limit`,
    // By the index results_failed.
    retried: `${read} where result.build = :build and result.state = 'FAILED' and result.key > :after order by result.key limit :limit`,
  };
}
