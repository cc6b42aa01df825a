import {
  type Declaration,
  declarationChanges,
  NO_SETTINGS,
  type SettingsView,
  DeclarationCache,
} from "../../core/limits/settings.ts";
import { limitsText } from "../../core/limits/limit-gate.ts";
import { type QueueRow, type RuleRow, toSettings } from "../queues.ts";
import type { NewJob } from "../store.ts";
import type { LimitCache } from "./limits/limits.ts";
import type { Rows } from "./connection/driver.ts";
import { runAsync } from "../sql/script.ts";
import { SettingsRows } from "../sql/queues.ts";
import { dialectOf, named } from "./scripts.ts";
import type { Tx } from "./transactions/transaction.ts";
import type { OrderedLock, QueueLocks } from "./transactions/mutexes.ts";

type SettingsParts = { canDeclare: boolean; locks: QueueLocks; limitCache: LimitCache; counter: OrderedLock };

/**
 * Settings of queues, and limits. They are read again only when the database's count of their changes has moved, which every
 * transaction compares before it commits.
 */
export class Settings {
  /** As they were when they were loaded last. */
  view: SettingsView = NO_SETTINGS;
  readonly #sql: Record<"counted" | "count" | "queues" | "rules", string>;
  readonly #rows: SettingsRows;
  readonly #declarations: DeclarationCache;
  readonly #parts: SettingsParts;
  #seen = -1;
  /** Queues that have rules, also rules that limit nothing any more: jobs may still have them in their rows. */
  #ruled = new Set<string>();

  constructor(s: string, parts: SettingsParts) {
    this.#declarations = new DeclarationCache(parts);
    this.#parts = parts;
    this.#rows = new SettingsRows(dialectOf(s));
    this.#sql = {
      counted: `select settings from ${s}.counter where id = 1`,
      count: `update ${s}.counter set settings = settings + 1 where id = 1 returning settings`,
      queues: `select name, paused, events, keep, attempts from ${s}.queues`,
      rules: `select id, queue, job, position, keyed, concurrency, starts, per from ${s}.limits`,
    };
  }

  get isKnown(): boolean {
    return this.#seen !== -1;
  }

  limits(queue: string): boolean {
    return this.#ruled.has(queue);
  }

  forget(): void {
    this.#seen = -1;
    this.#declarations.forget();
  }

  async at(tx: Tx): Promise<SettingsView> {
    if (!this.isKnown) await this.load(tx.rows);
    tx.assume("settings", this.#seen);
    return this.view;
  }

  assumed(tx: Tx): SettingsView {
    tx.assume("settings", this.#seen);
    return this.view;
  }

  /** For a transaction that waited for others, which may have changed settings: its decisions need not be repeated. */
  async refresh(tx: Tx): Promise<void> {
    const [[counted]] = (await tx.rows<[number]>(this.#sql.counted)) as [[number]];
    if (counted !== this.#seen) await this.load(tx.rows);
  }

  async load(rows: Rows): Promise<void> {
    const [[counted]] = (await rows<[number]>(this.#sql.counted)) as [[number]];
    const queues = named<QueueRow>(await rows(this.#sql.queues));
    const rules = named<RuleRow>(await rows(this.#sql.rules));
    this.view = toSettings(queues, rules);
    this.#ruled = new Set(rules.map(({ queue }) => queue));
    this.#seen = counted;
  }

  async pause(tx: Tx, name: string, paused: boolean): Promise<boolean> {
    const view = await this.at(tx);
    if (view.isPaused(name) === paused) return false;
    // The lock first, so that two processes that pause several queues do not deadlock.
    await this.#count(tx);
    await runAsync(this.#rows.pause(tx, name, paused));
    await this.load(tx.rows);
    tx.wrote();
    return true;
  }

  async declare(tx: Tx, declaration: Declaration): Promise<readonly number[]> {
    const known = this.#declarations.rulesOf(declaration);
    if (known !== undefined) return known;
    const { rules, changes } = declarationChanges(await this.at(tx), declaration, this.#declarations.isOld(declaration));
    if (changes.length > 0) {
      const wakes = changes.some(({ kind }) => kind === "set-rule" || kind === "drop-rule");
      // Under this lock no job is parked by the old limits after the wake-up of parked jobs.
      if (wakes) await this.#parts.locks.take(tx, [declaration.queue]);
      await this.#count(tx);
      await runAsync(this.#rows.write(tx, changes, rules));
      if (wakes) await this.#parts.limitCache.changed(tx, declaration.queue);
      await this.load(tx.rows);
      tx.ready(declaration.queue);
      tx.wrote();
    }
    this.#declarations.add(declaration, rules);
    tx.onUndo(() => this.#declarations.forget());
    tx.onCommit(() => this.#declarations.committed());
    return rules;
  }

  /** Whether everything that the job's definition declares is stored, and it has no limits. */
  isSilent({ declares }: NewJob): boolean {
    return (
      declares === undefined || (this.#declarations.isDeclared(declares) && this.#declarations.rulesOf(declares) !== undefined)
    );
  }

  isDeclared(declaration: Declaration): boolean {
    return this.#declarations.isDeclared(declaration);
  }

  /** The `limits` columns of these jobs; null if none has any. Stores declarations that are new. */
  async limitsOf(tx: Tx, jobs: readonly NewJob[]): Promise<(string | null)[] | null> {
    const own = new Map<Declaration, readonly number[]>();
    for (const { declares } of jobs) {
      if (declares !== undefined && !own.has(declares)) own.set(declares, await this.declare(tx, declares));
    }
    if (!this.view.hasLimits) return null;
    const texts = jobs.map(({ queue, declares, limitKeys }) => {
      const rules = this.view.rulesFor(queue, declares === undefined ? undefined : own.get(declares));
      return rules.length === 0 ? null : limitsText(rules, limitKeys ?? []);
    });
    return texts.every((text) => text === null) ? null : texts;
  }

  async #count(tx: Tx): Promise<void> {
    await this.#parts.counter.take(tx);
    const [[count]] = (await tx.rows<[number]>(this.#sql.count)) as [[number]];
    tx.assume("settings", count - 1, count);
    tx.onUndo(() => this.forget());
    this.#seen = count;
  }
}
