import { age } from "../../core/age.ts";
import type { Build } from "../../core/build-view.ts";
import type { BuildState } from "../../core/build.ts";
import { saySpent } from "../../core/cost.ts";
import { number } from "../../core/words.ts";
import { paint } from "../terminal/colours.ts";
import { buildStateText, buildStyle } from "../terminal/state.ts";
import { table } from "../terminal/table.ts";
import { oneLine } from "../terminal/text.ts";
import { stageColumns, stageRows } from "./stage-table.ts";

/** How a build was left: its state and why, what each stage has done, what it has cost, and what went wrong. */
export function summary(build: Build, now: number): string {
  const rows = stageRows(build);
  const parts = [headline(build, now), rows.length === 0 ? "" : table(stageColumns(), rows), errorsOf(build)];
  return parts.filter((part) => part !== "").join("\n");
}

function headline(build: Build, now: number): string {
  const { id, pipeline, state, reason, createdAt, finishedAt } = build;
  const spent = saySpent(build.spent, build.budget);
  const about = [`build ${id}`, oneLine(reason), `${age((finishedAt ?? now) - createdAt)}`, ...(spent === "" ? [] : [spent])];
  return `${paint(buildStyle(state), buildStateText(build))} ${paint("bold", oneLine(pipeline))} ${paint("dim", about.join(" · "))}`;
}

/** In whole, so that one can look for them. */
export function errorsOf({ errors, stages }: Build): string {
  if (errors.length === 0) return "";
  const failed = Object.values(stages).reduce((total, stage) => total + stage.failed, 0);
  const lines = errors.map(({ stage, target, message }) => {
    const where = stage === "" ? "source" : target === "" ? stage : `${stage} ${target}`;
    return `${paint("yellow", "failed")} ${oneLine(where)}: ${oneLine(message)}`;
  });
  if (failed > errors.length) lines.push(paint("dim", `… and ${number(failed - errors.length)} more`));
  return lines.join("\n");
}

/** What comes next, in a word. */
export function sayNext({ id, state }: Pick<Build, "id" | "state">, again: string): string {
  switch (state as BuildState) {
    case "SUCCESS":
      return `holdfast builds export ${id} DIR writes what it has made.`;
    case "FAILED":
      return `${again} tries what failed once more; what succeeded is reused.`;
    case "CRASHED":
      return `${again} goes on where it was.`;
    default:
      return "";
  }
}
