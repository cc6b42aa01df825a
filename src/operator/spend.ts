import { fromBudget, type Amount, type Cost, NO_COST, plus, toCost } from "../core/pipelines/budget.ts";
import type { BuildState } from "../core/pipelines/build.ts";
import type { AuditEntry } from "../store/audit.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Store } from "../store/store.ts";

/** What a build had spent by an instant, and the budget that it had then. */
export interface SpendPoint {
  at: number;
  spent: Required<Cost>;
  budget: Cost;
}

/** More audit entries of one build than an operator ever makes. */
const MAX_ENTRIES = 1_000;

/**
 * The spend of a build over time, from the costs of its results and the audit entries of its budgets. Charges of attempts without a
 * result have no time of their own: the curve is scaled so that it ends at what was spent.
 */
export async function spendPoints(
  { work, audit }: Pick<Store, "work" | "audit">,
  build: BuildRow,
  now: number,
): Promise<SpendPoint[]> {
  const entries = await audit.page({ after: 0, limit: MAX_ENTRIES, subject: build.id });
  const until = build.state === "ACTIVE" ? now : (stoppedAt(entries) ?? build.createdAt);
  const slices = await work.spend(build, until);
  const total = slices.map(({ cost }) => cost).reduce(plus, NO_COST);
  const steps = [
    ...slices.map(({ at, cost }) => ({ at, cost, budget: null })),
    ...entries.flatMap(({ at, after }) => (isBuild(after) ? { at, cost: NO_COST, budget: after.budget } : [])),
  ].sort((a, b) => a.at - b.at);
  let [sum, budget]: [Amount, Cost] = [NO_COST, steps.find((step) => step.budget !== null)?.budget ?? fromBudget(build.budget)];
  const points: SpendPoint[] = [{ at: build.createdAt, spent: toCost(NO_COST), budget }];
  for (const step of steps) {
    sum = plus(sum, step.cost);
    budget = step.budget ?? budget;
    points.push({ at: step.at, spent: toCost(scaled(sum, total, build.spent)), budget });
  }
  points.push({ at: Math.max(until, points.at(-1)?.at ?? 0), spent: toCost(build.spent), budget: fromBudget(build.budget) });
  return points;
}

function scaled(part: Amount, total: Amount, spent: Amount): Amount {
  const of = (unit: keyof Amount) => (total[unit] === 0 ? 0 : Math.round((part[unit] * spent[unit]) / total[unit]));
  return { micros: of("micros"), tokens: of("tokens") };
}

/** When the build last left ACTIVE: it spends nothing after that. */
function stoppedAt(entries: readonly AuditEntry[]): number | undefined {
  return entries.findLast(
    ({ before, after }) => isBuild(before) && isBuild(after) && before.state === "ACTIVE" && after.state !== "ACTIVE",
  )?.at;
}

function isBuild(audited: unknown): audited is { state: BuildState; budget: Cost } {
  return typeof audited === "object" && audited !== null && "state" in audited && "budget" in audited;
}
