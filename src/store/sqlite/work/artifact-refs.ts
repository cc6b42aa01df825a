import type { BuildKey, ResultKey } from "../../../core/text/ids.ts";
import type { NamedArtifact } from "../../work.ts";
import type { ArtifactRows } from "../../work/rows.ts";
import type { Connection, Statement } from "../driver.ts";

/** Which artifacts there must be, and why: nothing that is referenced here is swept. */
export class ArtifactRefs implements ArtifactRows {
  readonly #add: Statement;
  readonly #setAside: Statement;
  readonly #copy: Statement;
  readonly #drop: Statement;
  readonly #referenced: Statement;

  constructor(db: Connection) {
    this.#add = db.prepare(
      `insert into holdfast_artifacts (build, stage, path, name, hash, size) values (?, ?, ?, ?, ?, ?)
       on conflict (build, stage, path, name) do update set hash = excluded.hash, size = excluded.size`,
    );
    this.#setAside = db.prepare("update holdfast_artifacts set build = ? where build = ? and stage = ? and path = ?");
    this.#copy = db.prepare(
      `insert into holdfast_artifacts (build, stage, path, name, hash, size)
       select ?, ref.stage, ?, ref.name, ref.hash, ref.size from holdfast_results as result
         join holdfast_artifacts as ref on ref.build = result.build and ref.stage = result.stage and ref.path = result.path
       where result.key = ?
       on conflict (build, stage, path, name) do update set hash = excluded.hash, size = excluded.size`,
    );
    this.#drop = db.prepare("delete from holdfast_artifacts where build = ? and stage = ? and path = ?");
    // By holdfast_artifacts_hash.
    this.#referenced = db.prepare(
      "select value from json_each(?) as one where exists (select 1 from holdfast_artifacts where hash = one.value)",
    );
  }

  add(build: BuildKey, stage: string, path: string, artifacts: readonly NamedArtifact[]): void {
    for (const { name, hash, size } of artifacts) this.#add.run(build, stage, path, name, hash, size);
  }

  /** Those of a result that was superseded in its own build stay referenced, as those of no build. */
  setAside(build: BuildKey, stage: string, path: string, result: ResultKey): void {
    this.#setAside.run(-result, build, stage, path);
  }

  /** Those of a result are those of another target, or build, too. */
  copy(result: ResultKey, build: BuildKey, path: string): void {
    this.#copy.run(build, path, result);
  }

  drop(build: BuildKey, stage: string, path: string): void {
    this.#drop.run(build, stage, path);
  }

  referenced(hashes: readonly string[]): ReadonlySet<string> {
    return new Set(this.#referenced.rows(JSON.stringify(hashes)).map(([hash]) => hash as string));
  }
}
