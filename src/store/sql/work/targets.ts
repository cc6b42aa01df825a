import { type CompletedStages, completedStagesText, GONE_MARK } from "../../../core/pipelines/work.ts";
import type { BuildKey, ResultKey } from "../../../core/text/ids.ts";
import {
  type ListedTarget,
  type MemberPage,
  type TargetColumns,
  type TargetPage,
  type TargetPaths,
  type TargetRow,
  toTarget,
} from "../../work.ts";
import {
  RowGuard,
  type ColumnType,
  type Dialect,
  type EachParams,
  type Params,
  type Reads,
  type Script,
  together,
  type Tx,
} from "../script.ts";

export class Targets {
  readonly #guard: RowGuard;
  readonly #sql: ReturnType<typeof targetsSql>;

  constructor(dialect: Dialect) {
    this.#guard = new RowGuard(dialect, "targets");
    this.#sql = targetsSql(dialect, this.#guard);
  }

  read(db: Reads, query: TargetPaths | TargetPage | MemberPage): Script<TargetRow[]> {
    if ("paths" in query) return this.byPath(db, query.pipeline, query.segment, query.paths);
    if ("members" in query) return this.#members(db, query);
    return this.#page(db, query);
  }

  byPath(db: Reads, pipeline: string, segment: number, paths: readonly string[]): Script<TargetRow[]> {
    return this.#read(db, this.#sql.byPath, { pipeline, segment, paths });
  }

  *count(db: Reads, pipeline: string, segment: number): Script<number> {
    return ((yield* db.get<{ n: number }>(this.#sql.count, { pipeline, segment })) as { n: number }).n;
  }

  #page(db: Reads, { pipeline, segment, after, limit, parent, unseen }: TargetPage): Script<TargetRow[]> {
    const { page, children } = this.#sql;
    const { all, unseen: others } = (parent === undefined ? page : children)[after === undefined ? "first" : "next"];
    const params = { pipeline, segment, limit, after: after ?? null, parent: parent ?? null, unseen: unseen ?? null };
    return this.#read(db, unseen === undefined ? all : others, params);
  }

  *#members(db: Reads, { pipeline, segment, after, group, limit }: MemberPage): Script<TargetRow[]> {
    const { ungrouped, grouped, groups } = this.#sql;
    const first = group === undefined ? (after?.group ?? null) : group;
    const within = (first === null ? ungrouped : grouped)[after === undefined ? "first" : "next"];
    const params = { pipeline, segment, group: first, after: after?.path ?? null };
    const members = yield* this.#read(db, within, { ...params, limit });
    const left = limit - members.length;
    if (group !== undefined || left === 0) return members;
    const others = yield* this.#read(db, first === null ? groups.first : groups.next, { ...params, limit: left });
    return [...members, ...others];
  }

  *#read(db: Reads, sql: string, params: Params): Script<TargetRow[]> {
    return (yield* db.all<TargetColumns & { pipeline: string }>(sql, params)).map((row) => {
      this.#guard.check(row, `The target ${row.path} of pipeline ${row.pipeline}`);
      return toTarget(row);
    });
  }
}

/** Includes a condition only if it is asked for, so that the planner finds its index. */
function targetsSql(dialect: Dialect, guard: RowGuard) {
  const targets = dialect.table("targets");
  const read = `select ${COLUMNS}${guard.column} from ${targets}`;
  const of = "where pipeline = :pipeline and segment = :segment";
  const end = "order by path limit :limit";
  const paged = (from: string) => ({ first: `${from} ${end}`, next: `${from} and path > :after ${end}` });
  const seen = (from: string) => {
    const all = paged(from);
    const unseen = paged(`${from} and seen <> :unseen`);
    return { first: { all: all.first, unseen: unseen.first }, next: { all: all.next, unseen: unseen.next } };
  };
  const groups = `${read}${dialect.indexed("targets_groups")} ${of} and member is not null and grouping is not null`;
  const byGroup = "order by grouping, path limit :limit";
  return {
    byPath: `${read} ${of} and ${dialect.in("path", "text", ":paths")} order by path`,
    count: `select count(*) as n from ${targets} ${of}`,
    page: seen(`${read} ${of}`),
    children: seen(`${read}${dialect.indexed("targets_children")} ${of} and parent = :parent`),
    ungrouped: paged(`${read} ${of} and member is not null and grouping is null`),
    grouped: paged(`${groups} and grouping = :group`),
    groups: { first: `${groups} ${byGroup}`, next: `${groups} and grouping > :group ${byGroup}` },
  };
}

export interface TargetRef {
  pipeline: string;
  segment: number;
  path: string;
}

export interface TargetState {
  id: string;
  rev: number;
  failure: ResultKey | null;
}

export interface TargetPosition {
  completed: CompletedStages;
  done: string | null;
  group: string | null;
  member: string | null;
  failure: ResultKey | null;
}

interface Put {
  ref: TargetRef;
  target: ListedTarget;
  position: TargetPosition;
  build: BuildKey;
  rev: number;
}

interface Patch extends Omit<TargetState, "id"> {
  ref: TargetRef;
  /** The target is no longer at the end of its segment; `done` is written then. */
  leaves: boolean;
  done: typeof GONE_MARK | null;
  seen: BuildKey | null;
}

export class TargetTable {
  readonly #guard: RowGuard;
  readonly #sql: ReturnType<typeof targetTableSql>;

  constructor(dialect: Dialect) {
    this.#guard = new RowGuard(dialect, "targets");
    this.#sql = targetTableSql(dialect, this.#guard);
  }

  *load(tx: Reads, refs: readonly TargetRef[]): Script<TargetBatch> {
    const batch = new TargetBatch();
    if (refs.length === 0) return batch;
    const rows = yield* tx.all<TargetRef & TargetState>(this.#sql.load, {
      pipelines: [...new Set(refs.map(({ pipeline }) => pipeline))],
      segments: [...new Set(refs.map(({ segment }) => segment))],
      paths: [...new Set(refs.map(({ path }) => path))],
    });
    for (const row of rows) batch.know(row);
    return batch;
  }

  /** Marks the targets that are still as they were read as listed by this build. Returns them. */
  *see<T extends { path: string; rev: number }>(
    tx: Tx,
    { pipeline, segment, build }: { pipeline: string; segment: number; build: BuildKey },
    targets: readonly T[],
  ): Script<T[]> {
    const params = { pipeline, segment, paths: targets.map(({ path }) => path) };
    const rows = yield* tx.all<{ path: string; rev: number }>(this.#sql.revisions, params);
    const revs = new Map(rows.map(({ path, rev }) => [path, rev]));
    const same = targets.filter(({ path, rev }) => revs.get(path) === rev);
    if (same.length > 0) yield* tx.run(this.#sql.see, { ...params, paths: same.map(({ path }) => path), build });
    return same;
  }

  /** Returns false if another transaction has added one of these targets since it was loaded as missing. */
  *write(tx: Tx, batch: TargetBatch): Script<boolean> {
    const { puts, patches, removed } = batch.changes();
    const patched = patches.map(({ ref, ...patch }) => Object.assign(patch, ref));
    const moved = puts.filter(({ target }) => target.isStored);
    const whole = puts.filter(({ target }) => !target.isStored).map((put) => this.#columns(put));
    const [, written] = yield* together(
      tx.each(this.#sql.remove, removed),
      tx.each(this.#sql.put, whole),
      tx.each(this.#sql.move, moved.map(positionColumns)),
      tx.each(this.#sql.patch, patched),
    );
    return written === whole.length;
  }

  #columns(put: Put): EachParams {
    const { id, parent, hash, fingerprint, value } = put.target;
    return this.#guard.sign({
      ...positionColumns(put),
      id,
      parent,
      hash,
      fingerprint,
      value_hash: value.hash,
      value_text: value.text,
      value_file: value.artifact,
      value_size: value.size,
    });
  }
}

const REF = { pipeline: "text", segment: "bigint", path: "text" } as const;
const CONTENT = {
  id: "text",
  parent: "text",
  hash: "text",
  fingerprint: "text",
  value_hash: "text",
  value_text: "text",
  value_file: "text",
  value_size: "bigint",
} as const;
const POSITION = {
  seen: "bigint",
  done: "text",
  completed: "text",
  grouping: "text",
  member: "text",
  failure: "bigint",
  rev: "bigint",
} as const;

const COLUMNS = Object.keys({ ...REF, ...CONTENT, ...POSITION });

function targetTableSql({ table, in: isIn, each, locking }: Dialect, guard: RowGuard) {
  const targets = table("targets");
  const put: Record<string, ColumnType> = { ...CONTENT, ...POSITION, ...guard.type };
  const listed = `pipeline = :pipeline and segment = :segment and ${isIn("path", "text", ":paths")}`;
  const updated = Object.keys(put).map((name) => `${name} = excluded.${name}`);
  return {
    load: `
      select pipeline, segment, path, id, rev, failure from ${targets}
      where ${isIn("pipeline", "text", ":pipelines")} and ${isIn("segment", "bigint", ":segments")} and ${isIn("path", "text", ":paths")}
      order by pipeline, segment, path${locking}`,
    // A loaded target is locked. A missing one may have been added since, with a higher revision.
    put: each(
      { ...REF, ...put },
      (row) => `
        insert into ${targets} as old (${Object.keys({ ...REF, ...put })}) ${row.inserted}
        on conflict (pipeline, segment, path) do update set ${updated} where old.rev < excluded.rev`,
    ),
    move: each(
      { ...REF, ...POSITION },
      (row) => `
        update ${targets} as target set ${Object.keys(POSITION).map((name) => `${name} = ${row.value(name)}`)}
        ${row.locked(targets, ...Object.keys(REF))}`,
    ),
    patch: each(
      { ...REF, leaves: "boolean", done: "text", failure: "bigint", rev: "bigint", seen: "bigint" },
      (row) => `
        update ${targets} as target set
          done = case when ${row.value("leaves")} then ${row.value("done")} else target.done end,
          member = case when ${row.value("leaves")} then null else target.member end,
          failure = ${row.value("failure")}, rev = ${row.value("rev")}, seen = coalesce(${row.value("seen")}, target.seen)
        ${row.locked(targets, ...Object.keys(REF))}`,
    ),
    revisions: `select path, rev from ${targets} where ${listed} order by path${locking}`,
    see: `update ${targets} set seen = :build where ${listed}`,
    remove: each(REF, (row) => `delete from ${targets} as target ${row.using} where ${row.is("target", ...Object.keys(REF))}`),
  };
}

export class TargetBatch {
  readonly #known = new Map<string, TargetState>();
  #puts = new Map<string, Put>();
  #patches = new Map<string, Patch>();
  #removed = new Map<string, TargetRef>();

  know(row: TargetRef & TargetState): void {
    this.#known.set(nameOf(row), row);
  }

  get(ref: TargetRef): TargetState | undefined {
    return this.#known.get(nameOf(ref));
  }

  put(ref: TargetRef, target: ListedTarget, position: TargetPosition, build: BuildKey): void {
    const name = nameOf(ref);
    const rev = target.rev + 1;
    this.#known.set(name, { id: target.id, rev, failure: position.failure });
    this.#patches.delete(name);
    this.#puts.set(name, { ref, target, position, build, rev });
  }

  see(ref: TargetRef, build: BuildKey): void {
    this.#patch(ref, { seen: build });
  }

  /** Keeps the target where it is, because of this failure. */
  fail(ref: TargetRef, failure: ResultKey): void {
    this.#patch(ref, { leaves: true, failure });
  }

  /** Lets the target continue, but keeps it from being deleted as long as it has this failure. */
  blame(ref: TargetRef, failure: ResultKey | null): void {
    this.#patch(ref, { failure });
  }

  /** Marks the target as gone. It is kept only until what was made of it is removed. */
  leave(ref: TargetRef): void {
    this.#patch(ref, { leaves: true, done: GONE_MARK, failure: null });
  }

  remove(ref: TargetRef): void {
    const name = nameOf(ref);
    this.#known.delete(name);
    this.#patches.delete(name);
    this.#puts.delete(name);
    this.#removed.set(name, ref);
  }

  changes(): { puts: Put[]; patches: Patch[]; removed: TargetRef[] } {
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

  #patch(ref: TargetRef, change: { leaves?: true; done?: typeof GONE_MARK; failure?: ResultKey | null; seen?: BuildKey }): void {
    const name = nameOf(ref);
    const known = this.#known.get(name);
    if (known === undefined) return;
    const { leaves = false, done = null, failure = known.failure, seen = null } = change;
    const rev = known.rev + (leaves ? 1 : 0);
    this.#known.set(name, { ...known, rev, failure });
    const put = this.#puts.get(name);
    if (put !== undefined) {
      const position = { ...put.position, failure, ...(leaves ? { done, member: null } : {}) };
      this.#puts.set(name, { ...put, position, rev, build: seen ?? put.build });
      return;
    }
    const before = this.#patches.get(name);
    const left = leaves ? { leaves, done } : { leaves: before?.leaves ?? false, done: before?.done ?? null };
    this.#patches.set(name, { ref, ...left, failure, rev, seen: seen ?? before?.seen ?? null });
  }
}

function nameOf({ pipeline, segment, path }: TargetRef): string {
  return `${segment} ${pipeline}\n${path}`;
}

function positionColumns({ ref, position, build, rev }: Put) {
  const { completed, done, group, member, failure } = position;
  return { ...ref, seen: build, done, completed: completedStagesText(completed), grouping: group, member, failure, rev };
}
