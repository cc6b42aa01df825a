import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { type Holdfast, job, open, type Schedule } from "../../src/index.ts";
import { testClock } from "../../src/testing/index.ts";
import { type JsonError, Place } from "./holdfast.ts";

let place: Place;
let hf: Holdfast;

before(async () => {
  place = await Place.make();
  // Time stands still here, so that no tick comes in the middle of a test; the commands have the real one.
  hf = await open(place.db, { clock: testClock(Date.now()) });
  const report = job({ name: "report", run: () => {} });
  await hf.schedule(report, { cron: "30 2 * * *", timezone: "Europe/Berlin", input: { days: 1 } });
  await hf.schedule(report, { key: "a long key, 長い鍵", cron: "0 0 1 1 *", input: null, overlap: false });
});
after(async () => {
  await hf.close();
  await place.remove();
});

test("schedules lists them by key; list is the default", async () => {
  const { items } = await place.json<{ items: Schedule[] }>(["schedules"]);
  assert.deepEqual(items, await hf.schedules.list());
  assert.deepEqual(await place.json(["schedules", "list"]), { items });
  assert.deepEqual(
    items.map(({ key, job: name, cron, timezone, paused }) => [key, name, cron, timezone, paused]),
    [
      ["a long key, 長い鍵", "report", "0 0 1 1 *", "UTC", false],
      ["report", "report", "30 2 * * *", "Europe/Berlin", false],
    ],
  );
});

test("the table lines up, and says the next tick as a clock in its zone shows it", async () => {
  const { code, stdout } = await place.run(["schedules"]);
  assert.equal(code, 0);
  const [head = "", ...lines] = stdout.trimEnd().split("\n");
  assert.match(head, /^KEY +JOB +CRON +ZONE +LAST +NEXT$/);
  assert.equal(lines.length, 2);
  const column = [...head].findIndex((_, i) => head.startsWith("CRON", i));
  assert.match(
    lines[1] as string,
    /^report +report +30 2 \* \* \* +Europe\/Berlin +never +\d{4}-\d\d-\d\d 0[23]:[03]0:00 \(in \d+[hms]\)$/,
  );
  // Three characters of its key are two columns wide.
  assert.equal(lines[0]?.indexOf("0 0 1 1 *"), column - 3);
  assert.equal(lines[1]?.indexOf("30 2 * * *"), column);
});

test("pause, resume, trigger and remove do what they say, and say what they did", async () => {
  assert.deepEqual(await place.json(["schedules", "pause", "report"]), { key: "report", paused: true });
  assert.equal((await hf.schedules.list())[1]?.paused, true);
  assert.match((await place.run(["schedules"])).stdout, /paused$/m);
  assert.deepEqual(await place.json(["schedules", "resume", "report"]), { key: "report", resumed: true });
  assert.equal((await hf.schedules.list())[1]?.paused, false);

  const triggered = await place.json<{ id: string; duplicate: boolean }>(["schedules", "trigger", "report"]);
  const made = await hf.jobs.get(triggered.id);
  assert.deepEqual([made?.name, made?.input, triggered.duplicate], ["report", { days: 1 }, false]);
  const { stdout } = await place.run(["schedules", "trigger", "a long key, 長い鍵"]);
  assert.match(stdout, /^Enqueued job \w+\.\n$/);
  assert.match((await place.run(["schedules", "trigger", "a long key, 長い鍵"])).stdout, /is not finished yet\.\n$/);

  assert.deepEqual((await place.run(["schedules", "remove", "report"])).stdout, "Removed report.\n");
  assert.deepEqual(
    (await hf.schedules.list()).map(({ key }) => key),
    ["a long key, 長い鍵"],
  );
});

for (const act of ["pause", "resume", "trigger", "remove"]) {
  test(`${act} of a schedule that is not there is refused`, async () => {
    const { error } = await place.json<JsonError>(["schedules", act, "absent"], 1);
    assert.equal(error.code, "NO_SUCH_SCHEDULE");
    assert.match(error.hint, /a long key/);
  });
}

test("where there are none, it says so", async () => {
  const empty = await Place.make();
  await (await open(empty.db)).close();
  assert.equal((await empty.run(["schedules"])).stdout, "No schedules.\n");
  assert.deepEqual(await empty.json(["schedules"]), { items: [] });
  await empty.remove();
});
