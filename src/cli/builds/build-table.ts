import { age } from "../../core/age.ts";
import type { Build } from "../../core/build-view.ts";
import { saySpent } from "../../core/cost.ts";
import { number } from "../../core/words.ts";
import type { Page } from "../../runtime/jobs.ts";
import { paint } from "../terminal/colours.ts";
import { buildStyle } from "../terminal/state.ts";
import { type Column, table } from "../terminal/table.ts";

export function buildTable({ items, next }: Page<Build>, now: number): string {
  if (items.length === 0) return paint("dim", "No builds.");
  const more = next === undefined ? "" : `\n${paint("dim", `more: --after ${next}`)}`;
  return table(columns(now), items) + more;
}

function columns(now: number): Column<Build>[] {
  return [
    { title: "ID", value: ({ id }) => id },
    { title: "PIPELINE", value: ({ pipeline }) => pipeline, least: 8 },
    { title: "STATE", value: ({ state }) => state, style: ({ state }) => buildStyle(state) },
    count("DONE", ({ ran }) => ran),
    count("CACHED", ({ cached }) => cached),
    count("FAILED", ({ failed }) => failed),
    count("LEFT", ({ left }) => left),
    { title: "SPENT", value: ({ spent, budget }) => saySpent(spent, budget), least: 8 },
    { title: "AGE", right: true, value: ({ createdAt }) => age(now - createdAt) },
    { title: "REASON", value: ({ reason }) => reason, least: 10, style: () => "dim" },
  ];
}

function total({ stages }: Build, of: (stage: Build["stages"][string]) => number): number {
  return Object.values(stages).reduce((sum, stage) => sum + of(stage), 0);
}

function count(title: string, of: (stage: Build["stages"][string]) => number): Column<Build> {
  return {
    title,
    right: true,
    value: (build) => number(total(build, of)),
    style: (build) => (total(build, of) === 0 ? "dim" : title === "FAILED" ? "yellow" : null),
  };
}
