import { type Budget, type CostHistory, type Ledger, settle } from "../../../core/budget.ts";
import type { BuildState } from "../../../core/build.ts";
import { type Amount, plus } from "../../../core/cost.ts";
import type { BuildKey } from "../../../core/ids.ts";
import type { BuildRow, StageCounts } from "../../builds.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { Settings } from "../settings.ts";

type Count = Exclude<keyof StageCounts, "stage">;
type Counts = Record<Count, number>;

/** A build as far as its work items change it: what is there, and what is added to it by the end of the operation. */
export interface Account {
  readonly build: BuildKey;
  readonly pipeline: string;
  readonly queue: string;
  readonly state: BuildState;
  /** As it was read. */
  readonly was: Ledger;
  ledger: Ledger;
  open: number;
  failed: number;
  /** So many more may fail before nothing new is started. */
  readonly mayFail: number;
  listing: BuildRow["listing"] | null;
  blocked: { reason: NonNullable<BuildRow["blocked"]>; refused: Amount } | null;
  readonly stages: Map<string, Counts>;
}

/** Counts and money of builds. They are summed up and written once for each operation: a settled batch is a few rows here. */
export class Accounts {
  readonly #settings: Settings;
  readonly #load: Statement;
  readonly #write: Statement;
  readonly #block: Statement;
  readonly #count: Statement;
  readonly #history: Statement;
  readonly #histories: Statement;
  readonly #spend: Statement;
  readonly #accounts = new Map<BuildKey, Account>();
  readonly #costs = new Map<string, { pipeline: string; stage: string } & CostHistory>();

  constructor(db: Connection, settings: Settings) {
    this.#settings = settings;
    this.#load = db.prepare(
      `select pipeline, queue, state, failed, max_failures, budget_micros, budget_tokens, spent_micros, spent_tokens,
         reserved_micros, reserved_tokens
       from holdfast_builds where key = ?`,
    );
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
    this.#history = db.prepare("select attempts, micros, tokens from holdfast_stage_costs where pipeline = ? and stage = ?");
    this.#histories = db.prepare("select stage, attempts, micros, tokens from holdfast_stage_costs where pipeline = ?");
    this.#spend = db.prepare(
      `insert into holdfast_stage_costs (pipeline, stage, attempts, micros, tokens) values (?, ?, ?, ?, ?)
       on conflict (pipeline, stage) do update set
         attempts = excluded.attempts, micros = excluded.micros, tokens = excluded.tokens`,
    );
  }

  of(build: BuildKey): Account {
    let account = this.#accounts.get(build);
    if (account === undefined) this.#accounts.set(build, (account = this.#read(build)));
    return account;
  }

  count(account: Account, stage: string, what: Count, n: number): void {
    let counts = account.stages.get(stage);
    if (counts === undefined) account.stages.set(stage, (counts = { ran: 0, cached: 0, failed: 0, passed: 0, open: 0 }));
    counts[what] += n;
  }

  /** Work items of a stage that there are more, or less, of. */
  open(account: Account, stage: string, n: number): void {
    account.open += n;
    this.count(account, stage, "open", n);
  }

  failed(account: Account, stage: string, n: number): void {
    account.failed += n;
    this.count(account, stage, "failed", n);
  }

  /** What was set aside for an attempt is free, and what it is charged is spent. */
  settle(account: Account, reserved: Amount, charge: Amount): void {
    account.ledger = settle(account.ledger, reserved, charge);
  }

  /** An attempt of a stage has cost this. */
  spend({ pipeline }: Account, stage: string, charge: Amount): void {
    const key = `${pipeline}\n${stage}`;
    const known = this.#costs.get(key) ?? { pipeline, stage, ...this.#historyOf(pipeline, stage) };
    this.#costs.set(key, { pipeline, stage, attempts: known.attempts + 1, spent: plus(known.spent, charge) });
  }

  costs(pipeline: string): Record<string, CostHistory> {
    const rows = this.#histories.rows(pipeline) as [string, number, number, number][];
    return Object.fromEntries(rows.map(([stage, ...history]) => [stage, toHistory(history)]));
  }

  /** The last act of each operation, so that an undone one leaves nothing here. */
  write(tx: Tx): void {
    if (this.#accounts.size === 0) return;
    for (const account of this.#accounts.values()) {
      if (this.#writeOne(account)) tx.wrote();
      if (account.failed > account.mayFail) this.#settings.pause(tx, account.queue, true);
    }
    for (const { pipeline, stage, attempts, spent } of this.#costs.values()) {
      this.#spend.run(pipeline, stage, attempts, spent.micros, spent.tokens);
      tx.wrote();
    }
    this.forget();
  }

  /** After an undone transaction. */
  forget(): void {
    this.#accounts.clear();
    this.#costs.clear();
  }

  #writeOne(account: Account): boolean {
    const { build, was, ledger, open, failed, listing, blocked, stages } = account;
    const { spent, reserved } = ledger;
    const same = isSame(was.spent, spent) && isSame(was.reserved, reserved);
    const changed = !same || open !== 0 || failed !== 0 || listing !== null;
    if (changed) this.#write.run(spent.micros, spent.tokens, reserved.micros, reserved.tokens, open, failed, listing, build);
    if (blocked !== null) this.#block.run(blocked.reason, blocked.refused.micros, blocked.refused.tokens, build);
    for (const [stage, { ran, cached, failed, passed, open }] of stages)
      this.#count.run(ran, cached, failed, passed, open, build, stage);
    return changed || blocked !== null || stages.size > 0;
  }

  #read(build: BuildKey): Account {
    const row = this.#load.row(build);
    if (row === undefined) throw new Error(`there is no build ${build}`);
    const [pipeline, queue, state, failed, most, ...money] = row as [string, string, BuildState, number, ...(number | null)[]];
    const ledger = toLedger(money as Money);
    return {
      build,
      pipeline,
      queue,
      state,
      was: ledger,
      ledger,
      open: 0,
      failed: 0,
      mayFail: most === null ? Number.POSITIVE_INFINITY : (most as number) - failed,
      listing: null,
      blocked: null,
      stages: new Map(),
    };
  }

  #historyOf(pipeline: string, stage: string): CostHistory {
    return toHistory((this.#history.row(pipeline, stage) ?? [0, 0, 0]) as [number, number, number]);
  }
}

type Money = [Budget["micros"], Budget["tokens"], number, number, number, number];

function toLedger([budgetMicros, budgetTokens, spentMicros, spentTokens, reservedMicros, reservedTokens]: Money): Ledger {
  return {
    budget: { micros: budgetMicros, tokens: budgetTokens },
    spent: { micros: spentMicros, tokens: spentTokens },
    reserved: { micros: reservedMicros, tokens: reservedTokens },
  };
}

function toHistory([attempts, micros, tokens]: [number, number, number]): CostHistory {
  return { attempts, spent: { micros, tokens } };
}

function isSame(a: Amount, b: Amount): boolean {
  return a.micros === b.micros && a.tokens === b.tokens;
}
