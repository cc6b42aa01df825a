import type { BuildKey, ResultKey } from "../../../core/text/ids.ts";
import { GONE, trailText } from "../../../core/pipelines/work.ts";
import { damagedRow } from "../../../core/text/errors.ts";
import type { TargetGuard } from "../../sql/work/targets.ts";
import type { ListedTarget, TargetColumns } from "../../work.ts";
import type { Place, Standing, TargetRef, TargetRows } from "../../work/rows.ts";
import { type CheckedRow, isIntact, rowChecksum } from "../checksum.ts";
import type { Connection, Statement } from "../driver.ts";

const ONE = "pipeline = ? and segment = ? and path = ?";
type Row = TargetColumns & CheckedRow<"holdfast_targets">;

/** The targets of pipelines, by segment and path. */
export class Targets implements TargetRows {
  readonly #standing: Statement;
  readonly #standings: Statement;
  readonly #put: Statement;
  readonly #seen: Statement;
  readonly #failed: Statement;
  readonly #blame: Statement;
  readonly #leave: Statement;
  readonly #remove: Statement;
  readonly #idOf: Statement;

  constructor(db: Connection) {
    this.#standing = db.prepare(`select rev, failure from holdfast_targets where ${ONE}`);
    this.#standings = db.prepare(
      "select path, rev, failure from holdfast_targets where pipeline = ? and segment = ? and path in (select value from json_each(?))",
    );
    this.#put = db.prepare(
      `insert into holdfast_targets (pipeline, segment, path, id, parent, hash, fingerprint, value_hash, value_text, value_file,
         value_size, seen, done, trail, grouping, member, failure, rev, checksum)
       values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
       on conflict (pipeline, segment, path) do update set id = excluded.id, parent = excluded.parent, hash = excluded.hash,
         fingerprint = excluded.fingerprint, value_hash = excluded.value_hash, value_text = excluded.value_text,
         value_file = excluded.value_file, value_size = excluded.value_size, seen = excluded.seen, done = excluded.done,
         trail = excluded.trail, grouping = excluded.grouping, member = excluded.member, failure = excluded.failure,
         rev = excluded.rev, checksum = excluded.checksum`,
    );
    // Hundreds at a time: all that a build costs for what has not changed. Joined to the list, the whole table is walked.
    this.#seen = db.prepare(
      `update holdfast_targets set seen = ?
       where pipeline = ? and segment = ? and path in (select value from json_each(?))`,
    );
    this.#failed = db.prepare(`update holdfast_targets set done = null, member = null, failure = ?, rev = rev + 1 where ${ONE}`);
    this.#blame = db.prepare(`update holdfast_targets set failure = ? where ${ONE}`);
    this.#leave = db.prepare(
      `update holdfast_targets set done = '${GONE}', member = null, failure = null, rev = rev + 1 where ${ONE}`,
    );
    this.#remove = db.prepare(`delete from holdfast_targets where ${ONE}`);
    this.#idOf = db.prepare(`select id from holdfast_targets where ${ONE}`);
  }

  standing({ pipeline, segment, path }: TargetRef): Standing | undefined {
    const row = this.#standing.row(pipeline, segment, path) as [number, ResultKey | null] | undefined;
    return row && { rev: row[0], failure: row[1] };
  }

  standings(pipeline: string, segment: number, paths: readonly string[]): Map<string, Standing> {
    const rows = this.#standings.rows(pipeline, segment, JSON.stringify(paths)) as [string, number, ResultKey | null][];
    return new Map(rows.map(([path, rev, failure]) => [path, { rev, failure }]));
  }

  put({ pipeline, segment, path }: TargetRef, target: ListedTarget, place: Place, build: BuildKey): void {
    const { id, parent, hash, fingerprint, value } = target;
    const { trail, done, group, member, failure } = place;
    const stored = { value_hash: value.hash, value_text: value.text, value_file: value.artifact, value_size: value.size };
    const checked = { pipeline, segment, path, id, parent, hash, fingerprint, ...stored };
    const placed = [done, trailText(trail), group, member, failure, target.rev + 1];
    this.#put.run(...Object.values(checked), build, ...placed, rowChecksum("holdfast_targets", checked));
  }

  see({ pipeline, segment }: TargetRef, target: ListedTarget, build: BuildKey): void {
    this.seen(pipeline, segment, [target], build);
  }

  /** Marks those that are as they were read; the answer is which of them are not, by their places. */
  seen(pipeline: string, segment: number, targets: readonly ListedTarget[], build: BuildKey): Set<number> {
    const paths = targets.map(({ path }) => path);
    const standings = this.standings(pipeline, segment, paths);
    const others = new Set<number>();
    for (const [place, { path, rev }] of targets.entries()) if (standings.get(path)?.rev !== rev) others.add(place);
    const same = others.size === 0 ? paths : paths.filter((_, place) => !others.has(place));
    this.#seen.run(build, pipeline, segment, JSON.stringify(same));
    return others;
  }

  failed({ pipeline, segment, path }: TargetRef, failure: ResultKey): void {
    this.#failed.run(failure, pipeline, segment, path);
  }

  blame({ pipeline, segment, path }: TargetRef, failure: ResultKey | null): void {
    this.#blame.run(failure, pipeline, segment, path);
  }

  leave({ pipeline, segment, path }: TargetRef): void {
    this.#leave.run(pipeline, segment, path);
  }

  remove({ pipeline, segment, path }: TargetRef): void {
    this.#remove.run(pipeline, segment, path);
  }

  idOf({ pipeline, segment, path }: TargetRef): string | undefined {
    return this.#idOf.row(pipeline, segment, path)?.[0] as string | undefined;
  }
}

export const TARGET_GUARD: TargetGuard = {
  columns: ", pipeline, checksum",
  check(row) {
    const checked = row as Row;
    if (!isIntact("holdfast_targets", checked)) throw damagedRow(`The target ${row.path} of pipeline ${checked.pipeline}`);
  },
};
