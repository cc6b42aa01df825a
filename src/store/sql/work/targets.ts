import {
  type MemberPage,
  TARGET,
  type TargetColumns,
  type TargetPage,
  type TargetPaths,
  type TargetRow,
  toTarget,
} from "../../work.ts";
import type { Dialect, Params, Reads, Script } from "../script.ts";

/** What a store adds to the rows of targets so that damage to them is noticed. */
export interface TargetGuard {
  /** Begins with a comma. */
  columns: string;
  /** Throws if a row is not what was written. */
  check(row: TargetColumns): void;
  /** The checksum that is written with a row; null where rows have none. */
  readonly checksum: ((row: CheckedTarget) => number) | null;
}

/** What the checksum of a target covers. */
export type CheckedTarget = Omit<TargetColumns, "seen" | "done" | "completed" | "grouping" | "member" | "failure" | "rev"> & {
  pipeline: string;
};

/** Reads the targets of pipelines, by segment and path. Paths are ordered by their bytes: so are the columns collated. */
export class Targets {
  readonly #guard: TargetGuard;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, guard: TargetGuard) {
    this.#guard = guard;
    this.#sql = statements(dialect, guard);
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

  /** First the targets without a group, then group by group. */
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
    return (yield* db.all<TargetColumns>(sql, params)).map((row) => {
      this.#guard.check(row);
      return toTarget(row);
    });
  }
}

/** Each condition is in the statement only if it is asked for, so that the planner finds its index. */
function statements(dialect: Dialect, guard: TargetGuard) {
  const targets = dialect.table("targets");
  const read = `select ${TARGET}${guard.columns} from ${targets}`;
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
