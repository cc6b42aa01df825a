import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { Figure } from "./measure.ts";
import { inScratch } from "./scratch.ts";

const PROCESS = fileURLToPath(new URL("./builds-process.ts", import.meta.url));
/** Beyond listing, a build without a change and a plan may take this long, of 100,000 targets. */
const NO_CHANGE = 3_000;

/** In milliseconds; rss in bytes. */
interface Took {
  first: number;
  listing: number;
  again: number;
  plan: number;
  rss: number;
}

/** A tenth of so many targets, and all of them: files, through three stages. */
export async function builds(targets: number): Promise<Figure[]> {
  const few = await run(targets / 10);
  const many = await run(targets);
  const name = targets.toLocaleString("en");
  return [
    {
      what: `targets through three stages, of ${name} against a tenth`,
      ours: perSecond(many, targets),
      limit: perSecond(few, targets / 10),
      unit: "targets/s",
      target: { atLeast: 0.75 },
    },
    {
      what: `memory at its peak, of ${name} targets against a tenth`,
      ours: many.rss / 1024 / 1024,
      limit: few.rss / 1024 / 1024,
      unit: "MB",
      target: { atMost: 1.25 },
    },
    {
      what: `a build of ${name} targets without a change, beyond listing`,
      ours: many.again - many.listing,
      limit: (NO_CHANGE * targets) / 100_000,
      unit: "ms",
      target: { atMost: 1 },
    },
    {
      what: `a plan of them, beyond listing`,
      ours: many.plan - many.listing,
      limit: (NO_CHANGE * targets) / 100_000,
      unit: "ms",
      target: { atMost: 1 },
    },
  ];
}

async function run(targets: number): Promise<Took> {
  return inScratch(async (folder) => {
    const { stdout } = await promisify(execFile)(process.execPath, [PROCESS, folder, String(targets)]);
    return JSON.parse(stdout) as Took;
  });
}

function perSecond({ first }: Took, targets: number): number {
  return (targets / first) * 1_000;
}
