import type { Amount } from "../../../core/pipelines/cost.ts";
import type { BuildKey, ResultKey } from "../../../core/text/ids.ts";
import type { JobError } from "../../../core/jobs/job.ts";
import { type KeptValue, NO_VALUE } from "../../../core/pipelines/context-hash.ts";
import { retriedIn } from "../../builds.ts";
import type { NamedArtifact, OutputColumns } from "../../work.ts";
import { type Answer, type ColumnType, type Dialect, type EachParams, type Script, together, type Tx, wait } from "../script.ts";
import type { ResultGuard } from "./results.ts";

/** The build, stage and target that a result belongs to. */
export interface ResultOrigin {
  build: BuildKey;
  stage: string;
  path: string;
}

/** What a stage has made of a target. */
export interface NewResultRow extends ResultOrigin {
  pipeline: string;
  target: string;
  hash: string;
  parts: string | null;
  output: KeptValue;
  cost: Amount;
  /** Null: it is a SUCCESS. */
  error: JobError | null;
  shared?: boolean;
}

/** A row of results, but for its checksum. */
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

/** A result that another target, or this build, has from now on. */
interface Copy extends ResultOrigin {
  result: ResultKey;
}

interface ArtifactColumns extends ResultOrigin, NamedArtifact {}

/** What an operation needs of results: those that it may replace, failures and sources by key, and keys for new ones. */
export interface ResultsWanted {
  pipelines: readonly string[];
  origins: readonly ResultOrigin[];
  keys: readonly ResultKey[];
  most: number;
}

/** Loads the results that an operation may replace, and writes what takes their place, with the artifacts. */
export class ResultTable {
  readonly #guard: ResultGuard;
  readonly #sql: ReturnType<typeof statements>;
  readonly #keys: (tx: Tx, count: number) => Answer<ResultKey[]>;

  /** `keys`: keys that no other result has; they are known before the rows are written, because targets name them. */
  constructor(dialect: Dialect, guard: ResultGuard, keys: (tx: Tx, count: number) => Answer<ResultKey[]>) {
    this.#guard = guard;
    this.#sql = statements(dialect, guard);
    this.#keys = keys;
  }

  *load(tx: Tx, { pipelines, origins, keys, most }: ResultsWanted): Script<ResultBatch> {
    const asked = {
      pipelines: [...new Set(pipelines)],
      builds: [...new Set(origins.map(({ build }) => build))],
      stages: [...new Set(origins.map(({ stage }) => stage))],
      paths: [...new Set(origins.map(({ path }) => path))],
      keys: [...new Set(keys)],
    };
    const [known, free] = yield* together(
      origins.length + keys.length === 0 ? wait<ResultRow[]>([]) : tx.all<ResultRow>(this.#sql.load, asked),
      most === 0 ? wait<ResultKey[]>([]) : wait(this.#keys(tx, most)),
    );
    return new ResultBatch(known, free, (row) => this.#guard.check(row));
  }

  /** What is replaced goes first. */
  *write(tx: Tx, batch: ResultBatch): Script<void> {
    const { added, copied, kept, removed, dropped, artifacts } = batch.changes();
    yield* together(
      this.#remove(tx, removed),
      tx.each(this.#sql.drop, dropped.map(originColumns)),
      tx.each(
        this.#sql.detach,
        kept.map(({ key }) => ({ key })),
      ),
      tx.each(
        this.#sql.detachArtifacts,
        kept.map(({ key, build, stage, path }) => ({ key, build, stage, path })),
      ),
      tx.each(
        this.#sql.add,
        added.map((row) => this.#columns(row)),
      ),
      tx.each(
        this.#sql.copyArtifacts,
        copied.map(({ build, path, result }) => ({ build, path, result })),
      ),
      tx.each(
        this.#sql.addArtifacts,
        artifacts.map(({ build, stage, path, name, hash, size }) => ({ build, stage, path, name, hash, size })),
      ),
    );
  }

  /** Deletes failures from before the build was resumed. */
  *removeRetried(tx: Tx, build: BuildKey, keys: readonly ResultKey[]): Script<void> {
    if (keys.length > 0) yield* tx.run(this.#sql.removeRetried, { build: retriedIn(build), keys });
  }

  *#remove(tx: Tx, keys: readonly ResultKey[]): Script<void> {
    if (keys.length > 0) yield* tx.run(this.#sql.remove, { keys });
  }

  #columns(row: ResultRow): EachParams {
    return this.#guard.checksum === null ? { ...row } : { ...row, checksum: this.#guard.checksum(row) };
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

function statements({ table, in: isIn, each, overriding }: Dialect, { checksum }: ResultGuard) {
  const results = table("results");
  const artifacts = table("artifacts");
  const columns: Record<string, ColumnType> = { ...COLUMNS, ...(checksum === null ? {} : { checksum: "bigint" }) };
  const names = Object.keys(columns);
  const load = `select ${names} from ${results}`;
  const replaced = "on conflict (build, stage, path, name) do update set hash = excluded.hash, size = excluded.size";
  return {
    // By the indexes; other results may match, too. A transaction that changes them holds the build's row.
    load: `
      ${load} where ${isIn("pipeline", "text", ":pipelines")} and ${isIn("stage", "text", ":stages")}
        and ${isIn("path", "text", ":paths")} and ${isIn("build", "bigint", ":builds")}
      union all ${load} where ${isIn("key", "bigint", ":keys")}`,
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

/** The results that an operation has loaded, and what it changes of them and of their artifacts. */
export class ResultBatch {
  readonly #own = new Map<string, ResultRow>();
  readonly #byKey = new Map<ResultKey, ResultRow>();
  readonly #free: ResultKey[];
  readonly #check: (row: ResultRow) => void;
  #added = new Map<ResultKey, ResultRow>();
  #copied = new Map<string, Copy>();
  #kept: ResultRow[] = [];
  #removed: ResultKey[] = [];
  #dropped: ResultOrigin[] = [];
  #artifacts = new Map<string, ArtifactColumns>();

  /** `check` throws if a row is damaged. */
  constructor(known: readonly ResultRow[] = [], free: readonly ResultKey[] = [], check: (row: ResultRow) => void = () => {}) {
    for (const row of known) this.#know(row);
    this.#free = [...free].sort((a, b) => b - a);
    this.#check = check;
  }

  /** Adds a result in place of the one that the build had for the stage and target. `again`: that one was a failure. */
  put(made: NewResultRow, at: number): { key: ResultKey; again: boolean } {
    const { build, pipeline, stage, path, target, hash, parts, output, cost, error } = made;
    const again = this.#replace(made) === "FAILED";
    const key = this.#add({
      build,
      pipeline,
      stage,
      path,
      target,
      hash,
      parts,
      at,
      state: error === null ? "SUCCESS" : "FAILED",
      ...outputColumns(output),
      micros: cost.micros,
      tokens: cost.tokens,
      error: error === null ? null : JSON.stringify(error),
      shared: made.shared ? 1 : 0,
    });
    return { key, again };
  }

  /**
   * From this build on, a target has this result of a stage: one of an earlier build, or of another target. Null: it has none
   * any more.
   */
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

  /** Deletes the record of a target's failure in this build; answers its stage, if the failure was counted. */
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

  /** The changes since the last call. */
  changes() {
    const changes = {
      added: [...this.#added.values()],
      copied: [...this.#copied.values()],
      kept: this.#kept,
      removed: this.#removed,
      dropped: this.#dropped,
      artifacts: [...this.#artifacts.values()],
    };
    this.#added = new Map();
    this.#copied = new Map();
    this.#kept = [];
    this.#removed = [];
    this.#dropped = [];
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

  /** Makes room for another result: the state of the one that was there. Targets that have reused a success keep it. */
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

  /** The success is of no build any more; its negative key stands there. */
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

function originColumns({ build, stage, path }: ResultOrigin): EachParams {
  return { build, stage, path };
}

function outputColumns({ hash, text, artifact, size }: KeptValue): OutputColumns {
  return { output_hash: hash, output_text: text, output_file: artifact, output_size: size };
}
