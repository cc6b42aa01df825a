import type { LimitRule } from "../../../core/limits/limit.ts";
import {
  type Declaration,
  declared,
  NOTHING_SET,
  type SettingsChange,
  type SettingsView,
  Words,
} from "../../../core/limits/settings.ts";
import { type QueueRow, type RuleRow, toSettings } from "../../queues.ts";
import type { Connection, Statement, Value } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

/**
 * What is set for queues, and which limits there are. Read again only when the database's count of such changes has
 * moved, which every transaction sees anyway: where nobody sets anything, it costs nothing.
 */
export class Settings {
  readonly #allQueues: Statement;
  readonly #allRules: Statement;
  readonly #counted: Statement;
  readonly #count: Statement;
  readonly #pause: Statement;
  readonly #set: Statement;
  readonly #addRule: Statement;
  readonly #setRule: Statement;
  readonly #dropRule: Statement;
  readonly #wakeCounters: Statement;
  readonly #words: Words;
  #seen = -1;
  #view = NOTHING_SET;

  constructor(db: Connection, options: { speaks: boolean }) {
    this.#words = new Words(options);
    this.#allQueues = db.prepare("select name, paused, events, keep from holdfast_queues");
    this.#allRules = db.prepare("select id, queue, job, position, keyed, concurrency, starts, per from holdfast_limits");
    this.#counted = db.prepare("select settings from holdfast_counter where id = 1");
    this.#count = db.prepare("update holdfast_counter set settings = settings + 1 where id = 1");
    this.#pause = db.prepare(
      `insert into holdfast_queues (name, paused) values (:name, :paused)
       on conflict (name) do update set paused = excluded.paused where paused <> excluded.paused`,
    );
    // Jobs that ended before anything was said about keeping them are looked up from the first on.
    this.#set = db.prepare(
      `insert into holdfast_queues (name, events, keep, backfill) values (:name, :events, :keep, :backfill)
       on conflict (name) do update set events = excluded.events, keep = excluded.keep, backfill = excluded.backfill`,
    );
    this.#addRule = db.prepare(
      `insert into holdfast_limits (queue, job, position, keyed, concurrency, starts, per)
       values (:queue, :job, :position, :keyed, :concurrency, :starts, :per) returning id`,
    );
    this.#setRule = db.prepare(
      `update holdfast_limits set keyed = :keyed, concurrency = :concurrency, starts = :starts, per = :per where id = :id`,
    );
    this.#dropRule = db.prepare("update holdfast_limits set concurrency = null, starts = null, per = null where id = ?");
    this.#wakeCounters = db.prepare("update holdfast_counters set due_at = 0 where rule = ? and parked > 0");
  }

  /** As it was at the last look, in this transaction or before. */
  get view(): SettingsView {
    return this.#view;
  }

  get limited(): boolean {
    return this.#view.limited;
  }

  get longest(): number {
    return this.#view.longest;
  }

  rule(id: number): LimitRule {
    return this.#view.rule(id);
  }

  /** Called first by whoever relies on it; `settings` is the database's count of changes. */
  at(settings: number): SettingsView {
    if (settings !== this.#seen) this.#reload(settings);
    return this.#view;
  }

  /** Outside of a transaction. */
  now(): SettingsView {
    return this.at((this.#counted.row() as [number])[0]);
  }

  /** After an undone transaction. */
  forget(): void {
    this.#seen = -1;
    this.#words.forget();
  }

  /** False when it is so already. */
  pause(tx: Tx, name: string, paused: boolean): boolean {
    if (this.at(tx.settings).isPaused(name) === paused) return false;
    this.#pause.runNamed({ name, paused: paused ? 1 : 0 });
    this.#changed(tx);
    return true;
  }

  /** The numbers of the declared limits, in their order. */
  declare(tx: Tx, declaration: Declaration): readonly number[] {
    const heard = this.#words.heard(declaration);
    if (heard !== undefined) return heard;
    const { rules, changes } = declared(this.at(tx.settings), declaration, this.#words.isOld(declaration));
    for (const change of changes) this.#make(change, rules);
    if (changes.length > 0) {
      this.#changed(tx);
      // More of what waits there may start now.
      tx.ready(declaration.queue);
    }
    this.#words.say(declaration, rules);
    return rules;
  }

  /** Whether this process has said it, for good. */
  isSaid(declaration: Declaration): boolean {
    return this.#words.isSaid(declaration);
  }

  /** After a commit. */
  committed(): void {
    this.#words.committed();
  }

  #make(change: SettingsChange, rules: number[]): void {
    switch (change.kind) {
      case "set-queue": {
        const { name, events, keep } = change;
        const kept = keep === null ? { keep: null, backfill: null } : { keep: JSON.stringify(keep), backfill: 0 };
        this.#set.runNamed({ name, events: events ? 1 : 0, ...kept });
        return;
      }
      case "add-rule": {
        const { queue, job, rule } = change;
        const added = this.#addRule.get<{ id: number }>({ queue, job, position: rule.position, ...valuesOf(rule) });
        rules[change.at] = (added as { id: number }).id;
        return;
      }
      case "set-rule":
        this.#setRule.runNamed({ id: change.id, ...valuesOf(change.rule) });
        this.#wakeCounters.run(change.id);
        return;
      case "drop-rule":
        this.#dropRule.run(change.id);
        this.#wakeCounters.run(change.id);
    }
  }

  #changed(tx: Tx): void {
    this.#count.run();
    this.now();
    tx.wrote();
  }

  #reload(settings: number): void {
    this.#view = toSettings(this.#allQueues.all<QueueRow>(), this.#allRules.all<RuleRow>());
    this.#seen = settings;
  }
}

function valuesOf({ keyed, concurrency, rate }: LimitRule): Record<string, Value> {
  return { keyed: keyed ? 1 : 0, concurrency, starts: rate?.starts ?? null, per: rate?.per ?? null };
}
