import type { BuildKey, ResultKey } from "../../../core/ids.ts";
import type { StoredResult } from "../../work.ts";
import type { MadeResult, ResultRows } from "../../work/rows.ts";
import { listOf } from "../driver.ts";
import type { Tx } from "../transaction.ts";
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
  state: StoredResult["state"];
}

/** A result as it is to be written. */
interface Made {
  key: ResultKey;
  at: number;
  made: MadeResult;
}

interface ResultChanges {
  added: Made[];
  /** Of no build any more, and what is kept of them in artifacts, too. */
  aside: Known[];
  removed: ResultKey[];
}

/** Reads the results that may be replaced, and writes what takes their place. */
export class ResultTable {
  readonly #sql: Record<"own" | "keys" | "add" | "setAside" | "remove", string>;

  constructor(s: string) {
    this.#sql = {
      // Those of the stages and targets of a build, and some by their keys. Whoever changes them holds the build's row.
      own: `
        select result.key, result.build, result.stage, result.path, result.state
        from unnest($1::bigint[], $2::text[], $3::text[]) as asked (build, stage, path) join ${s}.results as result
        on result.build = asked.build and result.stage = asked.stage and result.path = asked.path
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
      setAside: `
        with aside as (
          update ${s}.results as result set build = -result.key
          from unnest($1::bigint[], $2::bigint[]) as asked (key, build) where result.key = asked.key
          returning result.key, asked.build, result.stage, result.path)
        update ${s}.artifacts as ref set build = -aside.key
        from aside where ref.build = aside.build and ref.stage = aside.stage and ref.path = aside.path`,
      remove: `delete from ${s}.results where key = any($1::bigint[])`,
    };
  }

  /** What these builds have of these stages and targets, and of the keys to be at most so many. */
  async load(tx: Tx, origins: readonly Origin[], keys: readonly ResultKey[], most: number): Promise<ResultSheet> {
    const lists = listsOf(
      origins,
      ({ build }) => build,
      ({ stage }) => stage,
      ({ path }) => path,
    );
    const [known, free] = await Promise.all([
      origins.length + keys.length === 0
        ? []
        : tx.rows<[ResultKey, BuildKey, string, string, StoredResult["state"]]>(this.#sql.own, ...lists, listOf(keys)),
      most === 0 ? [] : tx.rows<[ResultKey]>(this.#sql.keys, most),
    ]);
    return new ResultSheet(
      known.map(([key, build, stage, path, state]) => ({ key, build, stage, path, state })),
      free.map(([key]) => key),
    );
  }

  /** What is replaced goes first. */
  async write(tx: Tx, { added, aside, removed }: ResultChanges): Promise<void> {
    if (added.length + aside.length + removed.length > 0) tx.wrote();
    const lists = listsOf(
      aside,
      ({ key }) => key,
      ({ build }) => build,
    );
    await Promise.all([
      removed.length > 0 && tx.rows(this.#sql.remove, listOf(removed)),
      aside.length > 0 && tx.rows(this.#sql.setAside, ...lists),
      added.length > 0 && this.#add(tx, added),
    ]);
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
  #aside: Known[] = [];
  #removed: ResultKey[] = [];

  constructor(known: readonly Known[], free: readonly ResultKey[]) {
    for (const one of known) this.#know(one);
    this.#free = [...free].sort((a, b) => b - a);
  }

  put(made: MadeResult, now: number): { key: ResultKey; again: boolean } {
    const { build, stage, path, error } = made;
    const old = this.#own.get(nameOf(made));
    if (old !== undefined) this.#replace(old);
    const key = this.#free.pop();
    if (key === undefined) throw new Error("more results than were counted on");
    this.#know({ key, build, stage, path, state: error === null ? "SUCCESS" : "FAILED" });
    this.#added.set(key, { key, at: now, made });
    return { key, again: old?.state === "FAILED" };
  }

  recall(build: BuildKey, failure: ResultKey): string | undefined {
    const known = this.#byKey.get(failure);
    if (known === undefined || known.build !== build || known.state !== "FAILED") return undefined;
    this.#forget(known);
    return known.stage;
  }

  /** What there is to write, once. */
  changes(): ResultChanges {
    const changes = { added: [...this.#added.values()], aside: this.#aside, removed: this.#removed };
    this.#added = new Map();
    this.#aside = [];
    this.#removed = [];
    return changes;
  }

  #replace(old: Known): void {
    if (old.state === "FAILED") return this.#forget(old);
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

function nameOf({ build, stage, path }: Origin): string {
  return `${build} ${stage}\n${path}`;
}
