import type { BuildKey, ResultKey } from "../../../core/ids.ts";
import { damagedRow } from "../../../core/errors.ts";
import { retriedIn } from "../../build-row.ts";
import { type OutputColumns, type ResultColumns, toOutput, toResult } from "../../result-row.ts";
import type { FoundResult, Retry, StoredResult } from "../../work.ts";
import type { MadeResult, ResultRows } from "../../work/rows.ts";
import { CHECKED, type CheckedRow, isIntact, rowChecksum } from "../checksum.ts";
import type { Connection, Named, Statement } from "../driver.ts";
import type { ArtifactRefs } from "./artifact-refs.ts";

const OUTPUT = "output_hash, output_text, output_file, output_size";
const COLUMNS = `result.key, build.id as build, result.stage, result.path, result.target, result.state, result.hash, result.parts,
  ${OUTPUT}, result.micros, result.tokens, result.error, result.at, result.pipeline, result.checksum`;
const RESULT = `select ${COLUMNS} from holdfast_results as result left join holdfast_builds as build on build.key = result.build`;

const MADE = [...CHECKED.holdfast_results, "checksum"].map((name) => `result.${name}`).join(", ");

type Row = CheckedRow<"holdfast_results"> & OutputColumns;

/** The record of what stages have made, and of what went wrong. */
export class Results implements ResultRows {
  readonly #artifacts: ArtifactRefs;
  readonly #own: Statement;
  readonly #insert: Statement;
  readonly #made: Statement;
  readonly #remove: Statement;
  readonly #setAside: Statement;
  readonly #recall: Statement;
  readonly #lookUp: Statement;
  readonly #byKey: Statement;
  readonly #of: Statement;
  readonly #ofBefore: Statement;
  readonly #before: Statement;
  readonly #ofStage: Statement;
  readonly #failures: Statement;
  readonly #retries: Statement;
  readonly #retried: Statement;

  constructor(db: Connection, artifacts: ArtifactRefs) {
    this.#artifacts = artifacts;
    this.#own = db.prepare("select key, state from holdfast_results where build = ? and stage = ? and path = ?");
    this.#insert = db.prepare(
      `insert into holdfast_results (build, pipeline, stage, path, target, state, hash, parts, ${OUTPUT}, micros, tokens, error, at,
         checksum)
       values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning key`,
    );
    this.#made = db.prepare(`select ${MADE} from holdfast_results as result where key = :key`);
    this.#remove = db.prepare("delete from holdfast_results where key = ?");
    this.#setAside = db.prepare("update holdfast_results set build = -key where key = ?");
    this.#recall = db.prepare(
      "delete from holdfast_results where key = ? and build in (?, ?) and state = 'FAILED' returning stage, build",
    );
    // Each by holdfast_results_hash, the newest first.
    this.#lookUp = db.prepare(
      `select one.key as place, result.key as result, ${MADE} from json_each(:keys) as one cross join holdfast_results as result
       on result.key = (
         select key from holdfast_results
         where hash = one.value ->> 1 and state = 'SUCCESS' and pipeline = :pipeline and stage = one.value ->> 0
           and (one.value ->> 2 is null or build = one.value ->> 2)
         order by key desc limit 1)`,
    );
    this.#byKey = db.prepare(
      `select ${COLUMNS} from json_each(:keys) as one cross join holdfast_results as result on result.key = one.value
       left join holdfast_builds as build on build.key = result.build order by one.key`,
    );
    this.#of = db.prepare(
      `${RESULT} where result.build = (select key from holdfast_builds where id = :build) and stage = :stage and path = :path`,
    );
    // By holdfast_results_target; a build has one row at most.
    const before = (state: string, than: string) =>
      `${RESULT} where result.pipeline = (select pipeline from holdfast_builds where id = :build) and stage = :stage and path = :path
         and result.build ${than} (select key from holdfast_builds where id = :build) and result.build > 0 ${state}
       order by result.build desc limit 1`;
    this.#ofBefore = db.prepare(before("and result.state <> 'FAILED'", "<"));
    this.#before = db.prepare(before("and result.state <> 'GONE'", "<"));
    // From one path to the next, and of each its own row, else the newest before it that is no failure.
    this.#ofStage = db.prepare(
      `with recursive of (build, pipeline) as (select key, pipeline from holdfast_builds where id = :build),
       paths (path) as (
         select min(path) from holdfast_results, of where holdfast_results.pipeline = of.pipeline and stage = :stage
           and path >= coalesce(:after, '') and path is not :after
         union all
         select (
           select min(path) from holdfast_results as result, of
           where result.pipeline = of.pipeline and stage = :stage and result.path > paths.path)
         from paths where path is not null)
       select ${COLUMNS} from paths, of cross join holdfast_results as result on result.key = (
         select key from holdfast_results as had
         where had.pipeline = of.pipeline and had.stage = :stage and had.path = paths.path
           and had.build <= of.build and had.build > 0 and (had.state <> 'FAILED' or had.build = of.build)
         order by had.build desc limit 1)
       left join holdfast_builds as build on build.key = result.build
       where paths.path is not null and result.state in ('SUCCESS', 'REUSED') limit :limit`,
    );
    // By holdfast_results_failed.
    this.#failures = db.prepare(
      `${RESULT} where result.build = (select key from holdfast_builds where id = :build) and result.state = 'FAILED'
       order by result.key limit :limit`,
    );
    this.#retries = db.prepare(
      "select key, stage, path from holdfast_results where build = ? and state = 'FAILED' and key > ? order by key limit ?",
    );
    this.#retried = db.prepare(
      "delete from holdfast_results where build = ? and state = 'FAILED' and key in (select value from json_each(?))",
    );
  }

  /** In place of the one that this build had for this stage and target. `again`: that one was a failure. */
  put(made: MadeResult, now: number): { key: ResultKey; again: boolean } {
    const again = this.#replace(made) === "FAILED";
    return { key: this.#add(made, now), again };
  }

  reuse(by: Pick<MadeResult, "build" | "pipeline" | "stage" | "path" | "target">, result: ResultKey | null, now: number): void {
    const { build, pipeline, stage, path, target } = by;
    this.#replace(by);
    const free = { micros: 0, tokens: 0, error: null, at: now };
    if (result === null) {
      const nothing = { parts: null, output_hash: "none", output_text: null, output_file: null, output_size: 0 };
      this.#write(build, { pipeline, stage, path, target, state: "GONE", hash: "", ...nothing, ...free });
      return;
    }
    const made = this.#made.get<Row>({ key: result }) as Row;
    refuseDamaged(made);
    this.#write(build, { ...made, path, target, state: "REUSED", ...free });
    this.#artifacts.copy(result, build, path);
  }

  /** Makes room for another. Whoever has reused what was made keeps it. The answer is what was there. */
  #replace({ build, stage, path }: Pick<MadeResult, "build" | "stage" | "path">): string | undefined {
    const [key, state] = (this.#own.row(build, stage, path) ?? []) as [ResultKey?, string?];
    if (key === undefined) return undefined;
    if (state === "SUCCESS") {
      this.#setAside.run(key);
      this.#artifacts.setAside(build, stage, path, key);
    } else {
      this.#remove.run(key);
      this.#artifacts.drop(build, stage, path);
    }
    return state;
  }

  /** Takes back what says that a target has failed in this build: the stage where it had, if it has. */
  recall(build: BuildKey, failure: ResultKey): string | undefined {
    const [stage, of] = (this.#recall.row(failure, build, retriedIn(build)) ?? []) as [string?, number?];
    return of === build ? stage : undefined;
  }

  lookUp(pipeline: string, keys: readonly { stage: string; hash: string; build?: BuildKey }[]): (FoundResult | null)[] {
    const found: (FoundResult | null)[] = keys.map(() => null);
    const asked = JSON.stringify(keys.map(({ stage, hash, build }) => [stage, hash, build ?? null]));
    const rows = this.#lookUp.all<Row & { place: number; result: ResultKey }>({ pipeline, keys: asked });
    // One that is not what was written is as good as none: it is made again.
    for (const row of rows) if (isIntact("holdfast_results", row)) found[row.place] = { key: row.result, output: toOutput(row) };
    return found;
  }

  byKey(keys: readonly ResultKey[]): StoredResult[] {
    return read(this.#byKey, { keys: JSON.stringify(keys) });
  }

  of(build: string, stage: string, path: string): StoredResult | null {
    const asked = { build, stage, path };
    const found = read(this.#of, asked)[0] ?? read(this.#ofBefore, asked)[0];
    return found === undefined || isGone(found) ? null : found;
  }

  before(build: string, stage: string, path: string): StoredResult | null {
    return read(this.#before, { build, stage, path })[0] ?? null;
  }

  ofStage(build: string, stage: string, { after, limit }: { after?: string; limit: number }): StoredResult[] {
    return read(this.#ofStage, { build, stage, after: after ?? null, limit });
  }

  failures(build: string, limit: number): StoredResult[] {
    return read(this.#failures, { build, limit });
  }

  retries(build: BuildKey, { after, limit }: { after: ResultKey | 0; limit: number }): Retry[] {
    const rows = this.#retries.rows(retriedIn(build), after, limit) as [ResultKey, string, string][];
    return rows.map(([key, stage, path]) => ({ key, stage, path }));
  }

  retried(build: BuildKey, keys: readonly ResultKey[]): void {
    this.#retried.run(retriedIn(build), JSON.stringify(keys));
  }

  #add(made: MadeResult, now: number): ResultKey {
    const { build, pipeline, stage, path, target, hash, parts, output, cost, error } = made;
    return this.#write(build, {
      pipeline,
      stage,
      path,
      target,
      state: error === null ? "SUCCESS" : "FAILED",
      hash,
      parts,
      output_hash: output.hash,
      output_text: output.text,
      output_file: output.artifact,
      output_size: output.size,
      micros: cost.micros,
      tokens: cost.tokens,
      error: error === null ? null : JSON.stringify(error),
      at: now,
    });
  }

  #write(build: BuildKey, row: Omit<Row, "checksum">): ResultKey {
    const { pipeline, stage, path, target, state, hash, parts } = row;
    const output = [row.output_hash, row.output_text, row.output_file, row.output_size];
    const end = [row.micros, row.tokens, row.error, row.at, rowChecksum("holdfast_results", row)];
    return (this.#insert.row(build, pipeline, stage, path, target, state, hash, parts, ...output, ...end) as [ResultKey])[0];
  }
}

function isGone({ state }: { state: string }): boolean {
  return state === "GONE";
}

function read(statement: Statement, asked: Named): StoredResult[] {
  return statement.all<ResultColumns & Row>(asked).map((row) => {
    refuseDamaged(row);
    return toResult(row);
  });
}

function refuseDamaged(row: Row): void {
  if (!isIntact("holdfast_results", row)) throw damagedRow(`What stage ${row.stage} has made of ${row.target}`);
}
