import type { BuildKey } from "../../../core/text/ids.ts";
import { type BuildRow, retriedIn } from "../../builds.ts";
import type { Dialect, Reads, Script, Tx } from "../script.ts";

/**
 * Failures that a resumed build runs again. The resume takes them out of the counts, a listing of the build lists their
 * targets again and deletes them batch by batch, and what is left of them counts again when the build stops being ACTIVE.
 */
export class Retries {
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect) {
    this.#sql = statements(dialect);
  }

  *any(db: Reads, key: BuildKey): Script<boolean> {
    return (yield* db.get(this.#sql.any, { mark: retriedIn(key) })) !== undefined;
  }

  /** From here on `maxFailures` counts anew. */
  *begin(tx: Tx, { key, failed, state, reason }: BuildRow): Script<void> {
    const hasDied = state === "CRASHED" && reason !== "stopped";
    if (failed > 0) yield* this.#move(tx, key, hasDied ? this.#sql.beginWithoutKillers : this.#sql.begin);
  }

  /** What has not been listed again has failed, as before. */
  *end(tx: Tx, { key }: BuildRow): Script<void> {
    if (yield* this.any(tx, key)) yield* this.#move(tx, key, this.#sql.end);
  }

  *#move(tx: Tx, key: BuildKey, move: string): Script<void> {
    yield* tx.run(move, { key, mark: retriedIn(key) });
    yield* tx.run(this.#sql.count, { key });
    yield* tx.run(this.#sql.countStages, { key });
  }
}

/**
 * A target that killed its workers until it was quarantined. If the orchestrator has died, too, that target may have killed
 * it: run again, it would kill the orchestrator of every resume, and a supervisor that resumes would never see the end.
 */
const CRASHED = `'{"name":"CrashError","code":"CRASHED"%'`;

// Each uses the index results_failed.
function statements(dialect: Dialect) {
  const results = dialect.table("results");
  const stages = dialect.table("build_stages");
  // The failure of a listing has no stage and counts for none.
  const failed = `select count(*) from ${results} as result where result.build = :key and result.state = 'FAILED'`;
  const begin = `update ${results} set build = :mark where build = :key and state = 'FAILED' and stage <> ''`;
  return {
    any: `select 1 from ${results} where build = :mark and state = 'FAILED' limit 1`,
    begin,
    beginWithoutKillers: `${begin} and error not like ${CRASHED}`,
    end: `update ${results} set build = :key where build = :mark and state = 'FAILED'`,
    count: `update ${dialect.table("builds")} set failed = (${failed} and result.stage <> '') where key = :key`,
    countStages: `update ${stages} set failed = (${failed} and result.stage = ${stages}.stage) where build = :key`,
  };
}
