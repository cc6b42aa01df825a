import type { BuildKey, ResultKey } from "../../../core/text/ids.ts";
import { GONE, trailText } from "../../../core/pipelines/work.ts";
import type { ListedTarget } from "../../work.ts";
import type { Place, Standing, TargetRef, TargetRows } from "../../work/rows.ts";
import { listOf } from "../connection/driver.ts";
import { Overtaken } from "../connection/faults.ts";
import type { Tx } from "../transactions/transaction.ts";
import { listsOf } from "./columns.ts";

/** What is read of a target before anything is decided about it. */
interface Known extends Standing {
  id: string;
}

/** A target as it is to be written. */
interface Put {
  ref: TargetRef;
  target: ListedTarget;
  place: Place;
  build: BuildKey;
  rev: number;
}

/** What of a target is changed, where the rest of it stays as it is. */
interface Patch extends Standing {
  ref: TargetRef;
  /** It is not at the end of its segment. */
  away: boolean;
  /** What is written of that. */
  done: typeof GONE | null;
  seen: BuildKey | null;
}

interface TargetChanges {
  puts: Put[];
  patches: Patch[];
  removed: TargetRef[];
}

/** Reads targets, locked, and writes what has become of them. */
export class TargetTable {
  readonly #sql: Record<"load" | "put" | "patch" | "see" | "remove", string>;

  constructor(s: string) {
    // By the primary key: a planner who does not know yet how many there are would walk all of them for a join.
    const among = "target.pipeline = any($1::text[]) and target.segment = any($2::integer[]) and target.path = any($3::text[])";
    const same = "target.pipeline = asked.pipeline and target.segment = asked.segment and target.path = asked.path";
    this.#sql = {
      load: `
        select pipeline, segment, path, id, rev, failure from ${s}.targets as target where ${among}
        order by pipeline, segment, path for no key update`,
      // One that is there was locked when it was read. One that was not may be there by now.
      put: `
        insert into ${s}.targets as old (pipeline, segment, path, id, parent, hash, fingerprint, value_hash, value_text, value_file,
          value_size, seen, done, trail, grouping, member, failure, rev)
        select * from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
          $10::text[], $11::bigint[], $12::bigint[], $13::text[], $14::text[], $15::text[], $16::text[], $17::bigint[], $18::bigint[])
        on conflict (pipeline, segment, path) do update set id = excluded.id, parent = excluded.parent, hash = excluded.hash,
          fingerprint = excluded.fingerprint, value_hash = excluded.value_hash, value_text = excluded.value_text,
          value_file = excluded.value_file, value_size = excluded.value_size, seen = excluded.seen, done = excluded.done,
          trail = excluded.trail, grouping = excluded.grouping, member = excluded.member, failure = excluded.failure,
          rev = excluded.rev
        where old.rev < excluded.rev
        returning 1`,
      patch: `
        update ${s}.targets as target set
          done = case when asked.away then asked.done else target.done end, member = case when asked.away then null else target.member end,
          failure = asked.failure, rev = asked.rev, seen = coalesce(asked.seen, target.seen)
        from unnest($1::text[], $2::integer[], $3::text[], $4::boolean[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[])
          as asked (pipeline, segment, path, away, done, failure, rev, seen)
        where ${among} and ${same}`,
      see: `update ${s}.targets as target set seen = $4::bigint where ${among}`,
      remove: `
        delete from ${s}.targets as target
        using unnest($1::text[], $2::integer[], $3::text[]) as asked (pipeline, segment, path)
        where ${among} and ${same}`,
    };
  }

  /** Those of a segment, which are locked, were seen by this build. */
  async see(tx: Tx, { pipeline, segment }: Omit<TargetRef, "path">, paths: readonly string[], build: BuildKey): Promise<void> {
    if (paths.length === 0) return;
    tx.wrote();
    await tx.rows(this.#sql.see, listOf([pipeline]), listOf([segment]), listOf(paths), build);
  }

  /** Nobody else changes them before the commit. */
  async load(tx: Tx, refs: readonly TargetRef[]): Promise<TargetSheet> {
    const sheet = new TargetSheet();
    if (refs.length === 0) return sheet;
    const rows = await tx.rows<[string, number, string, string, number, ResultKey | null]>(
      this.#sql.load,
      ...distinctLists(refs),
    );
    for (const [pipeline, segment, path, id, rev, failure] of rows) sheet.know({ pipeline, segment, path }, { id, rev, failure });
    return sheet;
  }

  async write(tx: Tx, { puts, patches, removed }: TargetChanges): Promise<void> {
    if (puts.length + patches.length + removed.length > 0) tx.wrote();
    const [, written] = await Promise.all([
      removed.length > 0 && tx.rows(this.#sql.remove, ...refLists(removed)),
      puts.length > 0 ? this.#put(tx, puts) : 0,
      patches.length > 0 &&
        tx.rows(
          this.#sql.patch,
          ...refLists(patches.map(({ ref }) => ref)),
          ...listsOf(
            patches,
            ({ away }) => away,
            ({ done }) => done,
            ({ failure }) => failure,
            ({ rev }) => rev,
            ({ seen }) => seen,
          ),
        ),
    ]);
    if (written < puts.length) throw new Overtaken("Somebody else has added the same target.");
  }

  async #put(tx: Tx, puts: readonly Put[]): Promise<number> {
    const rows = await tx.rows(
      this.#sql.put,
      ...refLists(puts.map(({ ref }) => ref)),
      ...listsOf(
        puts,
        ({ target }) => target.id,
        ({ target }) => target.parent,
        ({ target }) => target.hash,
        ({ target }) => target.fingerprint,
        ({ target }) => target.value.hash,
        ({ target }) => target.value.text,
        ({ target }) => target.value.artifact,
        ({ target }) => target.value.size,
        ({ build }) => build,
        ({ place }) => place.done,
        ({ place }) => trailText(place.trail),
        ({ place }) => place.group,
        ({ place }) => place.member,
        ({ place }) => place.failure,
        ({ rev }) => rev,
      ),
    );
    return rows.length;
  }
}

/** What is known of targets in an operation, and what becomes of them in it. */
export class TargetSheet implements TargetRows {
  readonly #known = new Map<string, Known>();
  #puts = new Map<string, Put>();
  #patches = new Map<string, Patch>();
  #removed = new Map<string, TargetRef>();

  know(ref: TargetRef, known: Known): void {
    this.#known.set(nameOf(ref), known);
  }

  standing(ref: TargetRef): Standing | undefined {
    return this.#known.get(nameOf(ref));
  }

  idOf(ref: TargetRef): string | undefined {
    return this.#known.get(nameOf(ref))?.id;
  }

  put(ref: TargetRef, target: ListedTarget, place: Place, build: BuildKey): void {
    const name = nameOf(ref);
    const rev = target.rev + 1;
    this.#known.set(name, { id: target.id, rev, failure: place.failure });
    this.#patches.delete(name);
    this.#puts.set(name, { ref, target, place, build, rev });
  }

  see(ref: TargetRef, _target: ListedTarget, build: BuildKey): void {
    this.#patch(ref, { seen: build });
  }

  failed(ref: TargetRef, failure: ResultKey): void {
    this.#patch(ref, { away: true, failure });
  }

  blame(ref: TargetRef, failure: ResultKey | null): void {
    this.#patch(ref, { failure });
  }

  leave(ref: TargetRef): void {
    this.#patch(ref, { away: true, done: GONE, failure: null });
  }

  remove(ref: TargetRef): void {
    const name = nameOf(ref);
    this.#known.delete(name);
    this.#patches.delete(name);
    this.#puts.delete(name);
    this.#removed.set(name, ref);
  }

  /** What there is to write, once. */
  changes(): TargetChanges {
    const changes = {
      puts: [...this.#puts.values()],
      patches: [...this.#patches.values()],
      removed: [...this.#removed.values()],
    };
    this.#puts = new Map();
    this.#patches = new Map();
    this.#removed = new Map();
    return changes;
  }

  /** One that is not there stays away. */
  #patch(ref: TargetRef, change: { away?: true; done?: typeof GONE; failure?: ResultKey | null; seen?: BuildKey }): void {
    const name = nameOf(ref);
    const known = this.#known.get(name);
    if (known === undefined) return;
    const { away = false, done = null, failure = known.failure, seen = null } = change;
    const rev = known.rev + (away ? 1 : 0);
    this.#known.set(name, { ...known, rev, failure });
    const put = this.#puts.get(name);
    if (put !== undefined) {
      const place = { ...put.place, failure, ...(away ? { done, member: null } : {}) };
      this.#puts.set(name, { ...put, place, rev, build: seen ?? put.build });
      return;
    }
    const before = this.#patches.get(name);
    const left = away ? { away, done } : { away: before?.away ?? false, done: before?.done ?? null };
    this.#patches.set(name, { ref, ...left, failure, rev, seen: seen ?? before?.seen ?? null });
  }
}

function nameOf({ pipeline, segment, path }: TargetRef): string {
  return `${segment} ${pipeline}\n${path}`;
}

function distinctLists(refs: readonly TargetRef[]): string[] {
  return [
    listOf([...new Set(refs.map(({ pipeline }) => pipeline))]),
    listOf([...new Set(refs.map(({ segment }) => segment))]),
    listOf([...new Set(refs.map(({ path }) => path))]),
  ];
}

function refLists(refs: readonly TargetRef[]): string[] {
  return listsOf(
    refs,
    ({ pipeline }) => pipeline,
    ({ segment }) => segment,
    ({ path }) => path,
  );
}
