import type { BuildKey } from "../../../core/text/ids.ts";
import { ACCOUNT, type Account, type AccountRow, Books, hasChanged, isTooMuch, toAccount } from "../../work/books.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { Settings } from "../jobs/settings.ts";

/** The accounts of builds, read and written where they are. */
export class Accounts extends Books {
  readonly #settings: Settings;
  readonly #load: Statement;
  readonly #write: Statement;
  readonly #block: Statement;
  readonly #count: Statement;
  readonly #spend: Statement;

  constructor(db: Connection, settings: Settings) {
    super();
    this.#settings = settings;
    this.#load = db.prepare(`select ${ACCOUNT} from holdfast_builds where key = ?`);
    this.#write = db.prepare(
      `update holdfast_builds set spent_micros = ?, spent_tokens = ?, reserved_micros = ?, reserved_tokens = ?,
         open = open + ?, failed = failed + ?, listing = coalesce(?, listing)
       where key = ?`,
    );
    this.#block = db.prepare("update holdfast_builds set blocked = ?, refused_micros = ?, refused_tokens = ? where key = ?");
    this.#count = db.prepare(
      `update holdfast_build_stages set ran = ran + ?, cached = cached + ?, failed = failed + ?, passed = passed + ?, open = open + ?
       where build = ? and stage = ?`,
    );
    this.#spend = db.prepare(
      `insert into holdfast_stage_costs as old (pipeline, stage, attempts, micros, tokens) values (?, ?, ?, ?, ?)
       on conflict (pipeline, stage) do update set
         attempts = old.attempts + excluded.attempts,
         micros = min(old.micros + excluded.micros, ${Number.MAX_SAFE_INTEGER}),
         tokens = min(old.tokens + excluded.tokens, ${Number.MAX_SAFE_INTEGER})`,
    );
  }

  /** The last act of each operation, so that an undone one leaves nothing here. */
  write(tx: Tx): void {
    const { accounts } = this;
    if (accounts.length === 0) return;
    for (const account of accounts) {
      if (this.#writeOne(account)) tx.wrote();
      if (isTooMuch(account)) this.#settings.pause(tx, account.queue, true);
    }
    for (const { pipeline, stage, attempts, spent } of this.costsSince) {
      this.#spend.run(pipeline, stage, attempts, spent.micros, spent.tokens);
      tx.wrote();
    }
    this.forget();
  }

  #writeOne(account: Account): boolean {
    const { build, ledger, open, failed, listing, blocked, stages } = account;
    const { spent, reserved } = ledger;
    const changed = hasChanged(account);
    if (changed) this.#write.run(spent.micros, spent.tokens, reserved.micros, reserved.tokens, open, failed, listing, build);
    if (blocked !== null) this.#block.run(blocked.reason, blocked.refused.micros, blocked.refused.tokens, build);
    for (const [stage, { ran, cached, failed, passed, open }] of stages)
      this.#count.run(ran, cached, failed, passed, open, build, stage);
    return changed || blocked !== null || stages.size > 0;
  }

  protected override read(build: BuildKey): Account {
    const row = this.#load.row(build);
    if (row === undefined) throw new Error(`there is no build ${build}`);
    return toAccount(build, row as AccountRow);
  }
}
