import { hostname } from "node:os";
import type { Command } from "commander";
import { costText } from "../../core/pipelines/budget.ts";
import { pipelineOf } from "../../core/pipelines/pipeline.ts";
import { plural } from "../../core/text/text.ts";
import { checkBuildOptions, Model } from "../../pipelines/model.ts";
import type { Plan } from "../../pipelines/plan.ts";
import { addChoiceOptions, buildOptions, type RunOptions } from "../arguments.ts";
import { openReadOnly } from "../database.ts";
import { findPipeline } from "../modules.ts";
import { answer } from "../render/output.ts";
import { type Column, count, paint, type Style, table } from "../render/table.ts";
import { addCommand } from "../verb.ts";

export function planCommand(parent: Command): void {
  const plan = addCommand(parent, "plan", {
    description:
      "Show what a run would do now, stage by stage: what would run, what is cached, what depends on other work, and " +
      "the estimated cost. It changes nothing, and creates no database.",
    examples: ["holdfast plan docs.ts", "holdfast plan docs --rerun parse --json"],
  }).argument("<pipeline>", "a .ts or .js module whose default export is a pipeline, or the name of one in the config's modules");
  addChoiceOptions(plan).action(async (given: string, options: Partial<RunOptions>, command: Command) => {
    const { pipeline } = await findPipeline(given, command);
    const wished = buildOptions(options);
    checkBuildOptions(new Model(pipelineOf(pipeline), hostname()), wished, "plan");
    await using hf = await openReadOnly(command);
    const planned = await hf.builds.plan(pipeline, wished);
    answer(command, planned, () => page(planned));
  });
}

type Row = Plan["stages"][string] & { name: string };

function page(plan: Plan): string {
  const rows = Object.entries(plan.stages).map(([name, stage]): Row => Object.assign({ name }, stage));
  const { estimate, upperBound, incomplete } = plan;
  const total: Row = {
    name: "total",
    run: sum(rows, ({ run }) => run),
    cached: sum(rows, ({ cached }) => cached),
    unknown: sum(rows, ({ unknown }) => unknown),
    estimate,
    ...(upperBound && { upperBound }),
    ...(incomplete && { incomplete }),
  };
  return [
    ...plan.warnings.map((warning) => paint("yellow", `warning: ${warning}`)),
    table(columns(total), [...rows, total]),
    ...(plan.removed === 0 ? [] : [`${plural(plan.removed, "target is", "targets are")} gone, and would be removed.`]),
    ...(total.unknown === 0 ? [] : [paint("dim", "unknown: work items whose input an earlier stage must produce first.")]),
    ...(incomplete ? [paint("dim", "?: the cost of a stage without an estimate is known after its first run.")] : []),
    ...(total.run + total.unknown + plan.removed === 0 ? [paint("green", "Nothing would run: all results are up to date.")] : []),
  ].join("\n");
}

function columns(total: Row): Column<Row>[] {
  const styled = (style: Style | null) => (row: Row) => (row === total ? "bold" : style);
  const isBlank = ({ run, unknown }: Row) => run + unknown === 0;
  return [
    { title: "STAGE", value: ({ name }) => name, least: 8, style: (row) => (row === total ? "bold" : null) },
    count("RUN", ({ run }) => run, styled("cyan")),
    count("CACHED", ({ cached }) => cached, styled("green")),
    count("UNKNOWN", ({ unknown }) => unknown, styled("yellow")),
    {
      title: "ESTIMATE",
      right: true,
      value: (row) => (isBlank(row) ? "–" : estimateText(row)),
      style: (row) => (isBlank(row) ? "dim" : row === total ? "bold" : null),
    },
  ];
}

function estimateText({ estimate, upperBound, incomplete }: Row): string {
  if (Object.keys(estimate).length === 0) return "?";
  const text = costText(estimate);
  return incomplete ? `${text} + ?` : upperBound ? `at most ${text}` : text;
}

function sum(rows: readonly Row[], of: (row: Row) => number): number {
  return rows.reduce((total, row) => total + of(row), 0);
}
