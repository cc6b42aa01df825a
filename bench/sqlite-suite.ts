import { styleText } from "node:util";
import { claimCost } from "./claim-cost.ts";
import { events } from "./events.ts";
import { idle } from "./idle.ts";
import { latency } from "./latency.ts";
import { limits } from "./limits.ts";
import { type Figure, holds, ratioOf } from "./measure.ts";
import { memory } from "./memory.ts";
import { reclaim } from "./reclaim.ts";
import type { Line, Suite, SuiteOptions } from "./suite.ts";
import { throughput } from "./throughput.ts";
import { unused } from "./unused.ts";

/** Everything as a ratio to raw SQLite. */
export async function openSqliteSuite({ quick }: SuiteOptions): Promise<Suite> {
  const rounds = quick ? 2 : 5;
  const many = quick ? 100_000 : 1_000_000;
  const parts: Record<string, () => Promise<Figure[]>> = {
    power: () => throughput("power", rounds),
    process: () => throughput("process", rounds),
    unused: () => unused(rounds),
    events: () => events(rounds),
    claim: () => claimCost(many),
    limits: () => limits(many, rounds),
    latency,
    idle,
    reclaim,
    memory: () => memory(many),
  };
  const measured = Object.entries(parts).map(([name, measure]) => [name, async () => (await measure()).map(lineOf)] as const);
  return { heading: "", parts: Object.fromEntries(measured), close: async () => {} };
}

function lineOf(figure: Figure): Line {
  return {
    text: textOf(figure),
    holds: holds(figure),
    data: { ...figure, ratio: ratioOf(figure), holds: holds(figure) },
  };
}

function textOf(figure: Figure): string {
  const what = figure.what + (figure.durability === undefined ? "" : ` (${figure.durability})`);
  const target = "atLeast" in figure.target ? `≥ ${figure.target.atLeast}` : `≤ ${figure.target.atMost}`;
  const verdict = holds(figure) ? styleText("green", "holds") : styleText("red", "falls short");
  return [
    what.padEnd(52),
    `${say(figure.ours)} ${figure.unit}`.padStart(16),
    `of ${say(figure.limit)}`.padStart(12),
    ratioOf(figure).toFixed(2).padStart(7),
    target.padStart(7),
    ` ${verdict}`,
  ].join(" ");
}

function say(value: number): string {
  if (value >= 1_000) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(0) : value.toFixed(3);
}
