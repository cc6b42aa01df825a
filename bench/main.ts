/**
 * `npm run bench [-- --quick] [-- --only drain]`: everything as a ratio to raw SQLite, measured in the same run, at the
 * default settings. Absolute figures are this machine's, and drift.
 */
import { cpus } from "node:os";
import { parseArgs, styleText } from "node:util";
import { claimCost } from "./claim-cost.ts";
import { events } from "./events.ts";
import { idle } from "./idle.ts";
import { latency } from "./latency.ts";
import { limits } from "./limits.ts";
import { type Figure, holds, ratioOf } from "./measure.ts";
import { memory } from "./memory.ts";
import { reclaim } from "./reclaim.ts";
import { throughput } from "./throughput.ts";
import { unused } from "./unused.ts";

const { values } = parseArgs({
  options: { quick: { type: "boolean" }, only: { type: "string" }, json: { type: "boolean" } },
});
const rounds = values.quick ? 2 : 5;
const many = values.quick ? 100_000 : 1_000_000;

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

const figures: Figure[] = [];
if (!values.json) console.log(`Node ${process.version}, ${cpus().length} × ${cpus()[0]?.model ?? "?"}\n`);
for (const [name, measure] of Object.entries(parts)) {
  if (values.only !== undefined && values.only !== name) continue;
  if (process.stderr.isTTY) process.stderr.write(styleText("gray", `measuring ${name} …\r`));
  for (const figure of await measure()) {
    figures.push(figure);
    if (!values.json) console.log(lineOf(figure));
  }
}
if (values.json)
  console.log(JSON.stringify(figures.map((figure) => ({ ...figure, ratio: ratioOf(figure), holds: holds(figure) }))));
process.exitCode = figures.every(holds) ? 0 : 1;

function lineOf(figure: Figure): string {
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
