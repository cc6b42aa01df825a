import type { Amount } from "../../../core/pipelines/cost.ts";
import type { Fate, LeaseRef } from "../../../core/jobs/lease.ts";
import type { Beginning } from "../../work.ts";
import { begin, type Begun } from "../../work/starts.ts";
import type { Limits } from "../limits/limits.ts";
import type { Settings } from "../settings.ts";
import type { Settle } from "../settle/settle.ts";
import type { Tx } from "../transactions/transaction.ts";
import type { Sheets } from "./sheets.ts";

/** What is set aside for attempts before they start, and what they say that they have cost. */
export class Ledger {
  readonly #settings: Settings;
  readonly #limits: Limits;
  readonly #settle: Settle;
  readonly #sheets: Sheets;

  constructor(parts: { settings: Settings; limits: Limits; settle: Settle; sheets: Sheets }) {
    this.#settings = parts.settings;
    this.#limits = parts.limits;
    this.#settle = parts.settle;
    this.#sheets = parts.sheets;
  }

  async begin(tx: Tx, starts: readonly (LeaseRef & { estimate: Amount })[]): Promise<Beginning[]> {
    const answers = starts.map((): Beginning => "lost");
    if (starts.length === 0) return answers;
    await this.#settings.at(tx);
    const jobs = starts.map(({ job }) => job);
    const [, books, held] = await Promise.all([
      this.#limits.lock(tx, this.#limits.claimedIn(jobs)),
      this.#sheets.accounts.load(tx, [], jobs),
      this.#sheets.items.held(tx, starts),
    ]);
    const begun: Begun[] = [];
    const stopped: string[] = [];
    for (const [build, group] of Map.groupBy(held, ({ item }) => item.build)) {
      const account = books.of(build);
      const one = begin(
        account,
        group.map(({ place, item }) => ({ item, estimate: (starts[place] as { estimate: Amount }).estimate })),
      );
      begun.push(one);
      if (one.stops) stopped.push(account.queue);
      for (const [i, { place }] of group.entries()) answers[place] = one.answers[i] as Beginning;
    }
    await Promise.all([
      this.#sheets.items.reserve(
        tx,
        begun.flatMap(({ aside }) => aside),
      ),
      this.#sheets.accounts.write(tx, books),
    ]);
    for (const queue of stopped) await this.#settings.pause(tx, queue, true);
    return answers;
  }

  async saveCosts(tx: Tx, reports: readonly (LeaseRef & { cost: Amount })[]): Promise<Fate[]> {
    if (reports.length === 0) return [];
    const saved = await this.#sheets.items.save(tx, reports);
    if (saved.size === reports.length) return reports.map(() => "held");
    return this.#settle.fates(tx.rows, reports);
  }
}
