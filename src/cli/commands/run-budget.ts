import { createInterface } from "node:readline/promises";
import {
  approveBudget,
  type Amount,
  type Cost,
  NO_COST,
  plus,
  amountText,
  costText,
  spentText,
  unitText,
  toAmount,
  UNITS,
} from "../../core/pipelines/budget.ts";
import type { Build } from "../../core/pipelines/build-view.ts";
import type { BuildSettings } from "../../pipelines/model.ts";
import type { Holdfast } from "../../holdfast.ts";
import type { BuildRow } from "../../store/builds.ts";
import { parseCost } from "../arguments.ts";
import { oneLine, paint } from "../render/table.ts";
import type { WantedBuild } from "./run.ts";

export async function totalToFinish(hf: Holdfast, row: BuildRow, { pipeline }: WantedBuild): Promise<Amount | null> {
  const { rerun, only } = JSON.parse(row.options) as BuildSettings;
  // Without an estimate the build can still be approved, so a plan that fails is not an error here.
  const plan = await hf.builds.plan(pipeline, { only: [...only.stages, ...only.targets], rerun }).catch(() => null);
  const left = plan === null ? NO_COST : toAmount(plan.estimate, "The estimate of the plan");
  if (left.micros + left.tokens === 0) return null;
  if (rerun.length === 0) return plus(row.spent, left);
  // A plan with `rerun` also counts what this build has rerun already.
  const least = plus(row.spent, row.refused);
  return { micros: Math.max(left.micros, least.micros), tokens: Math.max(left.tokens, least.tokens) };
}

export function pausedText(row: BuildRow, build: Build, toFinish: Amount | null = null): string {
  const what = `Build ${row.id} of "${oneLine(row.pipeline)}" is paused at its budget: ${spentText(build.spent, build.budget)} spent`;
  const refused = row.refused.micros + row.refused.tokens;
  const next = refused === 0 ? "" : `, and the next work item is estimated at ${amountText(row.refused)}`;
  const finish = toFinish === null ? "" : ` The whole build is estimated to cost ${limitedOf(row, toFinish)}.`;
  return paint("yellow", `${what}${next}.${finish}`);
}

/** Lists the commands to choose from. `again` repeats this command; `same` names its database for the others. */
export function nextCommandsText(
  row: BuildRow,
  { again, same }: { again: string; same: string },
  token: string | undefined,
): string {
  const given = token ?? "TOKEN";
  const lines = [
    `To continue, approve a new total of at least ${leastOf(row)}:`,
    `  ${again} --token ${given} --budget ${row.budget.micros === null ? "tokens=…" : "…"}`,
    token === undefined
      ? `  holdfast builds token ${row.id}${same} creates a token, which works once, within an hour.`
      : "  The token can be used once, within an hour.",
    `To end the build: holdfast builds abandon ${row.id}${same} --reason "…"`,
  ];
  return lines.join("\n");
}

export async function askBudget(
  row: BuildRow,
  toFinish: Amount | null,
  offered: Cost | undefined,
  signal: AbortSignal,
): Promise<Cost | null> {
  const over = new AbortController();
  const asked = createInterface({ input: process.stdin, output: process.stdout });
  asked.once("SIGINT", () => over.abort());
  const ask = (question: string): Promise<string | null> =>
    asked.question(question, { signal: AbortSignal.any([signal, over.signal]) }).catch(() => null);
  try {
    if (offered !== undefined) {
      const yes = await ask(`Continue with a budget of ${costText(offered)}? [y/N] `);
      return /^y(es)?$/i.test(yes?.trim() ?? "") ? offered : null;
    }
    const finish = toFinish === null ? "" : `, about ${limitedOf(row, toFinish)} to finish`;
    for (;;) {
      const text = (await ask(`New total budget: at least ${leastOf(row)}${finish} (Enter leaves it paused): `))?.trim() ?? "";
      if (text === "") return null;
      try {
        const cost = parseCost(text);
        approveBudget(row, cost, row.refused);
        return cost;
      } catch (error) {
        process.stdout.write(`${(error as Error).message}\n`);
      }
    }
  } finally {
    asked.close();
  }
}

export async function tokenFor(hf: Holdfast, build: Build): Promise<string> {
  return build.token ?? hf.builds.mintToken(build.id);
}

function leastOf(row: BuildRow): string {
  return limitedOf(row, plus(row.spent, row.refused));
}

function limitedOf({ budget }: BuildRow, amount: Amount): string {
  const limited = UNITS.filter((unit) => budget[unit] !== null);
  return limited.map((unit) => unitText(unit, amount[unit])).join(" and ");
}
