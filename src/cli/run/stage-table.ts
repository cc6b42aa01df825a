import type { Build } from "../../core/build-view.ts";
import { number } from "../../core/words.ts";
import type { Style } from "../terminal/colours.ts";
import type { Column } from "../terminal/table.ts";

export type StageRow = Build["stages"][string] & { name: string };

export function stageRows({ stages }: Build): StageRow[] {
  return Object.entries(stages).map(([name, { ran, cached, failed, left }]) => ({ name, ran, cached, failed, left }));
}

export function stageColumns(): Column<StageRow>[] {
  return [
    { title: "STAGE", value: ({ name }) => name, least: 8 },
    count("DONE", ({ ran }) => ran, "green"),
    count("CACHED", ({ cached }) => cached, null),
    count("FAILED", ({ failed }) => failed, "yellow"),
    count("LEFT", ({ left }) => left, null),
  ];
}

function count(title: string, of: (row: StageRow) => number, style: Style | null): Column<StageRow> {
  return { title, right: true, value: (row) => number(of(row)), style: (row) => (of(row) === 0 ? "dim" : style) };
}
