import { type Budget, type CostHistory, type Ledger, settle } from "../../core/pipelines/budget.ts";
import type { BuildState } from "../../core/pipelines/build.ts";
import { type Amount, NOTHING, plus } from "../../core/pipelines/cost.ts";
import type { BuildKey } from "../../core/text/ids.ts";
import type { BuildRow, StageCounts } from "../builds.ts";

type Count = Exclude<keyof StageCounts, "stage">;
export type Counts = Record<Count, number>;

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

/** What attempts of a stage have cost since. */
export interface StageCost extends CostHistory {
  pipeline: string;
  stage: string;
}

/** Counts and money of builds. They are summed up and written once for each operation: a settled batch is a few rows here. */
export abstract class Books {
  readonly #accounts = new Map<BuildKey, Account>();
  readonly #costs = new Map<string, StageCost>();

  protected abstract read(build: BuildKey): Account;

  of(build: BuildKey): Account {
    let account = this.#accounts.get(build);
    if (account === undefined) this.#accounts.set(build, (account = this.read(build)));
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
    const { attempts, spent } = this.#costs.get(key) ?? { attempts: 0, spent: NOTHING };
    this.#costs.set(key, { pipeline, stage, attempts: attempts + 1, spent: plus(spent, charge) });
  }

  get accounts(): Account[] {
    return [...this.#accounts.values()];
  }

  get costsSince(): StageCost[] {
    return [...this.#costs.values()];
  }

  /** After they were written, or undone. */
  forget(): void {
    this.#accounts.clear();
    this.#costs.clear();
  }
}

/** What is read of a build for its account, in this order. */
export const ACCOUNT = `pipeline, queue, state, failed, max_failures, budget_micros, budget_tokens, spent_micros, spent_tokens,
  reserved_micros, reserved_tokens`;
export type AccountRow = [string, string, BuildState, failed: number, most: number | null, ...Money];

type Money = [Budget["micros"], Budget["tokens"], number, number, number, number];

export function toAccount(build: BuildKey, [pipeline, queue, state, failed, most, ...money]: AccountRow): Account {
  const ledger = toLedger(money);
  return {
    build,
    pipeline,
    queue,
    state,
    was: ledger,
    ledger,
    open: 0,
    failed: 0,
    mayFail: most === null ? Number.POSITIVE_INFINITY : most - failed,
    listing: null,
    blocked: null,
    stages: new Map(),
  };
}

/** Whether there is anything of it to write into the build's row, beside what blocks it. */
export function hasChanged({ was, ledger, open, failed, listing }: Account): boolean {
  return (
    !isSame(was.spent, ledger.spent) || !isSame(was.reserved, ledger.reserved) || open !== 0 || failed !== 0 || listing !== null
  );
}

/** So much has failed that nothing new is started: its queue rests. Of a build that has ended it is another's by now. */
export function isTooMuch({ state, failed, mayFail }: Account): boolean {
  return state === "ACTIVE" && failed > mayFail;
}

export function toHistory([attempts, micros, tokens]: [number, number, number]): CostHistory {
  return { attempts, spent: { micros, tokens } };
}

export function isSame(a: Amount, b: Amount): boolean {
  return a.micros === b.micros && a.tokens === b.tokens;
}

function toLedger([budgetMicros, budgetTokens, spentMicros, spentTokens, reservedMicros, reservedTokens]: Money): Ledger {
  return {
    budget: { micros: budgetMicros, tokens: budgetTokens },
    spent: { micros: spentMicros, tokens: spentTokens },
    reserved: { micros: reservedMicros, tokens: reservedTokens },
  };
}
