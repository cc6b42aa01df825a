import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { open } from "../src/index.ts";
import type { Figure } from "./measure.ts";
import { inScratch } from "./scratch.ts";

const DOOMED = fileURLToPath(new URL("./recovery-doomed.ts", import.meta.url));
/** How many jobs there are, and within how many milliseconds all is to be given back. */
export const SIZES = [
  [1_000, 50],
  [10_000, 100],
  [100_000, 1_000],
  [1_000_000, 5_000],
] as const;
/** Of these a tenth was running. */
const SHARE = 10;
const ROUNDS = 7;
/** From a size to the next, ten times as large, it may take so many times as long. */
const GROWTH = 15;

/** Opening a database whose process was killed with a tenth of the jobs in hand, until all of them are back. */
export async function recovery(quick: boolean): Promise<Figure[]> {
  const figures: Figure[] = [];
  const took: number[] = [];
  for (const [jobs, limit] of quick ? SIZES.slice(0, 3) : SIZES) {
    const ours = await measure(jobs);
    took.push(ours);
    const what = `recovery: ${jobs.toLocaleString("en")} jobs, ${(jobs / SHARE).toLocaleString("en")} of them running`;
    figures.push({ what, ours, limit, unit: "ms", target: { atMost: 1 } });
  }
  const [before, last] = took.slice(-2) as [number, number];
  figures.push({
    what: "recovery: ten times as many jobs",
    ours: last / before,
    limit: GROWTH,
    unit: "×",
    target: { atMost: 1 },
  });
  return figures;
}

/** In milliseconds. */
export function measure(jobs: number, rounds = ROUNDS): Promise<number> {
  return inScratch(async (folder) => {
    const left = join(folder, "left");
    mkdirSync(left);
    const { signal, stderr } = spawnSync(process.execPath, [DOOMED, join(left, "work.db"), String(jobs), String(jobs / SHARE)]);
    if (signal !== "SIGKILL") throw new Error(`It was not killed: ${stderr.toString()}`);
    const times: number[] = [];
    for (let round = 0; round < rounds; round++) {
      const here = join(folder, String(round));
      cpSync(left, here, { recursive: true });
      const start = performance.now();
      await using hf = await open(join(here, "work.db"));
      times.push(performance.now() - start);
      const report = await hf.recovery.lastReport();
      if (report?.jobsResetToPending !== jobs / SHARE) throw new Error(`Reported: ${JSON.stringify(report)}`);
    }
    // The quickest: other programs on this machine may slow one down, a bug slows all.
    return Math.min(...times);
  });
}
