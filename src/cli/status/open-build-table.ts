import { age } from "../../core/age.ts";
import { saySpent } from "../../core/cost.ts";
import { number } from "../../core/words.ts";
import { isLeft, type OpenBuild } from "../../runtime/status/open-builds.ts";
import { buildStateText, buildStyle, type Column, table } from "../render/table.ts";

export function openBuildTable(builds: readonly OpenBuild[], now: number): string {
  return builds.length === 0 ? "" : table(columns(now), builds);
}

function columns(now: number): Column<OpenBuild>[] {
  return [
    { title: "BUILD", value: ({ id }) => id },
    { title: "PIPELINE", value: ({ pipeline }) => pipeline, least: 8 },
    { title: "STATE", value: buildStateText, style: ({ state }) => buildStyle(state) },
    { title: "SPENT", value: ({ spent, budget }) => saySpent(spent, budget), least: 8 },
    { title: "LEFT", right: true, value: ({ left }) => number(left) },
    { title: "AGE", right: true, value: ({ createdAt }) => age(now - createdAt) },
    { title: "LED BY", value: sayLead, least: 8, style: (build) => (isLeft(build) ? "red" : null) },
  ];
}

function sayLead(build: OpenBuild): string {
  const { lead } = build;
  return lead === null ? "–" : `pid ${lead.pid} on ${lead.host}${isLeft(build) ? ", which is dead" : ""}`;
}
