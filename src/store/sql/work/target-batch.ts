import type { BuildKey, ResultKey } from "../../../core/text/ids.ts";
import { GONE, type CompletedStages, completedStagesText } from "../../../core/pipelines/work.ts";
import type { ListedTarget } from "../../work.ts";
import { type ColumnType, type Dialect, type EachParams, type Reads, type Script, together, type Tx } from "../script.ts";
import type { TargetGuard } from "./targets.ts";

/** What names a target. */
export interface TargetRef {
  pipeline: string;
  segment: number;
  path: string;
}

/** What a target is compared by before it is changed. */
export interface TargetState {
  id: string;
  rev: number;
  failure: ResultKey | null;
}

/** The columns of a target that change only with its content. */
type Content = Pick<ListedTarget, "id" | "parent" | "hash" | "fingerprint"> & { value_hash: string };

/** Where a target is: at the end of its segment, or at a stage of it. */
export interface TargetPosition {
  completed: CompletedStages;
  done: string | null;
  group: string | null;
  member: string | null;
  failure: ResultKey | null;
}

/** A target that is written: whole, or only its position where its content is stored already. */
interface Put {
  isStored: boolean;
  ref: TargetRef;
  target: ListedTarget;
  position: TargetPosition;
  build: BuildKey;
  rev: number;
}

/** What changes of a target whose other columns stay. */
interface Patch extends Omit<TargetState, "id"> {
  ref: TargetRef;
  /** The target is no longer at the end of its segment; `done` is written then. */
  leaves: boolean;
  done: typeof GONE | null;
  seen: BuildKey | null;
}

/** Loads targets, locked, and writes what an operation changes of them. */
export class TargetTable {
  readonly #guard: TargetGuard;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, guard: TargetGuard) {
    this.#guard = guard;
    this.#sql = statements(dialect, guard);
  }

  /** No other transaction changes the loaded targets before the commit. */
  *load(tx: Reads, refs: readonly TargetRef[]): Script<TargetBatch> {
    const batch = new TargetBatch();
    if (refs.length === 0) return batch;
    const rows = yield* tx.all<TargetRef & TargetState & Content>(this.#sql.load, {
      pipelines: [...new Set(refs.map(({ pipeline }) => pipeline))],
      segments: [...new Set(refs.map(({ segment }) => segment))],
      paths: [...new Set(refs.map(({ path }) => path))],
    });
    for (const row of rows) batch.know(row);
    return batch;
  }

  /** Marks targets of a segment, which are loaded, as listed by this build. */
  *see(tx: Tx, { pipeline, segment }: Omit<TargetRef, "path">, paths: readonly string[], build: BuildKey): Script<void> {
    if (paths.length > 0) yield* tx.run(this.#sql.see, { pipeline, segment, paths, build });
  }

  /** False: another transaction has added one of these targets since it was loaded as missing. */
  *write(tx: Tx, batch: TargetBatch): Script<boolean> {
    const { puts, patches, removed } = batch.changes();
    const moved = puts.filter(({ isStored }) => isStored);
    const whole = puts.filter(({ isStored }) => !isStored);
    const [, written] = yield* together(
      tx.each(this.#sql.remove, removed.map(refColumns)),
      tx.each(
        this.#sql.put,
        whole.map((put) => this.#columns(put)),
      ),
      tx.each(this.#sql.move, moved.map(positionColumns)),
      tx.each(
        this.#sql.patch,
        patches.map(({ ref: { pipeline, segment, path }, leaves, done, failure, rev, seen }) => {
          return { pipeline, segment, path, leaves, done, failure, rev, seen };
        }),
      ),
    );
    return written === whole.length;
  }

  #columns(put: Put): EachParams {
    const { id, parent, hash, fingerprint, value } = put.target;
    const columns = {
      ...positionColumns(put),
      id,
      parent,
      hash,
      fingerprint,
      value_hash: value.hash,
      value_text: value.text,
      value_file: value.artifact,
      value_size: value.size,
      checksum: null as number | null,
    };
    if (this.#guard.checksum !== null) columns.checksum = this.#guard.checksum(columns);
    return columns;
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

function statements({ table, in: isIn, each, locking }: Dialect, { checksum }: TargetGuard) {
  const targets = table("targets");
  const put: Record<string, ColumnType> = { ...CONTENT, ...POSITION, ...(checksum === null ? {} : { checksum: "bigint" }) };
  const updated = Object.keys(put).map((name) => `${name} = excluded.${name}`);
  return {
    // By the primary key; other targets may match, too.
    load: `
      select pipeline, segment, path, id, rev, failure, parent, hash, fingerprint, value_hash from ${targets}
      where ${isIn("pipeline", "text", ":pipelines")} and ${isIn("segment", "bigint", ":segments")} and ${isIn("path", "text", ":paths")}
      order by pipeline, segment, path${locking}`,
    // A target that was loaded is locked. One that was missing may have been added since, with a higher revision.
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
        ${row.from()} where ${row.is("target", ...Object.keys(REF))}`,
    ),
    patch: each(
      { ...REF, leaves: "boolean", done: "text", failure: "bigint", rev: "bigint", seen: "bigint" },
      (row) => `
        update ${targets} as target set
          done = case when ${row.value("leaves")} then ${row.value("done")} else target.done end,
          member = case when ${row.value("leaves")} then null else target.member end,
          failure = ${row.value("failure")}, rev = ${row.value("rev")}, seen = coalesce(${row.value("seen")}, target.seen)
        ${row.from()} where ${row.is("target", ...Object.keys(REF))}`,
    ),
    see: `update ${targets} set seen = :build where pipeline = :pipeline and segment = :segment and ${isIn("path", "text", ":paths")}`,
    remove: each(REF, (row) => `delete from ${targets} as target ${row.using} where ${row.is("target", ...Object.keys(REF))}`),
  };
}

/** The targets that an operation has loaded, and what it changes of them. */
export class TargetBatch {
  readonly #known = new Map<string, TargetState>();
  readonly #stored = new Map<string, Content>();
  #puts = new Map<string, Put>();
  #patches = new Map<string, Patch>();
  #removed = new Map<string, TargetRef>();

  /** A row as it was loaded. */
  know(row: TargetRef & TargetState & Content): void {
    const name = nameOf(row);
    this.#known.set(name, row);
    this.#stored.set(name, row);
  }

  get(ref: TargetRef): TargetState | undefined {
    return this.#known.get(nameOf(ref));
  }

  /** Replaces the target, or adds it. */
  put(ref: TargetRef, target: ListedTarget, position: TargetPosition, build: BuildKey): void {
    const name = nameOf(ref);
    const rev = target.rev + 1;
    this.#known.set(name, { id: target.id, rev, failure: position.failure });
    this.#patches.delete(name);
    this.#puts.set(name, { ref, target, position, build, rev, isStored: isContentOf(target, this.#stored.get(name)) });
  }

  /** The target is unchanged, and this build has listed it. */
  see(ref: TargetRef, build: BuildKey): void {
    this.#patch(ref, { seen: build });
  }

  /** The target stays where it is, because of this failure. */
  fail(ref: TargetRef, failure: ResultKey): void {
    this.#patch(ref, { leaves: true, failure });
  }

  /** The target continues, and is not deleted as long as it has this failure. */
  blame(ref: TargetRef, failure: ResultKey | null): void {
    this.#patch(ref, { failure });
  }

  /** The target is gone, and is kept only until what was made of it is removed: without a group and a failure. */
  leave(ref: TargetRef): void {
    this.#patch(ref, { leaves: true, done: GONE, failure: null });
  }

  remove(ref: TargetRef): void {
    const name = nameOf(ref);
    this.#known.delete(name);
    this.#stored.delete(name);
    this.#patches.delete(name);
    this.#puts.delete(name);
    this.#removed.set(name, ref);
  }

  /** The changes since the last call. */
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

  /** Changes nothing of a target that does not exist. */
  #patch(ref: TargetRef, change: { leaves?: true; done?: typeof GONE; failure?: ResultKey | null; seen?: BuildKey }): void {
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

function isContentOf({ id, parent, hash, fingerprint, value }: ListedTarget, stored: Content | undefined): boolean {
  if (stored?.hash !== hash || stored.value_hash !== value.hash) return false;
  return stored.id === id && stored.parent === parent && stored.fingerprint === fingerprint;
}

function positionColumns({ ref, position, build, rev }: Put) {
  const { completed, done, group, member, failure } = position;
  return {
    pipeline: ref.pipeline,
    segment: ref.segment,
    path: ref.path,
    seen: build,
    done,
    completed: completedStagesText(completed),
    grouping: group,
    member,
    failure,
    rev,
  };
}

function refColumns({ pipeline, segment, path }: TargetRef): EachParams {
  return { pipeline, segment, path };
}
