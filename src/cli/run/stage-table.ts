import type { Build } from "../../core/build-view.ts";
import { type Column, count } from "../terminal/table.ts";

export type StageRow = Build["stages"][string] & { name: string };

export function stageRows({ stages }: Build): StageRow[] {
  return Object.entries(stages).map(([name, { ran, cached, failed, left }]) => ({ name, ran, cached, failed, left }));
}

export function stageColumns(): Column<StageRow>[] {
  return [
    { title: "STAGE", value: ({ name }) => name, least: 8 },
    count("DONE", ({ ran }) => ran, "green"),
    count("CACHED", ({ cached }) => cached),
    count("FAILED", ({ failed }) => failed, "yellow"),
    count("LEFT", ({ left }) => left),
  ];
}
