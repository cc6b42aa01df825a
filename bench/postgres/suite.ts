import { definitions } from "../definitions.ts";
import { lineOf as figureLine } from "../figure-line.ts";
import { limits } from "../limits.ts";
import type { Line, Suite, SuiteOptions } from "../suite.ts";
import { type Contest, Contests } from "./contests.ts";
import { heading, holds, summaryOf, textOf } from "./report.ts";

/** Against graphile-worker, pg-boss and raw SQL; and what limits cost, against Holdfast without. */
export async function openPostgresSuite({ quick }: SuiteOptions): Promise<Suite> {
  const contests = await Contests.begin(
    quick
      ? { rounds: 2, singles: 500, concurrent: 5_000, jobs: 20_000, pings: 50 }
      : { rounds: 5, singles: 1_000, concurrent: 10_000, jobs: 50_000, pings: 200 },
  );
  const measured = Object.entries(contests.parts).map(([name, hold]) => [name, async () => (await hold()).map(lineOf)] as const);
  const place = { fresh: contests.fresh, durability: "power" as const };
  const own = {
    limits: async () => (await limits(place, quick ? 50_000 : 1_000_000, quick ? 2 : 5)).map(figureLine),
    definitions: async () => (await definitions(contests.fresh, 10_000)).map(figureLine),
  };
  return { heading: heading(), parts: { ...Object.fromEntries(measured), ...own }, close: () => contests.close() };
}

function lineOf(contest: Contest): Line {
  return { text: textOf(contest), holds: holds(contest), data: summaryOf(contest) };
}
