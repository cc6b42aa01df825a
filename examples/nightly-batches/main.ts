/**
 * Batches at half past two in Berlin, every night, without a worker in some of them: the machine is off for five days,
 * and what was missed is made up for when it is back. A week passes in a moment, on a clock that is moved by hand.
 *
 *   node examples/nightly-batches/main.ts [folder]
 */
import { join } from "node:path";
import { type Holdfast, open } from "../../src/index.ts";
import { testClock } from "../../src/testing/index.ts";
import { exampleFolder } from "../folder.ts";
import { batch, broken, nightly, REGIONS, reporting } from "./jobs.ts";

using folder = exampleFolder("nightly-batches");
const path = join(folder.path, "nights.db");
const clock = testClock(Date.UTC(2026, 9, 21, 12)); // a Wednesday in October, noon

broken.add("2026-10-23 east"); // so that something goes wrong
const before = await start();
await to("2026-10-22T00:30");
await to("2026-10-23T00:30");
await before.close();
say("two nights were worked, and the machine is switched off");

await to("2026-10-28T12:00"); // five nights, in one of which the clocks are set back
await using hf = await start();
await clock.advance("1s");
say("it is back, and has made up for what was missed in the last four days");
await to("2026-10-29T01:30");
say("it is on again");
for (const { output, startedAt } of (await hf.jobs.list({ name: "nightly" })).items) {
  const report = await hf.jobs.get(`${output} report`);
  const said = report?.output ?? `${report?.state}. ${report?.error?.message}`;
  console.log(`  night of ${output}, run at ${minute(startedAt as number)}: ${said}`);
}

// The data is corrected. A cancelled report does not run by itself; it is enqueued again.
broken.clear();
const batches = REGIONS.map((region) => `2026-10-23 ${region}`);
await hf.jobs.retry("2026-10-23 east");
const again = await hf.enqueue(reporting(hf), { night: "2026-10-23", batches }, { after: batches });
await clock.advance("1s");
say(`the report of 2026-10-23, again: ${(await hf.jobs.wait(again)).output}`);

/** What the program does at each start. Declaring a schedule again keeps its next tick. */
async function start(): Promise<Holdfast> {
  const hf = await open(path, { clock });
  const when = { cron: "30 2 * * *", timezone: "Europe/Berlin" };
  await hf.schedule(nightly, { ...when, input: null, missed: "all", within: "4d" });
  hf.work([nightly, batch, reporting(hf)]);
  return hf;
}

/** Skips the days in between: the clock is set to shortly before, and runs from there. */
async function to(instant: string): Promise<void> {
  clock.set(Date.parse(`${instant}Z`) - 10_000);
  await clock.advance("10s");
}

function say(what: string): void {
  console.log(`${minute(clock.now())} ${what}`);
}

function minute(at: number): string {
  return new Date(at).toISOString().slice(0, 16);
}
