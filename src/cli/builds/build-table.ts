import { age } from "../../core/age.ts";
import type { Build } from "../../core/build-view.ts";
import { saySpent } from "../../core/cost.ts";
import type { Page } from "../../runtime/jobs.ts";
import { buildStateText, buildStyle, type Column, count, paint, table, terminalWidth } from "../render/table.ts";

/** A build of the list; of an ACTIVE one that no process drives any more, that its orchestrator is dead. */
export type ListedBuild = Build & { orchestrator?: "dead" };

export function buildTable({ items, next }: Page<ListedBuild>, now: number, room = terminalWidth()): string {
  if (items.length === 0) return paint("dim", "No builds.");
  const more = next === undefined ? "" : `\n${paint("dim", `more: --after ${next}`)}`;
  const dead = items.filter(({ orchestrator }) => orchestrator === "dead").map(({ id }) => `\n${sayDead(id)}`);
  return table(columns(now), items, room) + dead.join("") + more;
}

function sayDead(id: string): string {
  return paint("red", `${id} is ACTIVE, but its orchestrator is dead: holdfast builds resume ${id}`);
}

function columns(now: number): Column<Build>[] {
  return [
    { title: "ID", value: ({ id }) => id },
    { title: "PIPELINE", value: ({ pipeline }) => pipeline, least: 6 },
    { title: "STATE", value: buildStateText, style: ({ state }) => buildStyle(state) },
    count("DONE", (build) => total(build, ({ ran }) => ran)),
    { ...count<Build>("CACHED", (build) => total(build, ({ cached }) => cached)), optional: true },
    count("FAILED", (build) => total(build, ({ failed }) => failed), "yellow"),
    count("LEFT", (build) => total(build, ({ left }) => left)),
    { title: "SPENT", value: ({ spent, budget }) => saySpent(spent, budget), least: 8 },
    { title: "AGE", right: true, value: ({ createdAt }) => age(now - createdAt) },
    { title: "REASON", value: ({ reason }) => reason, least: 10, style: () => "dim", optional: true },
  ];
}

function total({ stages }: Build, of: (stage: Build["stages"][string]) => number): number {
  return Object.values(stages).reduce((sum, stage) => sum + of(stage), 0);
}
