/**
 * `npm run bench:compare -- OLD_TREE [--store postgres] [--only builds] [--rounds 5] [--quick]` runs the benchmark of another
 * checkout and of this one in turns, and prints by how much each figure of this one is better (above 1) or worse. A figure is
 * the median of its rounds: the machine's drift hits both trees alike.
 */
import { spawn } from "node:child_process";
import { resolve } from "node:path";
import { text } from "node:stream/consumers";
import { parseArgs } from "node:util";
import { median, type Figure } from "./measure.ts";
import type { Contest } from "./postgres/contests.ts";

const HERE = resolve(import.meta.dirname, "..");

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    store: { type: "string", default: "sqlite" },
    only: { type: "string" },
    rounds: { type: "string", default: "5" },
    quick: { type: "boolean", default: false },
  },
});
const [oldTree] = positionals;
if (oldTree === undefined) throw new Error("Name the folder of the checkout to compare with: npm run bench:compare -- ../old");

interface Measured {
  unit: string;
  isBetterWhenSmaller: boolean;
  old: number[];
  new: number[];
}
const figures = new Map<string, Measured>();

for (let round = 0; round < Number(values.rounds); round++) {
  // The tree that runs first alternates, too.
  const turns = (["old", "new"] as const).toSorted(() => (round % 2 === 0 ? 0 : -1));
  for (const side of turns) {
    process.stderr.write(`round ${round + 1} of ${values.rounds}, ${side}\n`);
    for (const figure of await run(side === "old" ? resolve(oldTree) : HERE)) add(side, figure);
  }
}
for (const [what, measured] of figures) console.log(lineOf(what, measured));

async function run(tree: string): Promise<(Figure | Contest)[]> {
  const { store, only, quick } = values;
  const flags = ["--store", store, ...(only === undefined ? [] : ["--only", only]), ...(quick ? ["--quick"] : [])];
  const child = spawn(process.execPath, ["bench/main.ts", "--json", ...flags], {
    cwd: tree,
    stdio: ["ignore", "pipe", "inherit"],
  });
  return JSON.parse(await text(child.stdout)) as (Figure | Contest)[];
}

function add(side: "old" | "new", figure: Figure | Contest): void {
  const what = `${figure.what}${"durability" in figure ? ` (${figure.durability})` : ""}`;
  const isBetterWhenSmaller = "target" in figure ? "atMost" in figure.target : figure.unit === "ms";
  const measured = figures.get(what) ?? { unit: figure.unit, isBetterWhenSmaller, old: [], new: [] };
  figures.set(what, measured);
  measured[side].push(...("ours" in figure ? [figure.ours] : (figure.results.Holdfast ?? [])));
}

function lineOf(what: string, { unit, isBetterWhenSmaller, ...sides }: Measured): string {
  const [before, after] = [median(sides.old), median(sides.new)];
  const ratio = isBetterWhenSmaller ? before / after : after / before;
  const numbers = [before, after].map((value) => value.toPrecision(4).padStart(10)).join(" → ");
  return `${what.padEnd(64)} ${numbers} ${unit.padEnd(10)} × ${ratio.toFixed(2)}`;
}
