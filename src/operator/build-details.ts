import { fromBudget, type Amount, type Cost, NO_COST, plus, toCost } from "../core/pipelines/budget.ts";
import type { BuildState } from "../core/pipelines/build.ts";
import type { PipelineDescription } from "../core/pipelines/pipeline.ts";
import { pathText, segmentsOf } from "../core/pipelines/work.ts";
import type { AuditEntry } from "../store/audit.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Store, WorkStore } from "../store/store.ts";
import type { StoredResult } from "../store/work.ts";

/** What a stage did for a target in a build. A target without a cell has not reached the stage. */
export interface Cell {
  state: "ran" | "cached" | "failed";
  cost: Cost;
  at: number;
}

export interface GridRow {
  /** Path of the stored target. `target` is its id, after the ids of its parents. */
  path: string;
  target: string;
  cells: Record<string, Cell>;
}

/** Targets by stages. The stages between two expands or gathers share their targets. */
export interface GridPage {
  segments: string[][];
  segment: number;
  rows: GridRow[];
  next?: string;
}

export async function gridPage(
  work: Pick<WorkStore, "results">,
  build: BuildRow,
  { segment, after, limit }: { segment: number; after?: string; limit: number },
): Promise<GridPage> {
  const segments = segmentsOf((JSON.parse(build.description) as PipelineDescription).stages)
    .map(({ stages }) => stages.map(({ name }) => name))
    .filter((names) => names.length > 0);
  const stages = segments[segment] ?? [];
  const from = after === undefined ? {} : { after };
  const columns = await Promise.all(
    stages.map((stage) => work.results({ build: build.id, stage, ...from, limit, failures: true })),
  );
  // A full column may continue behind its last path, so rows beyond the first such path go to the next page.
  const ends = columns.filter((column) => column.length === limit).map((column) => (column.at(-1) as StoredResult).path);
  const end = ends.length === 0 ? null : ends.reduce((a, b) => (isBefore(a, b) ? a : b));
  const rows = new Map<string, GridRow>();
  for (const column of columns)
    for (const { path, stage, state, build: by, cost, at } of column) {
      if (end !== null && isBefore(end, path)) break;
      let row = rows.get(path);
      if (row === undefined) rows.set(path, (row = { path, target: pathText(path), cells: {} }));
      const ran = state === "SUCCESS" && by === build.id;
      row.cells[stage] = { state: state === "FAILED" ? "failed" : ran ? "ran" : "cached", cost: toCost(cost), at };
    }
  const sorted = [...rows.values()].sort((a, b) => (isBefore(a.path, b.path) ? -1 : 1));
  return { segments, segment, rows: sorted, ...(end === null ? {} : { next: end }) };
}

/** Compares by UTF-8 bytes, as both databases sort. */
function isBefore(a: string, b: string): boolean {
  return Buffer.compare(Buffer.from(a), Buffer.from(b)) < 0;
}

export interface SpendPoint {
  at: number;
  spent: Required<Cost>;
  budget: Cost;
}

/** An operator never makes this many audit entries of one build. */
const MAX_ENTRIES = 1_000;

/** Returns spending over time, scaled to the build's total, because charges of attempts without a result have no time. */
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

/** Returns when the build last left ACTIVE, after which it spends nothing. */
function stoppedAt(entries: readonly AuditEntry[]): number | undefined {
  return entries.findLast(
    ({ before, after }) => isBuild(before) && isBuild(after) && before.state === "ACTIVE" && after.state !== "ACTIVE",
  )?.at;
}

function isBuild(audited: unknown): audited is { state: BuildState; budget: Cost } {
  return typeof audited === "object" && audited !== null && "state" in audited && "budget" in audited;
}
