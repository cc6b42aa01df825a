import type { BuildKey, ResultKey } from "../../../core/text/ids.ts";
import { retriedIn } from "../../builds.ts";
import type { MadeResult, ResultRows } from "../../work/rows.ts";
import { listOf } from "../connection/driver.ts";
import type { Tx } from "../transactions/transaction.ts";
import { listsOf } from "./columns.ts";

/** Of which build, stage and target a result is. */
export interface Origin {
  build: BuildKey;
  stage: string;
  path: string;
}

/** What is read of a result before anything is decided about it. */
interface Known extends Origin {
  key: ResultKey;
  state: string;
}

/** What a target has of a stage from this build on: what this result is. Null: nothing. */
interface Reused {
  by: ReusedBy;
  result: ResultKey | null;
  at: number;
}
type ReusedBy = Parameters<ResultRows["reuse"]>[0];

/** A result as it is to be written. */
interface Made {
  key: ResultKey;
  at: number;
  made: MadeResult;
}

interface ResultChanges {
  added: Made[];
  reused: Reused[];
  /** Of no build any more, and what is kept of them in artifacts, too. */
  aside: Known[];
  removed: ResultKey[];
  /** Whose artifacts are not kept any more. */
  dropped: Origin[];
}

/** Reads the results that may be replaced, and writes what takes their place. */
export class ResultTable {
  readonly #sql: Record<"own" | "keys" | "add" | "reuse" | "setAside" | "remove" | "drop", string>;

  constructor(s: string) {
    this.#sql = {
      // Those of the stages and targets of builds, perhaps more of them, and some by their keys: by the indexes, whatever the planner knows. Whoever changes them holds the build's row.
      own: `
        select key, build, stage, path, state from ${s}.results
        where build = any($1::bigint[]) and stage = any($2::text[]) and path = any($3::text[])
        union
        select key, build, stage, path, state from ${s}.results where key = any($4::bigint[])`,
      // Known before they are written, because targets' trails name them.
      keys: `select nextval('${s}.results_key_seq') from generate_series(1, $1::integer)`,
      add: `
        insert into ${s}.results (key, build, pipeline, stage, path, target, state, hash, parts, output_hash, output_text, output_file,
          output_size, micros, tokens, error, at)
        overriding system value
        select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
          $10::text[], $11::text[], $12::text[], $13::bigint[], $14::bigint[], $15::bigint[], $16::text[], $17::bigint[])`,
      // With the artifacts of what is reused.
      reuse: `
        with asked as materialized (
          select * from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])
            as asked (build, pipeline, stage, path, target, result, at)),
        referenced as (
          insert into ${s}.artifacts (build, stage, path, name, hash, size)
          select asked.build, ref.stage, asked.path, ref.name, ref.hash, ref.size
          from asked join ${s}.results as result on result.key = asked.result and result.key = any($6::bigint[])
          cross join lateral (
            select stage, name, hash, size from ${s}.artifacts as one
            where one.build = result.build and one.stage = result.stage and one.path = result.path offset 0) as ref
          on conflict (build, stage, path, name) do update set hash = excluded.hash, size = excluded.size)
        insert into ${s}.results (build, pipeline, stage, path, target, state, hash, parts, output_hash, output_text, output_file,
          output_size, at)
        select asked.build, asked.pipeline, asked.stage, asked.path, asked.target,
          case when asked.result is null then 'GONE' else 'REUSED' end, coalesce(result.hash, ''), result.parts,
          coalesce(result.output_hash, 'none'), result.output_text, result.output_file, coalesce(result.output_size, 0), asked.at
        from asked left join ${s}.results as result on result.key = asked.result and result.key = any($6::bigint[])
        where asked.result is null or result.key is not null`,
      setAside: `
        with aside as (
          update ${s}.results as result set build = -result.key
          from unnest($1::bigint[], $2::bigint[]) as asked (key, build) where result.key = asked.key
          returning result.key, asked.build, result.stage, result.path)
        update ${s}.artifacts as ref set build = -aside.key
        from aside where ref.build = aside.build and ref.stage = aside.stage and ref.path = aside.path`,
      remove: `delete from ${s}.results where key = any($1::bigint[])`,
      drop: `
        delete from ${s}.artifacts as ref using unnest($1::bigint[], $2::text[], $3::text[]) as asked (build, stage, path)
        where ref.build = any($1::bigint[]) and ref.stage = any($2::text[]) and ref.path = any($3::text[])
          and ref.build = asked.build and ref.stage = asked.stage and ref.path = asked.path`,
    };
  }

  /** What these builds have of these stages and targets, and of the keys to be at most so many. */
  async load(tx: Tx, origins: readonly Origin[], keys: readonly ResultKey[], most: number): Promise<ResultSheet> {
    const [known, free] = await Promise.all([
      origins.length + keys.length === 0
        ? []
        : tx.rows<[ResultKey, BuildKey, string, string, string]>(this.#sql.own, ...originLists(origins), listOf(keys)),
      most === 0 ? [] : tx.rows<[ResultKey]>(this.#sql.keys, most),
    ]);
    return new ResultSheet(
      known.map(([key, build, stage, path, state]) => ({ key, build, stage, path, state })),
      free.map(([key]) => key),
    );
  }

  /** What is replaced goes first. */
  async write(tx: Tx, { added, reused, aside, removed, dropped }: ResultChanges): Promise<void> {
    if (added.length + reused.length + aside.length + removed.length > 0) tx.wrote();
    const lists = listsOf(
      aside,
      ({ key }) => key,
      ({ build }) => build,
    );
    await Promise.all([
      removed.length > 0 && tx.rows(this.#sql.remove, listOf(removed)),
      dropped.length > 0 && tx.rows(this.#sql.drop, ...originLists(dropped)),
      aside.length > 0 && tx.rows(this.#sql.setAside, ...lists),
      added.length > 0 && this.#add(tx, added),
      reused.length > 0 && this.#reuse(tx, reused),
    ]);
  }

  async #reuse(tx: Tx, reused: readonly Reused[]): Promise<void> {
    await tx.rows(
      this.#sql.reuse,
      ...listsOf(
        reused,
        ({ by }) => by.build,
        ({ by }) => by.pipeline,
        ({ by }) => by.stage,
        ({ by }) => by.path,
        ({ by }) => by.target,
        ({ result }) => result,
        ({ at }) => at,
      ),
    );
  }

  async #add(tx: Tx, added: readonly Made[]): Promise<void> {
    await tx.rows(
      this.#sql.add,
      ...listsOf(
        added,
        ({ key }) => key,
        ({ made }) => made.build,
        ({ made }) => made.pipeline,
        ({ made }) => made.stage,
        ({ made }) => made.path,
        ({ made }) => made.target,
        ({ made }) => (made.error === null ? "SUCCESS" : "FAILED"),
        ({ made }) => made.hash,
        ({ made }) => made.parts,
        ({ made }) => made.output.hash,
        ({ made }) => made.output.text,
        ({ made }) => made.output.artifact,
        ({ made }) => made.output.size,
        ({ made }) => made.cost.micros,
        ({ made }) => made.cost.tokens,
        ({ made }) => (made.error === null ? null : JSON.stringify(made.error)),
        ({ at }) => at,
      ),
    );
  }
}

/** What is known of results in an operation, and what becomes of them in it. */
export class ResultSheet implements ResultRows {
  readonly #own = new Map<string, Known>();
  readonly #byKey = new Map<ResultKey, Known>();
  /** Keys that nobody has. */
  readonly #free: ResultKey[];
  #added = new Map<ResultKey, Made>();
  #reused = new Map<string, Reused>();
  #aside: Known[] = [];
  #removed: ResultKey[] = [];
  #dropped: Origin[] = [];

  constructor(known: readonly Known[], free: readonly ResultKey[]) {
    for (const one of known) this.#know(one);
    this.#free = [...free].sort((a, b) => b - a);
  }

  put(made: MadeResult, now: number): { key: ResultKey; again: boolean } {
    const { build, stage, path, error } = made;
    const again = this.#replace(made) === "FAILED";
    const key = this.#free.pop();
    if (key === undefined) throw new Error("more results than were counted on");
    this.#know({ key, build, stage, path, state: error === null ? "SUCCESS" : "FAILED" });
    this.#added.set(key, { key, at: now, made });
    return { key, again };
  }

  reuse(by: ReusedBy, result: ResultKey | null, at: number): void {
    this.#replace(by);
    this.#reused.set(nameOf(by), { by, result, at });
  }

  recall(build: BuildKey, failure: ResultKey): string | undefined {
    const known = this.#byKey.get(failure);
    const isRetried = known?.build === retriedIn(build);
    if (known === undefined || (known.build !== build && !isRetried) || known.state !== "FAILED") return undefined;
    this.#forget(known);
    return isRetried ? undefined : known.stage;
  }

  /** What there is to write, once. */
  changes(): ResultChanges {
    const changes = {
      added: [...this.#added.values()],
      reused: [...this.#reused.values()],
      aside: this.#aside,
      removed: this.#removed,
      dropped: this.#dropped,
    };
    this.#added = new Map();
    this.#reused = new Map();
    this.#dropped = [];
    this.#aside = [];
    this.#removed = [];
    return changes;
  }

  /** Makes room for another. Whoever has reused what was made keeps it. The answer is what was there. */
  #replace(origin: Origin): string | undefined {
    const { build, stage, path } = origin;
    if (this.#reused.delete(nameOf(origin))) return "REUSED";
    const old = this.#own.get(nameOf(origin));
    if (old === undefined) return undefined;
    if (old.state === "SUCCESS") this.#setAside(old);
    else {
      this.#forget(old);
      this.#dropped.push({ build, stage, path });
    }
    return old.state;
  }

  #setAside(old: Known): void {
    this.#own.delete(nameOf(old));
    const added = this.#added.get(old.key);
    // Made in this very operation: others may still have its key.
    if (added === undefined) this.#aside.push(old);
    else this.#added.set(old.key, { ...added, made: { ...added.made, build: -old.key as BuildKey } });
  }

  #forget({ key, ...origin }: Known): void {
    this.#byKey.delete(key);
    this.#own.delete(nameOf(origin));
    if (!this.#added.delete(key)) this.#removed.push(key);
  }

  #know(known: Known): void {
    this.#byKey.set(known.key, known);
    this.#own.set(nameOf(known), known);
  }
}

function originLists(origins: readonly Origin[]): string[] {
  return listsOf(
    origins,
    ({ build }) => build,
    ({ stage }) => stage,
    ({ path }) => path,
  );
}

function nameOf({ build, stage, path }: Origin): string {
  return `${build} ${stage}\n${path}`;
}
