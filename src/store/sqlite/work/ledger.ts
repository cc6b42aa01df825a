import { howMany, settle } from "../../../core/budget.ts";
import { type Amount, NOTHING } from "../../../core/cost.ts";
import type { BuildKey } from "../../../core/ids.ts";
import type { Fate, LeaseRef } from "../../../core/lease.ts";
import type { Beginning } from "../../work.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { Settings } from "../settings.ts";
import type { Settle } from "../settle.ts";
import type { Account, Accounts } from "./accounts.ts";
import type { Item, Items } from "./items.ts";

/** One of those that want to start. */
interface Start {
  place: number;
  item: Item;
  estimate: Amount;
}

/** What is set aside for attempts before they start, and what they say that they have cost. */
export class Ledger {
  readonly #settings: Settings;
  readonly #settle: Settle;
  readonly #accounts: Accounts;
  readonly #items: Items;
  readonly #reserve: Statement;
  readonly #save: Statement;

  constructor(db: Connection, parts: { settings: Settings; settle: Settle; accounts: Accounts; items: Items }) {
    this.#settings = parts.settings;
    this.#settle = parts.settle;
    this.#accounts = parts.accounts;
    this.#items = parts.items;
    this.#reserve = db.prepare("update holdfast_work set estimate_micros = ?, estimate_tokens = ? where job = ?");
    this.#save = db.prepare(
      `update holdfast_work set cost_micros = ?, cost_tokens = ?
       where job = ? and exists (select 1 from holdfast_jobs where key = ? and fence = ? and state = 'running')`,
    );
  }

  begin(tx: Tx, starts: readonly (LeaseRef & { estimate: Amount })[]): Beginning[] {
    const answers = starts.map((): Beginning => "lost");
    const held = new Map<BuildKey, Start[]>();
    for (const [place, { job, fence, estimate }] of starts.entries()) {
      const item = this.#settle.fate({ job, fence }) === "held" ? this.#items.get(job) : undefined;
      if (item === undefined) continue;
      const others = held.get(item.build);
      const start = { place, item, estimate };
      if (others === undefined) held.set(item.build, [start]);
      else others.push(start);
    }
    for (const [build, group] of held) {
      const verdicts = this.#beginIn(tx, this.#accounts.of(build), group);
      for (const [i, { place }] of group.entries()) answers[place] = verdicts[i] as Beginning;
    }
    this.#accounts.write(tx);
    return answers;
  }

  saveCosts(tx: Tx, reports: readonly (LeaseRef & { cost: Amount })[]): Fate[] {
    return reports.map(({ job, fence, cost }) => {
      if (this.#save.run(cost.micros, cost.tokens, job, job, fence) === 0) return this.#settle.fate({ job, fence });
      tx.wrote();
      return "held";
    });
  }

  #beginIn(tx: Tx, account: Account, starts: readonly Start[]): Beginning[] {
    if (account.state !== "ACTIVE") return starts.map(() => "pause");
    // Who asks twice, because the first answer was lost, has it set aside once.
    for (const { item } of starts) account.ledger = settle(account.ledger, item.estimate, NOTHING);
    const estimates = starts.map(({ estimate }) => estimate);
    const { start, ledger, next } = howMany(account.ledger, estimates);
    account.ledger = ledger;
    for (const [i, { item, estimate }] of starts.entries()) this.#setAside(tx, item, i < start ? estimate : NOTHING);
    if (next.kind === "pause") {
      account.blocked = { reason: next.reason, refused: estimates[start] as Amount };
      this.#settings.pause(tx, account.queue, true);
    }
    return starts.map((_, i) => (i < start ? "start" : next.kind));
  }

  #setAside(tx: Tx, { job, estimate }: Item, wanted: Amount): void {
    if (estimate.micros === wanted.micros && estimate.tokens === wanted.tokens) return;
    this.#reserve.run(wanted.micros, wanted.tokens, job);
    tx.wrote();
  }
}
