import type { BuildKey, ResultKey } from "../../../core/text/ids.ts";
import { damagedRow } from "../../../core/text/errors.ts";
import { retriedIn } from "../../builds.ts";
import type { OutputColumns, ResultColumns } from "../../work.ts";
import type { ResultGuard } from "../../sql/work/results.ts";
import type { MadeResult, ResultRows } from "../../work/rows.ts";
import { CHECKED, type CheckedRow, isIntact, rowChecksum } from "../checksum.ts";
import type { Connection, Statement } from "../driver.ts";
import type { ArtifactRefs } from "./artifact-refs.ts";

const OUTPUT = "output_hash, output_text, output_file, output_size";
const MADE = [...CHECKED.holdfast_results, "checksum"].map((name) => `result.${name}`).join(", ");

type Row = CheckedRow<"holdfast_results"> & OutputColumns;

/** The record of what stages have made, and of what went wrong. */
export class Results implements ResultRows {
  readonly #artifacts: ArtifactRefs;
  readonly #own: Statement;
  readonly #insert: Statement;
  readonly #made: Statement;
  readonly #remove: Statement;
  readonly #setAside: Statement;
  readonly #recall: Statement;
  readonly #retried: Statement;

  constructor(db: Connection, artifacts: ArtifactRefs) {
    this.#artifacts = artifacts;
    this.#own = db.prepare("select key, state from holdfast_results where build = ? and stage = ? and path = ?");
    this.#insert = db.prepare(
      `insert into holdfast_results (build, pipeline, stage, path, target, state, hash, parts, ${OUTPUT}, micros, tokens, error, at,
         checksum)
       values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning key`,
    );
    this.#made = db.prepare(`select ${MADE} from holdfast_results as result where key = :key`);
    this.#remove = db.prepare("delete from holdfast_results where key = ?");
    this.#setAside = db.prepare("update holdfast_results set build = -key where key = ?");
    this.#recall = db.prepare(
      "delete from holdfast_results where key = ? and build in (?, ?) and state = 'FAILED' returning stage, build",
    );
    this.#retried = db.prepare(
      "delete from holdfast_results where build = ? and state = 'FAILED' and key in (select value from json_each(?))",
    );
  }

  /** In place of the one that this build had for this stage and target. `again`: that one was a failure. */
  put(made: MadeResult, now: number): { key: ResultKey; again: boolean } {
    const again = this.#replace(made) === "FAILED";
    return { key: this.#add(made, now), again };
  }

  reuse(by: Pick<MadeResult, "build" | "pipeline" | "stage" | "path" | "target">, result: ResultKey | null, now: number): void {
    const { build, pipeline, stage, path, target } = by;
    this.#replace(by);
    const free = { micros: 0, tokens: 0, error: null, at: now };
    if (result === null) {
      const nothing = { parts: null, output_hash: "none", output_text: null, output_file: null, output_size: 0 };
      this.#write(build, { pipeline, stage, path, target, state: "GONE", hash: "", ...nothing, ...free });
      return;
    }
    const made = this.#made.get<Row>({ key: result }) as Row;
    refuseDamaged(made);
    this.#write(build, { ...made, path, target, state: "REUSED", ...free });
    this.#artifacts.copy(result, build, path);
  }

  /** Makes room for another. Whoever has reused what was made keeps it. The answer is what was there. */
  #replace({ build, stage, path }: Pick<MadeResult, "build" | "stage" | "path">): string | undefined {
    const [key, state] = (this.#own.row(build, stage, path) ?? []) as [ResultKey?, string?];
    if (key === undefined) return undefined;
    if (state === "SUCCESS") {
      this.#setAside.run(key);
      this.#artifacts.setAside(build, stage, path, key);
    } else {
      this.#remove.run(key);
      this.#artifacts.drop(build, stage, path);
    }
    return state;
  }

  /** Takes back what says that a target has failed in this build: the stage where it had, if it has. */
  recall(build: BuildKey, failure: ResultKey): string | undefined {
    const [stage, of] = (this.#recall.row(failure, build, retriedIn(build)) ?? []) as [string?, number?];
    return of === build ? stage : undefined;
  }

  retried(build: BuildKey, keys: readonly ResultKey[]): void {
    this.#retried.run(retriedIn(build), JSON.stringify(keys));
  }

  #add(made: MadeResult, now: number): ResultKey {
    const { build, pipeline, stage, path, target, hash, parts, output, cost, error } = made;
    return this.#write(build, {
      pipeline,
      stage,
      path,
      target,
      state: error === null ? "SUCCESS" : "FAILED",
      hash,
      parts,
      output_hash: output.hash,
      output_text: output.text,
      output_file: output.artifact,
      output_size: output.size,
      micros: cost.micros,
      tokens: cost.tokens,
      error: error === null ? null : JSON.stringify(error),
      at: now,
    });
  }

  #write(build: BuildKey, row: Omit<Row, "checksum">): ResultKey {
    const { pipeline, stage, path, target, state, hash, parts } = row;
    const output = [row.output_hash, row.output_text, row.output_file, row.output_size];
    const end = [row.micros, row.tokens, row.error, row.at, rowChecksum("holdfast_results", row)];
    return (this.#insert.row(build, pipeline, stage, path, target, state, hash, parts, ...output, ...end) as [ResultKey])[0];
  }
}

export const RESULT_GUARD: ResultGuard = {
  columns: ", result.pipeline, result.checksum",
  found: MADE,
  isIntact: (row) => isIntact("holdfast_results", row as Row),
  check: (row) => refuseDamaged(row as Row & ResultColumns),
};

function refuseDamaged(row: Row): void {
  if (!isIntact("holdfast_results", row)) throw damagedRow(`What stage ${row.stage} has made of ${row.target}`);
}
