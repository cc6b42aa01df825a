import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { job, open } from "../src/index.ts";
import { type Figure, median } from "./measure.ts";
import { inProject } from "./package.ts";

const HOLDFAST = "node_modules/holdfast/bin/holdfast.js";
const QUEUE = "reviews";
/** Beyond a bare process, which took 29 ms where 45 and 90 ms were set as bounds: on a busy machine all of them take longer. */
const IMPORT_MS = 45 - 29;
const HELP_MS = 90 - 29;
const PAIRS_PER_SECOND = 5;

/** Processes of the packed package, each against the time that it may take. All alternate, so that they share the machine's noise. */
export function startUp(rounds: number): Promise<Figure[]> {
  return inProject(async (project) => {
    await using hf = await open(join(project, "work.db"));
    const review = job<number>({ name: "review", queue: QUEUE, run: () => {} });
    await hf.enqueueMany(
      review,
      Array.from({ length: rounds + 1 }, (_, i) => i),
    );
    const times: Record<"bare" | "imported" | "help" | "claim" | "settle", number[]> = {
      bare: [],
      imported: [],
      help: [],
      claim: [],
      settle: [],
    };
    // The first round fills the cache of compiled code.
    for (let i = 0; i <= rounds; i++) {
      const run = (name: keyof typeof times, ...args: string[]) => {
        const start = performance.now();
        const printed = execFileSync(process.execPath, args, { cwd: project, encoding: "utf8" });
        if (i > 0) times[name].push(performance.now() - start);
        return printed;
      };
      run("bare", "-e", "0");
      run("imported", "--input-type=module", "-e", 'import "holdfast";');
      run("help", HOLDFAST, "--help");
      const { claim } = JSON.parse(run("claim", HOLDFAST, "--db", "work.db", "claim", QUEUE, "--json")) as { claim: string };
      run("settle", HOLDFAST, "--db", "work.db", "settle", claim, "--succeed", "1");
    }
    const { succeeded } = await hf.jobs.counts();
    if (succeeded !== rounds + 1) throw new Error(`${succeeded} jobs of ${rounds + 1} succeeded`);
    const bare = median(times.bare);
    const beyond = `beyond a bare node (${bare.toFixed(0)} ms)`;
    const pairs = 1_000 / (median(times.claim) + median(times.settle));
    return [
      {
        what: `import "holdfast", ${beyond}`,
        ours: median(times.imported) - bare,
        limit: IMPORT_MS,
        unit: "ms",
        target: { atMost: 1 },
      },
      { what: `holdfast --help, ${beyond}`, ours: median(times.help) - bare, limit: HELP_MS, unit: "ms", target: { atMost: 1 } },
      {
        what: "claim and settle from a shell",
        ours: pairs,
        limit: PAIRS_PER_SECOND,
        unit: "pairs/s",
        target: { atLeast: 1 },
      },
    ];
  });
}
