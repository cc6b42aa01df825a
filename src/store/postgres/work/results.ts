import type { BuildKey, ResultKey } from "../../../core/ids.ts";
import { retriedIn } from "../../build-row.ts";
import { type OutputColumns, type ResultColumns, toOutput, toResult } from "../../result-row.ts";
import type { FoundResult, Retry, StoredResult } from "../../work.ts";
import { listOf, type Rows, type Value } from "../driver.ts";
import { listsOf, named, namesOf } from "./columns.ts";

const OUTPUT = "output_hash, output_text, output_file, output_size";
const COLUMNS = `result.key, build.id as build, result.stage, result.path, result.target, result.state, result.hash, result.parts,
  ${OUTPUT}, result.micros, result.tokens, result.error, result.at`;
const NAMES = namesOf(COLUMNS);
const OUTPUT_NAMES = namesOf(OUTPUT);

/** The record of what stages have made, and of what went wrong, for those who read it. */
export class Results {
  readonly #sql: Record<"lookUp" | "byKey" | "of" | "before" | "ofStage" | "failures" | "retries", string>;

  constructor(s: string) {
    const from = `from ${s}.results as result left join ${s}.builds as build on build.key = result.build`;
    const own = `(select key from ${s}.builds where id = $1)`;
    // By results_target; a build has one row at most.
    const before = (state: string) => `
      select ${COLUMNS} ${from}
      where result.pipeline = (select pipeline from ${s}.builds where id = $1) and result.stage = $2 and result.path = $3
        and result.build < ${own} and result.build > 0 ${state}
      order by result.build desc limit 1`;
    this.#sql = {
      // Each by results_hash, the newest first.
      lookUp: `
        select asked.turn, result.key, ${OUTPUT}
        from unnest($2::text[], $3::text[], $4::bigint[]) with ordinality as asked (stage, hash, build, turn)
        cross join lateral (
          select key, ${OUTPUT} from ${s}.results as one
          where one.hash = asked.hash and one.state = 'SUCCESS' and one.pipeline = $1 and one.stage = asked.stage
            and (asked.build is null or one.build = asked.build)
          order by one.key desc limit 1) as result`,
      byKey: `
        select ${COLUMNS} from unnest($1::bigint[]) with ordinality as asked (key, turn)
        join ${s}.results as result on result.key = asked.key left join ${s}.builds as build on build.key = result.build
        order by asked.turn`,
      of: `
        (select ${COLUMNS} ${from} where result.build = ${own} and result.stage = $2 and result.path = $3)
        union all (${before("and result.state <> 'FAILED'")}) limit 1`,
      before: before("and result.state <> 'GONE'"),
      // From one path to the next, and of each its own row, else the newest before it that is no failure.
      ofStage: `
        with recursive run as materialized (select key, pipeline from ${s}.builds where id = $1),
        paths (path) as (
          (select result.path from ${s}.results as result, run
           where result.pipeline = run.pipeline and result.stage = $2 and ($3::text is null or result.path > $3)
           order by result.path limit 1)
          union all
          select (
            select result.path from ${s}.results as result, run
            where result.pipeline = run.pipeline and result.stage = $2 and result.path > paths.path order by result.path limit 1)
          from paths where paths.path is not null)
        select ${COLUMNS} from paths cross join run cross join lateral (
          select * from ${s}.results as had
          where had.pipeline = run.pipeline and had.stage = $2 and had.path = paths.path
            and had.build <= run.key and had.build > 0 and (had.state <> 'FAILED' or had.build = run.key)
          order by had.build desc limit 1) as result
        left join ${s}.builds as build on build.key = result.build
        where result.state in ('SUCCESS', 'REUSED') limit $4`,
      // By results_failed.
      failures: `
        select ${COLUMNS} ${from} where result.build = ${own} and result.state = 'FAILED' order by result.key limit $2`,
      retries: `
        select key, stage, path from ${s}.results where build = $1 and state = 'FAILED' and key > $2 order by key limit $3`,
    };
  }

  async lookUp(
    rows: Rows,
    pipeline: string,
    keys: readonly { stage: string; hash: string; build?: BuildKey }[],
  ): Promise<(FoundResult | null)[]> {
    const found: (FoundResult | null)[] = keys.map(() => null);
    const asked = listsOf(
      keys,
      ({ stage }) => stage,
      ({ hash }) => hash,
      ({ build }) => build ?? null,
    );
    for (const [turn, key, ...output] of await rows<[number, ResultKey, ...unknown[]]>(this.#sql.lookUp, pipeline, ...asked)) {
      const [columns] = named<OutputColumns>(OUTPUT_NAMES, [output]) as [OutputColumns];
      found[turn - 1] = { key, output: toOutput(columns) };
    }
    return found;
  }

  byKey(rows: Rows, keys: readonly ResultKey[]): Promise<StoredResult[]> {
    return read(rows, this.#sql.byKey, listOf(keys));
  }

  async of(rows: Rows, build: string, stage: string, path: string): Promise<StoredResult | null> {
    const [result] = await read(rows, this.#sql.of, build, stage, path);
    return result === undefined || isGone(result) ? null : result;
  }

  async before(rows: Rows, build: string, stage: string, path: string): Promise<StoredResult | null> {
    const [result] = await read(rows, this.#sql.before, build, stage, path);
    return result ?? null;
  }

  ofStage(rows: Rows, build: string, stage: string, page: { after?: string; limit: number }): Promise<StoredResult[]> {
    return read(rows, this.#sql.ofStage, build, stage, page.after ?? null, page.limit);
  }

  failures(rows: Rows, build: string, limit: number): Promise<StoredResult[]> {
    return read(rows, this.#sql.failures, build, limit);
  }

  async retries(rows: Rows, build: BuildKey, { after, limit }: { after: ResultKey | 0; limit: number }): Promise<Retry[]> {
    const found = await rows<[ResultKey, string, string]>(this.#sql.retries, retriedIn(build), after, limit);
    return found.map(([key, stage, path]) => ({ key, stage, path }));
  }
}

function isGone({ state }: { state: string }): boolean {
  return state === "GONE";
}

async function read(rows: Rows, text: string, ...values: Value[]): Promise<StoredResult[]> {
  return named<ResultColumns>(NAMES, await rows(text, ...values)).map(toResult);
}
