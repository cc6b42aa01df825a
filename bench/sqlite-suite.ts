import { join } from "node:path";
import { builds } from "./builds.ts";
import { claimCost } from "./claim-cost.ts";
import { definitions } from "./definitions.ts";
import { events } from "./events.ts";
import { exports } from "./export.ts";
import { idle } from "./idle.ts";
import { latency } from "./latency.ts";
import { limits } from "./limits.ts";
import { lineOf } from "./figure-line.ts";
import type { Figure } from "./measure.ts";
import { memory } from "./memory.ts";
import { reclaim } from "./reclaim.ts";
import { recovery } from "./recovery.ts";
import { startUp } from "./start-up.ts";
import type { Suite, SuiteOptions } from "./suite.ts";
import { throughput } from "./throughput.ts";
import { inScratch } from "./scratch.ts";
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
    definitions: () => definitions(onFile, 10_000),
    limits: () => limits({ fresh: onFile, durability: "process" }, many, rounds),
    latency,
    idle,
    "start-up": () => startUp(quick ? 10 : 30),
    // Loaded on use: its modules would count in the heap of the others.
    http: async () => (await import("./http.ts")).http(),
    dashboard: async () => (await import("./dashboard.ts")).dashboard(quick),
    reclaim,
    recovery: () => recovery(quick),
    memory: () => memory(many),
    builds: () => builds(quick ? 20_000 : 100_000),
    export: () => exports(quick ? 250 : 1_000, rounds),
  };
  const measured = Object.entries(parts).map(([name, measure]) => [name, async () => (await measure()).map(lineOf)] as const);
  return { heading: "", parts: Object.fromEntries(measured), close: async () => {} };
}

function onFile<T>(run: (where: string) => Promise<T>): Promise<T> {
  return inScratch((folder) => run(join(folder, "work.db")));
}
