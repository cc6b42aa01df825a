import type { JobError } from "../../../core/jobs/job.ts";
import { type StoredValue, NO_VALUE } from "../../../core/pipelines/work.ts";
import type { Amount } from "../../../core/pipelines/budget.ts";
import type { BuildKey, ResultKey } from "../../../core/text/ids.ts";
import { retriedIn } from "../../builds.ts";
import {
  type FoundResult,
  type NamedArtifact,
  type OutputColumns,
  type ResultColumns,
  type ResultContext,
  type ResultQuery,
  type StoredResult,
  toOutput,
  toResult,
} from "../../work.ts";
import {
  RowGuard,
  type Answer,
  type ColumnType,
  type Dialect,
  type EachParams,
  type Params,
  type Reads,
  type Script,
  together,
  type Tx,
  wait,
} from "../script.ts";

export class Results {
  readonly #guard: RowGuard;
  readonly #sql: ReturnType<typeof resultsSql>;

  constructor(dialect: Dialect) {
    this.#guard = new RowGuard(dialect, "results");
    this.#sql = resultsSql(dialect, this.#guard);
  }

  *lookUp(db: Reads, pipeline: string, contexts: readonly ResultContext[]): Script<(FoundResult | null)[]> {
    type Found = OutputColumns & { place: number; result: ResultKey };
    const found: (FoundResult | null)[] = contexts.map(() => null);
    const asked = contexts.map(({ stage, hash, path = null, build = null }, place) => ({
      place,
      pipeline,
      stage,
      hash,
      path,
      build,
    }));
    const rows = yield* together(
      db.findEach<Found>(
        this.#sql.lookUp,
        asked.filter(({ path }) => path !== null),
      ),
      db.findEach<Found>(
        this.#sql.lookUpShared,
        asked.filter(({ path }) => path === null),
      ),
    );
    // A damaged result counts as none, so that it is made again.
    for (const row of rows.flat()) if (this.#guard.isIntact(row)) found[row.place] = { key: row.result, output: toOutput(row) };
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
    const { after = null, limit, failures = false } = query;
    const { first, next } = failures ? sql.allOfStage : sql.ofStage;
    return yield* this.#read(db, after === null ? first : next, { build, stage, after, limit });
  }

  *#read(db: Reads, sql: string, params: Params): Script<StoredResult[]> {
    return (yield* db.all<ResultColumns>(sql, params)).map((row) => {
      this.#guard.check(row, describeResult(row));
      return toResult(row);
    });
  }
}

const OUTPUT = ["output_hash", "output_text", "output_file", "output_size"];

function describeResult({ stage, target }: Pick<ResultColumns, "stage" | "target">): string {
  return `What stage ${stage} has made of ${target}`;
}

const ALL = "'SUCCESS', 'REUSED', 'FAILED'";

function firstOfEach(
  { table, each, firstRow }: Dialect,
  columns: Readonly<Record<string, ColumnType>>,
  selected: readonly string[],
  which: (value: (column: string) => string) => string,
): string {
  return each(
    columns,
    ({ value, from }) => `
      select ${["place" in columns ? `${value("place")} as place` : [], selected].flat()}
      ${from("(select 1) as once")} ${firstRow(table("results"), "result", `where ${which(value)}`)}`,
  );
}

function resultsSql(dialect: Dialect, guard: RowGuard) {
  const { table, items, firstRow } = dialect;
  const results = table("results");
  const builds = table("builds");
  const columns = `result.key, build.id as build, result.stage, result.path, result.target, result.state, result.hash, result.parts,
    result.output_hash, result.output_text, result.output_file, result.output_size, result.micros, result.tokens, result.error,
    result.at, result.pipeline${guard.isOn ? ", result.checksum" : ""}`;
  const andBuild = `left join ${builds} as build on build.key = result.build`;
  const read = `select ${columns} from ${results} as result ${andBuild}`;
  const own = `(select key from ${builds} where id = :build)`;
  const pipeline = `(select pipeline from ${builds} where id = :build)`;
  const before = (state: string) => `
    ${read} where result.pipeline = ${pipeline} and result.stage = :stage and result.path = :path
      and result.build < ${own} and result.build > 0 and result.state <> '${state}'
    order by result.build desc limit 1`;
  const nextPath = (after: string) => `(
    select path from ${results} where pipeline = ${pipeline} and stage = :stage ${after} order by path limit 1)`;
  // Seeks from one path to the next, and takes for each the build's own row, else the newest before it that is no failure.
  const ofStage = (after: string, states = "'SUCCESS', 'REUSED'") => `
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
    where result.state in (${states}) limit :limit`;
  const found = guard.isOn ? Object.keys({ ...COLUMNS, ...guard.type }) : OUTPUT;
  const context = { place: "bigint", pipeline: "text", stage: "text", hash: "text", path: "text", build: "bigint" } as const;
  const lookUp = (same: readonly string[], which = "") =>
    firstOfEach(dialect, context, ["result.key as result", ...found.map((name) => `result.${name}`)], (value) => {
      const isOne = same.map((name) => `${value(name)} = one.${name}`).join(" and ");
      return `${isOne} ${which} and one.state = 'SUCCESS' and (${value("build")} is null or ${value("build")} = one.build)
        order by one.key desc`;
    });
  return {
    lookUp: lookUp(["pipeline", "stage", "path", "hash"]),
    lookUpShared: lookUp(["hash", "pipeline", "stage"], "and one.shared = 1"),
    byKey: `
      select ${columns} from ${items("bigint", ":keys")} as asked join ${results} as result on result.key = asked.value
      ${andBuild} order by asked.place`,
    of: `
      select * from (${read} where result.pipeline = ${pipeline} and result.stage = :stage and result.path = :path and result.build = ${own}) as own
      union all select * from (${before("FAILED")}) as earlier limit 1`,
    before: before("GONE"),
    ofStage: { first: ofStage(""), next: ofStage("and path > :after") },
    allOfStage: { first: ofStage("", ALL), next: ofStage("and path > :after", ALL) },
    failures: `${read} where result.build = ${own} and result.state = 'FAILED' order by result.key limit :limit`,
    retried: `${read} where result.build = :build and result.state = 'FAILED' and result.key > :after order by result.key limit :limit`,
  };
}

export interface ResultOrigin {
  build: BuildKey;
  stage: string;
  path: string;
}

type NewResultRow = Omit<ResultRow, keyof OutputColumns | "key" | "state" | "micros" | "tokens" | "error" | "at" | "shared"> & {
  output: StoredValue;
  cost: Amount;
  error: JobError | null;
  shared?: boolean;
};

type ResultRow = OutputColumns &
  ResultOrigin & {
    key: ResultKey;
    pipeline: string;
    target: string;
    state: "SUCCESS" | "FAILED" | "REUSED" | "GONE";
    hash: string;
    parts: string | null;
    micros: number;
    tokens: number;
    error: string | null;
    at: number;
    shared: number;
  };

interface Copy extends ResultOrigin {
  result: ResultKey;
}

interface ArtifactColumns extends ResultOrigin, NamedArtifact {}

export class ResultTable {
  readonly #guard: RowGuard;
  readonly #sql: ReturnType<typeof resultTableSql>;
  readonly #keys: (tx: Tx, count: number) => Answer<ResultKey[]>;

  /** `keys` returns unused keys. They are known before the rows are written, because targets name them. */
  constructor(dialect: Dialect, keys: (tx: Tx, count: number) => Answer<ResultKey[]>) {
    this.#guard = new RowGuard(dialect, "results");
    this.#sql = resultTableSql(dialect, this.#guard);
    this.#keys = keys;
  }

  *load(
    tx: Tx,
    origins: readonly EachParams<"pipeline" | keyof ResultOrigin>[],
    keys: readonly ResultKey[],
  ): Script<ResultBatch> {
    const [own, others, free] = yield* together(
      tx.findEach<ResultRow>(this.#sql.own, origins),
      keys.length === 0 ? wait<ResultRow[]>([]) : tx.all<ResultRow>(this.#sql.byKey, { keys: [...new Set(keys)] }),
      origins.length === 0 ? wait<ResultKey[]>([]) : wait(this.#keys(tx, origins.length)),
    );
    return new ResultBatch([...own, ...others], free, (row) => this.#guard.check(row, describeResult(row)));
  }

  *write(tx: Tx, batch: ResultBatch): Script<void> {
    const { added, copied, kept, removed, dropped, artifacts } = batch.changes();
    const rows = added.map((row) => this.#guard.sign(row));
    yield* together(
      this.#remove(tx, removed),
      tx.each(this.#sql.drop, dropped),
      tx.each(this.#sql.detach, kept),
      tx.each(this.#sql.detachArtifacts, kept),
      tx.each(this.#sql.add, rows),
      tx.each(this.#sql.copyArtifacts, copied),
      tx.each(this.#sql.addArtifacts, artifacts),
    );
  }

  *removeRetried(tx: Tx, build: BuildKey, keys: readonly ResultKey[]): Script<void> {
    if (keys.length > 0) yield* tx.run(this.#sql.removeRetried, { build: retriedIn(build), keys });
  }

  *#remove(tx: Tx, keys: readonly ResultKey[]): Script<void> {
    if (keys.length > 0) yield* tx.run(this.#sql.remove, { keys });
  }
}

const COLUMNS = {
  key: "bigint",
  build: "bigint",
  pipeline: "text",
  stage: "text",
  path: "text",
  target: "text",
  state: "text",
  hash: "text",
  parts: "text",
  output_hash: "text",
  output_text: "text",
  output_file: "text",
  output_size: "bigint",
  micros: "bigint",
  tokens: "bigint",
  error: "text",
  at: "bigint",
  shared: "bigint",
} as const;
const ORIGIN = { build: "bigint", stage: "text", path: "text" } as const;

function resultTableSql(dialect: Dialect, guard: RowGuard) {
  const { table, in: isIn, each, overriding } = dialect;
  const results = table("results");
  const artifacts = table("artifacts");
  const columns: Record<string, ColumnType> = { ...COLUMNS, ...guard.type };
  const names = Object.keys(columns);
  const replaced = "on conflict (build, stage, path, name) do update set hash = excluded.hash, size = excluded.size";
  return {
    // No lock: a transaction that changes these rows holds the build's row.
    own: firstOfEach(
      dialect,
      { pipeline: "text", ...ORIGIN },
      names.map((name) => `result.${name}`),
      (value) => ["pipeline", "stage", "path", "build"].map((name) => `${value(name)} = one.${name}`).join(" and "),
    ),
    byKey: `select ${names} from ${results} where ${isIn("key", "bigint", ":keys")}`,
    add: each(columns, (row) => `insert into ${results} (${names}) ${overriding} ${row.inserted}`),
    detach: each(
      { key: "bigint" },
      (row) => `update ${results} as result set build = -result.key ${row.from()} where ${row.is("result", "key")}`,
    ),
    remove: `delete from ${results} where ${isIn("key", "bigint", ":keys")}`,
    removeRetried: `delete from ${results} where build = :build and state = 'FAILED' and ${isIn("key", "bigint", ":keys")}`,
    drop: each(ORIGIN, (row) => `delete from ${artifacts} as ref ${row.using} where ${row.is("ref", ...Object.keys(ORIGIN))}`),
    detachArtifacts: each(
      { key: "bigint", ...ORIGIN },
      (row) => `
        update ${artifacts} as ref set build = -${row.value("key")} ${row.from()} where ${row.is("ref", ...Object.keys(ORIGIN))}`,
    ),
    copyArtifacts: each(
      { build: "bigint", path: "text", result: "bigint" },
      (row) => `
        insert into ${artifacts} (build, stage, path, name, hash, size)
        select ${row.value("build")}, ref.stage, ${row.value("path")}, ref.name, ref.hash, ref.size
        ${row.from(`${results} as result, ${artifacts} as ref`)}
        where ${row.is("result", ["key", "result"])} and ref.build = result.build and ref.stage = result.stage and ref.path = result.path
        ${replaced}`,
    ),
    addArtifacts: each(
      { ...ORIGIN, name: "text", hash: "text", size: "bigint" },
      (row) => `
        insert into ${artifacts} (build, stage, path, name, hash, size) ${row.inserted} ${replaced}`,
    ),
  };
}

export class ResultBatch {
  readonly #own = new Map<string, ResultRow>();
  readonly #byKey = new Map<ResultKey, ResultRow>();
  readonly #free: ResultKey[];
  readonly #check: (row: ResultRow) => void;
  #added = new Map<ResultKey, ResultRow>();
  #copied = new Map<string, Copy>();
  readonly #kept: ResultRow[] = [];
  readonly #removed: ResultKey[] = [];
  readonly #dropped: ResultOrigin[] = [];
  #artifacts = new Map<string, ArtifactColumns>();

  constructor(known: readonly ResultRow[] = [], free: readonly ResultKey[] = [], check: (row: ResultRow) => void = () => {}) {
    for (const row of known) this.#know(row);
    this.#free = [...free].sort((a, b) => b - a);
    this.#check = check;
  }

  /** Adds a result in place of the build's one for the stage and target. `again` says that that one was a failure. */
  put(made: NewResultRow, at: number): { key: ResultKey; again: boolean } {
    const { output, cost, error, shared = false, ...row } = made;
    const again = this.#replace(made) === "FAILED";
    const key = this.#add({
      ...row,
      ...outputColumns(output),
      ...cost,
      at,
      state: error === null ? "SUCCESS" : "FAILED",
      error: error && JSON.stringify(error),
      shared: shared ? 1 : 0,
    });
    return { key, again };
  }

  /** Gives a target, from this build on, a result of an earlier build or another target, or none if `result` is null. */
  reuse(by: Pick<NewResultRow, "build" | "pipeline" | "stage" | "path" | "target">, result: ResultKey | null, at: number): void {
    const { build, pipeline, stage, path, target } = by;
    this.#replace(by);
    const free = { build, pipeline, path, target, micros: 0, tokens: 0, error: null, at, shared: 0 };
    if (result === null) {
      this.#add({ ...free, stage, state: "GONE", hash: "", parts: null, ...outputColumns(NO_VALUE) });
      return;
    }
    const source = this.#byKey.get(result);
    if (source === undefined) return;
    this.#check(source);
    const { hash, parts, output_hash, output_text, output_file, output_size } = source;
    this.#add({ ...free, stage, state: "REUSED", hash, parts, output_hash, output_text, output_file, output_size });
    this.#copied.set(nameOf(by), { build, stage, path, result });
  }

  /** Deletes a target's failure in this build. Returns its stage, if the failure was counted. */
  recall(build: BuildKey, failure: ResultKey): string | undefined {
    const known = this.#byKey.get(failure);
    const isRetried = known?.build === retriedIn(build);
    if (known === undefined || (known.build !== build && !isRetried) || known.state !== "FAILED") return undefined;
    this.#forget(known);
    return isRetried ? undefined : known.stage;
  }

  addArtifacts({ build, stage, path }: ResultOrigin, artifacts: readonly NamedArtifact[]): void {
    for (const { name, hash, size } of artifacts)
      this.#artifacts.set(JSON.stringify([build, stage, path, name]), { build, stage, path, name, hash, size });
  }

  changes() {
    const changes = {
      added: [...this.#added.values()],
      copied: [...this.#copied.values()],
      artifacts: [...this.#artifacts.values()],
      kept: this.#kept.splice(0),
      removed: this.#removed.splice(0),
      dropped: this.#dropped.splice(0),
    };
    this.#added = new Map();
    this.#copied = new Map();
    this.#artifacts = new Map();
    return changes;
  }

  #add(row: Omit<ResultRow, "key">): ResultKey {
    const key = this.#free.pop();
    if (key === undefined) throw new Error("An operation writes more results than it has loaded keys for.");
    const added = { key, ...row };
    this.#know(added);
    this.#added.set(key, added);
    return key;
  }

  /** Makes room for another result and returns the state of the old one. Targets that have reused a success keep it. */
  #replace(origin: ResultOrigin): string | undefined {
    const name = nameOf(origin);
    this.#copied.delete(name);
    const old = this.#own.get(name);
    if (old === undefined) return undefined;
    if (old.state === "SUCCESS") this.#detach(old);
    else {
      this.#forget(old);
      this.#dropped.push(origin);
    }
    return old.state;
  }

  /** Takes the success out of every build: its negative key stands in place of a build. */
  #detach(old: ResultRow): void {
    this.#own.delete(nameOf(old));
    const added = this.#added.get(old.key);
    if (added === undefined) this.#kept.push(old);
    else this.#added.set(old.key, { ...added, build: -old.key as BuildKey });
  }

  #forget(known: ResultRow): void {
    this.#byKey.delete(known.key);
    this.#own.delete(nameOf(known));
    if (!this.#added.delete(known.key)) this.#removed.push(known.key);
  }

  #know(row: ResultRow): void {
    this.#byKey.set(row.key, row);
    this.#own.set(nameOf(row), row);
  }
}

function nameOf({ build, stage, path }: ResultOrigin): string {
  return `${build} ${stage}\n${path}`;
}

function outputColumns({ hash, text, artifact, size }: StoredValue): OutputColumns {
  return { output_hash: hash, output_text: text, output_file: artifact, output_size: size };
}
