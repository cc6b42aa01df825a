import type { FinishedState } from "../../core/jobs/job.ts";
import type { LimitRule } from "../../core/limits/limit.ts";
import type { Keep } from "../../core/jobs/claiming.ts";
import {
  type Declaration,
  declarationChanges,
  NO_SETTINGS,
  type SettingsChange,
  type SettingsView,
  DeclarationCache,
} from "../../core/limits/settings.ts";
import { limitsText } from "../../core/limits/limit-gate.ts";
import { type QueueRow, type RuleRow, toSettings } from "../queues.ts";
import type { NewJob } from "../store.ts";
import type { LimitCache } from "./limits/limits.ts";
import type { Rows, Value } from "./connection/driver.ts";
import type { Tx } from "./transactions/transaction.ts";
import type { OrderedLock, QueueLocks } from "./transactions/mutexes.ts";

type QueueValues = [QueueRow["name"], boolean, boolean, QueueRow["keep"]];
type RuleValues = [number, string, string, number, boolean, number | null, number | null, number | null];

/**
 * What is set for queues, and which limits there are. Read again only when the database's count of such changes has
 * moved, which every transaction looks at before it commits.
 */
export class Settings {
  readonly #sql: Record<
    "counted" | "count" | "queues" | "rules" | "pause" | "set" | "addRule" | "setRule" | "wakeOrderedLocks",
    string
  >;
  readonly #declarations: DeclarationCache;
  readonly #locks: QueueLocks;
  readonly #cache: LimitCache;
  readonly #counter: OrderedLock;
  #seen = -1;
  #view: SettingsView = NO_SETTINGS;
  /** Queues that have rules, also such as limit nothing any more: their jobs may still have them in their rows. */
  #ruled = new Set<string>();

  constructor(s: string, options: { canDeclare: boolean; locks: QueueLocks; limitCache: LimitCache; counter: OrderedLock }) {
    this.#declarations = new DeclarationCache(options);
    this.#locks = options.locks;
    this.#cache = options.limitCache;
    this.#counter = options.counter;
    this.#sql = {
      counted: `select settings from ${s}.counter where id = 1`,
      count: `update ${s}.counter set settings = settings + 1 where id = 1 returning settings`,
      queues: `select name, paused, events, keep from ${s}.queues`,
      rules: `select id, queue, job, position, keyed, concurrency, starts, per from ${s}.limits`,
      pause: `
        insert into ${s}.queues as old (name, paused) values ($1, $2)
        on conflict (name) do update set paused = excluded.paused where old.paused <> excluded.paused returning 1`,
      // Jobs that ended before anything was said about keeping them are looked up from the first on.
      set: `
        insert into ${s}.queues (name, events, keep, backfill) values ($1, $2, $3, $4)
        on conflict (name) do update set events = excluded.events, keep = excluded.keep, backfill = excluded.backfill`,
      addRule: `
        insert into ${s}.limits (queue, job, position, keyed, concurrency, starts, per)
        values ($1, $2, $3, $4, $5, $6, $7) returning id`,
      setRule: `update ${s}.limits set keyed = $2, concurrency = $3, starts = $4, per = $5 where id = $1`,
      wakeOrderedLocks: `update ${s}.counters set due_at = 0 where rule = $1 and parked > 0`,
    };
  }

  /** As it was at the last look. */
  get view(): SettingsView {
    return this.#view;
  }

  /** False: nothing can be told before they are read. */
  get isKnown(): boolean {
    return this.#seen !== -1;
  }

  get limited(): boolean {
    return this.#view.hasLimits;
  }

  /** Whether jobs of this queue may have limits. */
  limits(queue: string): boolean {
    return this.#ruled.has(queue);
  }

  isPaused(queue: string): boolean {
    return this.#view.isPaused(queue);
  }

  tells(queue: string): boolean {
    return this.#view.recordsEvents(queue);
  }

  keep(queue: string, state: FinishedState): Keep | undefined {
    return this.#view.keep(queue, state);
  }

  /** After an undone transaction, or when others have changed something. */
  forget(): void {
    this.#seen = -1;
    this.#declarations.forget();
  }

  /** Called first; everything that the settings then say holds for this transaction. */
  async at(tx: Tx): Promise<SettingsView> {
    if (!this.isKnown) await this.load(tx.rows);
    tx.assume("settings", this.#seen);
    return this.#view;
  }

  /** What is known, for a transaction that does not wait. */
  assumed(tx: Tx): SettingsView {
    tx.assume("settings", this.#seen);
    return this.#view;
  }

  /** After others were waited for, who may have changed them: what is decided from here on need not be decided again. */
  async refresh(tx: Tx): Promise<void> {
    const [[counted]] = (await tx.rows<[number]>(this.#sql.counted)) as [[number]];
    if (counted !== this.#seen) await this.load(tx.rows);
  }

  async load(rows: Rows): Promise<void> {
    const [[counted]] = (await rows<[number]>(this.#sql.counted)) as [[number]];
    const queues = await rows<QueueValues>(this.#sql.queues);
    const rules = await rows<RuleValues>(this.#sql.rules);
    this.#view = toSettings(
      queues.map(([name, paused, events, keep]): QueueRow => ({ name, paused, events, keep })),
      rules.map(([id, queue, job, position, keyed, concurrency, starts, per]): RuleRow => {
        return { id, queue, job, position, keyed, concurrency, starts, per };
      }),
    );
    this.#ruled = new Set(rules.map(([, queue]) => queue));
    this.#seen = counted;
  }

  /** False when it is so already. */
  async pause(tx: Tx, name: string, paused: boolean): Promise<boolean> {
    const view = await this.at(tx);
    if (view.isPaused(name) === paused) return false;
    // First, so that two who pause several do not wait for each other.
    await this.#count(tx);
    await tx.rows(this.#sql.pause, name, paused);
    await this.load(tx.rows);
    tx.wrote();
    return true;
  }

  /** The numbers of the declared limits, in their order. */
  async declare(tx: Tx, declaration: Declaration): Promise<readonly number[]> {
    const known = this.#declarations.rulesOf(declaration);
    if (known !== undefined) return known;
    const { rules, changes } = declarationChanges(await this.at(tx), declaration, this.#declarations.isOld(declaration));
    if (changes.length > 0) {
      const wakes = changes.some(({ kind }) => kind === "set-rule" || kind === "drop-rule");
      // No job is parked by the old limits unseen by the wake-up of parked jobs.
      if (wakes) await this.#locks.take(tx, [declaration.queue]);
      // First, so that two who declare at once do it one after the other.
      await this.#count(tx);
      for (const change of changes) await this.#make(tx, change, rules);
      if (wakes) await this.#cache.changed(tx, declaration.queue);
      await this.load(tx.rows);
      // More of what waits there may start now.
      tx.ready(declaration.queue);
      tx.wrote();
    }
    this.#declarations.add(declaration, rules);
    tx.onUndo(() => this.#declarations.forget());
    tx.onCommit(() => this.#declarations.committed());
    return rules;
  }

  /** Whether nothing that the job's definition declares has to be written down any more, and it has no limits. */
  isSilent({ declares }: NewJob): boolean {
    return (
      declares === undefined || (this.#declarations.isDeclared(declares) && this.#declarations.rulesOf(declares) !== undefined)
    );
  }

  /** Whether this process has said it, for good. */
  isDeclared(declaration: Declaration): boolean {
    return this.#declarations.isDeclared(declaration);
  }

  /** What stands in the rows of these jobs about their limits; null when none has any. First words are written down. */
  async limitsOf(tx: Tx, jobs: readonly NewJob[]): Promise<(string | null)[] | null> {
    const own = new Map<Declaration, readonly number[]>();
    for (const { declares } of jobs) {
      if (declares !== undefined && !own.has(declares)) own.set(declares, await this.declare(tx, declares));
    }
    if (!this.#view.hasLimits) return null;
    const texts = jobs.map(({ queue, declares, limitKeys }) => {
      const rules = this.#view.rulesFor(queue, declares === undefined ? undefined : own.get(declares));
      return rules.length === 0 ? null : limitsText(rules, limitKeys ?? []);
    });
    return texts.every((text) => text === null) ? null : texts;
  }

  async #make(tx: Tx, change: SettingsChange, rules: number[]): Promise<void> {
    switch (change.kind) {
      case "set-queue": {
        const { name, events, keep } = change;
        await tx.rows(this.#sql.set, name, events, keep && JSON.stringify(keep), keep === null ? null : 0);
        return;
      }
      case "add-rule": {
        const { queue, job, rule } = change;
        const added = await tx.rows<[number]>(this.#sql.addRule, queue, job, rule.position, ...valuesOf(rule));
        rules[change.at] = (added as [[number]])[0][0];
        return;
      }
      case "set-rule":
        await tx.rows(this.#sql.setRule, change.id, ...valuesOf(change.rule));
        await tx.rows(this.#sql.wakeOrderedLocks, change.id);
        return;
      case "drop-rule":
        await tx.rows(this.#sql.setRule, change.id, this.#view.rule(change.id).keyed, null, null, null);
        await tx.rows(this.#sql.wakeOrderedLocks, change.id);
    }
  }

  /** No other transaction can change settings from here to the commit. */
  async #count(tx: Tx): Promise<void> {
    await this.#counter.take(tx);
    const [[count]] = (await tx.rows<[number]>(this.#sql.count)) as [[number]];
    tx.moved("settings", count - 1, count);
    tx.onUndo(() => this.forget());
    this.#seen = count;
  }
}

function valuesOf({ keyed, concurrency, rate }: LimitRule): Value[] {
  return [keyed, concurrency, rate?.starts ?? null, rate?.per ?? null];
}
