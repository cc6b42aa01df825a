import type { LimitRule } from "../../core/limits/limit.ts";
import type { SettingsChange } from "../../core/limits/settings.ts";
import type { Dialect, Params, Script, Tx } from "./script.ts";

/** Writes settings of queues, and limits. Each database reads them, and counts their changes, in its own way. */
export class SettingsRows {
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect) {
    this.#sql = statements(dialect);
  }

  pause(tx: Tx, name: string, paused: boolean): Script<boolean> {
    return tx.run(this.#sql.pause, { name, paused });
  }

  /** Writes the changes of a declaration; `rules` gets the ids of new limits. */
  *write(tx: Tx, changes: readonly SettingsChange[], rules: number[]): Script<void> {
    for (const change of changes) {
      switch (change.kind) {
        case "set-queue": {
          const { name, events, keep } = change;
          const kept = keep === null ? { keep: null, backfill: null } : { keep: JSON.stringify(keep), backfill: 0 };
          yield* tx.run(this.#sql.set, { name, events, ...kept });
          break;
        }
        case "add-rule": {
          const { queue, job, rule } = change;
          const row = { queue, job, position: rule.position, ...valuesOf(rule) };
          const [added] = yield* tx.returning<{ id: number }>(this.#sql.addRule, row);
          rules[change.at] = (added as { id: number }).id;
          break;
        }
        case "set-rule":
          yield* tx.run(this.#sql.setRule, { id: change.id, ...valuesOf(change.rule) });
          yield* tx.run(this.#sql.wakeCounters, { id: change.id });
          break;
        case "drop-rule":
          yield* tx.run(this.#sql.dropRule, { id: change.id });
          yield* tx.run(this.#sql.wakeCounters, { id: change.id });
      }
    }
  }
}

function valuesOf({ keyed, concurrency, rate }: LimitRule): Params {
  return { keyed, concurrency, starts: rate?.starts ?? null, per: rate?.per ?? null };
}

function statements({ table }: Dialect) {
  const [queues, limits] = [table("queues"), table("limits")];
  return {
    pause: `
      insert into ${queues} as old (name, paused) values (:name, :paused)
      on conflict (name) do update set paused = excluded.paused where old.paused <> excluded.paused`,
    // A new `keep` also applies to jobs that ended before: they are listed from the first key on.
    set: `
      insert into ${queues} (name, events, keep, backfill) values (:name, :events, :keep, :backfill)
      on conflict (name) do update set events = excluded.events, keep = excluded.keep, backfill = excluded.backfill`,
    addRule: `
      insert into ${limits} (queue, job, position, keyed, concurrency, starts, per)
      values (:queue, :job, :position, :keyed, :concurrency, :starts, :per) returning id`,
    setRule: `update ${limits} set keyed = :keyed, concurrency = :concurrency, starts = :starts, per = :per where id = :id`,
    dropRule: `update ${limits} set concurrency = null, starts = null, per = null where id = :id`,
    wakeCounters: `update ${table("counters")} set due_at = 0 where rule = :id and parked > 0`,
  };
}
