import type { PipelineDescription } from "../core/pipelines/pipeline.ts";
import { type Cost, toCost } from "../core/pipelines/budget.ts";
import { pathText, segmentsOf } from "../core/pipelines/work.ts";
import type { BuildRow } from "../store/builds.ts";
import type { StoredResult } from "../store/work.ts";
import type { WorkStore } from "../store/store.ts";

/** What a stage did for a target in a build. Without a cell it has not got there. */
export interface Cell {
  state: "ran" | "cached" | "failed";
  cost: Cost;
  at: number;
}

export interface GridRow {
  /** Where the target is stored; `target` is its id, with its parents' before it. */
  path: string;
  target: string;
  cells: Record<string, Cell>;
}

/** Targets by stages: the stages between two expands or gathers share their targets. */
export interface GridPage {
  segments: string[][];
  segment: number;
  rows: GridRow[];
  /** For `after` of the next page. */
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
  // A full column may have more behind its last path: rows beyond the first such path are left to the next page.
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

/** As both databases sort them. */
function isBefore(a: string, b: string): boolean {
  return Buffer.compare(Buffer.from(a), Buffer.from(b)) < 0;
}
