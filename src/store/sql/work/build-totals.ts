import { type CostHistory, type Ledger, settleReservation, type Amount, NO_COST, plus } from "../../../core/pipelines/budget.ts";
import type { BuildState } from "../../../core/pipelines/build.ts";
import type { BuildKey, JobKey } from "../../../core/text/ids.ts";
import type { BuildColumns, BuildRow, StageCounts } from "../../builds.ts";
import { type Dialect, type Script, type Settings, together, type Tx, wait } from "../script.ts";

type Count = Exclude<keyof StageCounts, "stage">;

/** The columns of a build that its work items change: as they were loaded, and what an operation adds. */
export interface BuildSpend {
  readonly build: BuildKey;
  readonly pipeline: string;
  readonly queue: string;
  readonly state: BuildState;
  readonly loaded: Ledger;
  ledger: Ledger;
  open: number;
  failed: number;
  listing: BuildRow["listing"] | null;
  blocked: { reason: NonNullable<BuildRow["blocked"]>; refused: Amount } | null;
  readonly stages: Map<string, Record<Count, number>>;
}

interface StageCost extends CostHistory {
  pipeline: string;
  stage: string;
}

export class BuildTotals {
  readonly #builds: Map<BuildKey, BuildSpend>;
  readonly #costs = new Map<string, StageCost>();

  constructor(builds: readonly BuildSpend[]) {
    this.#builds = new Map(builds.map((build) => [build.build, build]));
  }

  of(build: BuildKey): BuildSpend {
    const spend = this.#builds.get(build);
    if (spend === undefined) throw new Error(`Build ${build} was not loaded.`);
    return spend;
  }

  count(spend: BuildSpend, stage: string, what: Count, n: number): void {
    let counts = spend.stages.get(stage);
    if (counts === undefined) spend.stages.set(stage, (counts = { ran: 0, cached: 0, failed: 0, passed: 0, open: 0 }));
    counts[what] += n;
  }

  /** Whether targets have failed since the rows were loaded: a build of them may be about to pause. */
  get hasFailed(): boolean {
    return [...this.#builds.values()].some(({ failed }) => failed > 0);
  }

  open(spend: BuildSpend, stage: string, n: number): void {
    spend.open += n;
    this.count(spend, stage, "open", n);
  }

  failed(spend: BuildSpend, stage: string, n: number): void {
    spend.failed += n;
    this.count(spend, stage, "failed", n);
  }

  addCost({ pipeline }: BuildSpend, stage: string, charge: Amount): void {
    const key = `${pipeline}\n${stage}`;
    const { attempts, spent } = this.#costs.get(key) ?? { attempts: 0, spent: NO_COST };
    this.#costs.set(key, { pipeline, stage, attempts: attempts + 1, spent: plus(spent, charge) });
  }

  changes(): { builds: BuildSpend[]; costs: StageCost[] } {
    const builds = [...this.#builds.values()];
    // Sort everywhere in the same order, so that two transactions do not deadlock.
    const costs = [...this.#costs].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, cost]) => cost);
    for (const build of builds) {
      const { build: key, pipeline, queue, state, ledger } = build;
      this.#builds.set(key, unchanged({ build: key, pipeline, queue, state, loaded: ledger }));
    }
    this.#costs.clear();
    return { builds, costs };
  }
}

export function settleSpend(spend: BuildSpend, reserved: Amount, charge: Amount): void {
  spend.ledger = settleReservation(spend.ledger, reserved, charge);
}

export class BuildTotalsTable {
  readonly #settings: Settings;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, settings: Settings) {
    this.#settings = settings;
    this.#sql = statements(dialect);
  }

  *load(tx: Tx, builds: readonly BuildKey[], jobs: readonly JobKey[]): Script<BuildTotals> {
    const rows = yield* tx.all<SpendColumns>(this.#sql.load, { builds, jobs });
    return new BuildTotals(rows.map(toSpend));
  }

  /** Pauses the queue of an active build in which too many targets have failed. */
  *write(tx: Tx, totals: BuildTotals): Script<void> {
    const { builds, costs } = totals.changes();
    const changed = builds.filter(hasChanged).map(toDelta);
    const blocks = builds.flatMap(({ build: key, blocked }) =>
      blocked === null ? [] : [{ key, reason: blocked.reason, ...blocked.refused }],
    );
    const counts = builds.flatMap(({ build, stages }) =>
      Array.from(stages, ([stage, counted]) => ({ build, stage, ...counted })),
    );
    const spent = costs.map(({ spent: { micros, tokens }, ...cost }) => Object.assign(cost, { micros, tokens }));
    const [written] = yield* together(
      tx.eachReturning<{ queue: string; exceeded: boolean | number | null }>(this.#sql.add, changed),
      tx.each(this.#sql.block, blocks),
      tx.each(this.#sql.count, counts),
      tx.each(this.#sql.addCosts, spent),
    );
    for (const { queue, exceeded } of written) if (exceeded) yield* wait(this.#settings.pause(tx, queue, true));
  }
}

type SpendColumns = Pick<BuildColumns, "key" | "pipeline" | "queue" | "state" | "budget_micros" | "budget_tokens"> &
  Record<`${"spent" | "reserved"}_${"micros" | "tokens"}`, number>;

const COUNTS = ["ran", "cached", "failed", "passed", "open"] as const;

function statements({ table, in: isIn, items, each, least, greatest, locking }: Dialect) {
  const builds = table("builds");
  const capped = (sum: string) => least(sum, String(Number.MAX_SAFE_INTEGER));
  return {
    load: `
      select key, pipeline, queue, state, budget_micros, budget_tokens, spent_micros, spent_tokens, reserved_micros, reserved_tokens
      from ${builds} where key in (
        select value from ${items("bigint", ":builds")} as asked
        union select build from ${table("work")} where ${isIn("job", "bigint", ":jobs")})
      order by key${locking}`,
    // Adds to the columns instead of setting them, because an operation may have loaded the same row several times.
    add: each(
      {
        key: "bigint",
        spent_micros: "bigint",
        spent_tokens: "bigint",
        reserved_micros: "bigint",
        reserved_tokens: "bigint",
        open: "bigint",
        newly_failed: "bigint",
        listing: "text",
      },
      (row) => {
        const sum = (name: string) => `one.${name} + ${row.value(name)}`;
        return `
          update ${builds} as one set
            spent_micros = ${capped(sum("spent_micros"))}, spent_tokens = ${capped(sum("spent_tokens"))},
            reserved_micros = ${greatest(sum("reserved_micros"), "0")}, reserved_tokens = ${greatest(sum("reserved_tokens"), "0")},
            open = ${sum("open")}, failed = one.failed + ${row.value("newly_failed")}, listing = coalesce(${row.value("listing")}, one.listing)
          ${row.from()} where ${row.is("one", "key")}
          returning queue, (state = 'ACTIVE' and ${row.value("newly_failed")} > 0 and failed > max_failures) as exceeded`;
      },
    ),
    block: each(
      { key: "bigint", reason: "text", micros: "bigint", tokens: "bigint" },
      (row) => `
        update ${builds} as one set blocked = ${row.value("reason")}, refused_micros = ${row.value("micros")},
          refused_tokens = ${row.value("tokens")}
        ${row.from()} where ${row.is("one", "key")}`,
    ),
    count: each(
      { build: "bigint", stage: "text", ran: "bigint", cached: "bigint", failed: "bigint", passed: "bigint", open: "bigint" },
      (row) => `
        update ${table("build_stages")} as old set ${COUNTS.map((name) => `${name} = old.${name} + ${row.value(name)}`)}
        ${row.from()} where ${row.is("old", "build", "stage")}`,
    ),
    addCosts: each(
      { pipeline: "text", stage: "text", attempts: "bigint", micros: "bigint", tokens: "bigint" },
      (row) => `
        insert into ${table("stage_costs")} as old (pipeline, stage, attempts, micros, tokens) ${row.inserted}
        on conflict (pipeline, stage) do update set attempts = old.attempts + excluded.attempts,
          micros = ${capped("old.micros + excluded.micros")}, tokens = ${capped("old.tokens + excluded.tokens")}`,
    ),
  };
}

function toSpend(row: SpendColumns): BuildSpend {
  const { key: build, pipeline, queue, state } = row;
  const loaded = {
    budget: { micros: row.budget_micros, tokens: row.budget_tokens },
    spent: { micros: row.spent_micros, tokens: row.spent_tokens },
    reserved: { micros: row.reserved_micros, tokens: row.reserved_tokens },
  };
  return unchanged({ build, pipeline, queue, state, loaded });
}

function unchanged(build: Pick<BuildSpend, "build" | "pipeline" | "queue" | "state" | "loaded">): BuildSpend {
  return { ...build, ledger: build.loaded, open: 0, failed: 0, listing: null, blocked: null, stages: new Map() };
}

function hasChanged({ loaded, ledger, open, failed, listing }: BuildSpend): boolean {
  const isSpendSame = isSame(loaded.spent, ledger.spent) && isSame(loaded.reserved, ledger.reserved);
  return !isSpendSame || open !== 0 || failed !== 0 || listing !== null;
}

function toDelta({ build, loaded, ledger, open, failed, listing }: BuildSpend) {
  return {
    key: build,
    spent_micros: ledger.spent.micros - loaded.spent.micros,
    spent_tokens: ledger.spent.tokens - loaded.spent.tokens,
    reserved_micros: ledger.reserved.micros - loaded.reserved.micros,
    reserved_tokens: ledger.reserved.tokens - loaded.reserved.tokens,
    open,
    newly_failed: failed,
    listing,
  };
}

export function isSame(a: Amount, b: Amount): boolean {
  return a.micros === b.micros && a.tokens === b.tokens;
}
