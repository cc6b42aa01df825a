import type { Amount } from "../../../core/pipelines/cost.ts";
import type { Fate, LeaseRef } from "../../../core/jobs/lease.ts";
import type { Beginning } from "../../work.ts";
import { begin, type Start } from "../../work/starts.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { Settings } from "../jobs/settings.ts";
import type { Settle } from "../jobs/settle.ts";
import type { Accounts } from "./accounts.ts";
import type { ItemTable } from "./item-table.ts";

/** What is set aside for attempts before they start, and what they say that they have cost. */
export class Ledger {
  readonly #settings: Settings;
  readonly #settle: Settle;
  readonly #accounts: Accounts;
  readonly #table: ItemTable;
  readonly #reserve: Statement;
  readonly #save: Statement;

  constructor(db: Connection, parts: { settings: Settings; settle: Settle; accounts: Accounts; table: ItemTable }) {
    this.#settings = parts.settings;
    this.#settle = parts.settle;
    this.#accounts = parts.accounts;
    this.#table = parts.table;
    this.#reserve = db.prepare("update holdfast_work set estimate_micros = ?, estimate_tokens = ? where job = ?");
    this.#save = db.prepare(
      `update holdfast_work set cost_micros = ?, cost_tokens = ?
       where job = ? and exists (select 1 from holdfast_jobs where key = ? and fence = ? and state = 'running')`,
    );
  }

  begin(tx: Tx, starts: readonly (LeaseRef & { estimate: Amount })[]): Beginning[] {
    const answers = starts.map((): Beginning => "lost");
    const held = starts.flatMap(({ job, fence, estimate }, place) => {
      const item = this.#settle.fate({ job, fence }) === "held" ? this.#table.get(job) : undefined;
      return item === undefined ? [] : [{ place, item, estimate }];
    });
    for (const [build, group] of Map.groupBy(held, ({ item }) => item.build)) {
      const verdicts = this.#beginIn(tx, build, group);
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

  #beginIn(tx: Tx, build: Start["item"]["build"], starts: readonly Start[]): Beginning[] {
    const account = this.#accounts.of(build);
    const { answers, aside, stops } = begin(account, starts);
    for (const { item, wanted } of aside) this.#reserve.run(wanted.micros, wanted.tokens, item.job);
    if (aside.length > 0) tx.wrote();
    if (stops) this.#settings.pause(tx, account.queue, true);
    return answers;
  }
}
