import assert from "node:assert/strict";
import { suite } from "node:test";
import { z } from "zod";
import { type Holdfast, job, type Schedule } from "../../src/index.ts";
import { drain } from "../../src/testing/index.ts";
import type { ScheduleOptions } from "../../src/engine/schedules.ts";
import { code, file, memory, seeAll, stage, test, unchecked } from "./parts.ts";

const MINUTE = 60_000;
const HOUR = 3_600_000;
const DAY = 86_400_000;

/** A job that writes down for when each of its runs was scheduled. */
function recorder(name = "tidy") {
  const ran: (number | undefined)[] = [];
  const def = job<{ what?: string } | null>({ name, run: ({ scheduledFor }) => void ran.push(scheduledFor?.getTime()) });
  return { def, ran };
}

suite("a schedule", () => {
  test("a schedule creates one job at each tick, which knows its scheduled time", async (t) => {
    const { hf, clock } = await memory(t);
    const start = clock.now();
    const { def, ran } = recorder();
    const schedule = await hf.schedule(def, { cron: "*/5 * * * *", input: null });
    const expected: Schedule = {
      key: "tidy",
      job: "tidy",
      cron: "*/5 * * * *",
      timezone: "UTC",
      paused: false,
      nextAt: start + 5 * MINUTE,
    };
    assert.deepEqual(schedule, expected);
    hf.work([def]);
    await clock.advance("16m");
    assert.deepEqual(ran, [start + 5 * MINUTE, start + 10 * MINUTE, start + 15 * MINUTE]);
    assert.deepEqual(await hf.schedules.list(), [{ ...expected, lastAt: start + 15 * MINUTE, nextAt: start + 20 * MINUTE }]);
  });

  test("a schedule ticks to the millisecond, and a job without a schedule has no scheduled time", async (t) => {
    const { hf, clock } = await memory(t);
    const { def, ran } = recorder();
    await clock.advance(12_345);
    await hf.schedule(def, { cron: "* * * * *", input: null });
    hf.work([def]);
    await clock.advance(MINUTE - 12_345 - 1);
    assert.deepEqual(ran, []);
    await clock.advance(1);
    assert.equal(ran.length, 1);
    await hf.enqueue(def, null);
    await clock.advance(1);
    assert.deepEqual(ran, [clock.now() - 1, undefined]);
  });

  test("a schedule created or resumed beside a running worker ticks on time", async (t) => {
    const { hf, clock } = await memory(t);
    const { def, ran } = recorder();
    hf.work([def]);
    await clock.advance("12s");
    await hf.schedule(def, { cron: "* * * * * *", input: null });
    await clock.advance("1s");
    assert.deepEqual(ran, [clock.now()]);
    await hf.schedules.pause("tidy");
    await clock.advance("12s");
    await hf.schedules.resume("tidy");
    await clock.advance("1s");
    assert.deepEqual(ran, [clock.now() - 13_000, clock.now()]);
  });

  test("a schedule ticks in its time zone", async (t) => {
    const { hf } = await memory(t, Date.UTC(2026, 6, 1));
    const { def } = recorder();
    const at = async (timezone: string) =>
      new Date((await hf.schedule(def, { key: timezone, cron: "30 2 * * *", timezone, input: null })).nextAt).toISOString();
    assert.equal(await at("Europe/Berlin"), "2026-07-01T00:30:00.000Z");
    assert.equal(await at("America/New_York"), "2026-07-01T06:30:00.000Z");
    assert.equal(await at("Asia/Kolkata"), "2026-07-01T21:00:00.000Z");
  });

  test("a schedule creates jobs in the process that created it, without a worker", async (t) => {
    const { hf, clock } = await memory(t);
    const { def } = recorder();
    await hf.schedule(def, { cron: "* * * * *", input: null });
    await clock.advance("2m");
    assert.deepEqual(
      (await seeAll(hf)).map(({ state, runAt }) => [state, runAt]),
      [
        ["pending", clock.now() - MINUTE],
        ["pending", clock.now()],
      ],
    );
  });

  test("a schedule ticks once over all processes, and continues while one is left", async (t) => {
    const { clock, another } = await file(t);
    const { def, ran } = recorder();
    const handles = [await another(), await another(), await another()];
    const start = clock.now();
    for (const hf of handles) {
      await hf.schedule(def, { cron: "*/10 * * * * *", input: null });
      hf.work([def]);
    }
    await clock.advance("1m");
    await handles[0]?.close();
    await handles[1]?.close();
    await clock.advance("1m");
    const ticks = Array.from({ length: 12 }, (_, i) => start + (i + 1) * 10_000);
    assert.deepEqual(ran.toSorted(), ticks);
  });

  test("a worker applies schedules that another process creates, changes or removes within seconds", async (t) => {
    const { clock, another } = await file(t);
    const { def, ran } = recorder();
    const [worker, other] = [await another(), await another()];
    worker.work([def]);
    await clock.advance("10s");
    await other.schedule(def, { cron: "0 * * * *", input: null });
    await other.schedule(def, { cron: "30 * * * *", input: null });
    await other.close();
    await clock.advance("65m");
    assert.deepEqual(ran, [Date.UTC(2026, 0, 1, 0, 30)]);
    const third = await another();
    await third.schedules.remove("tidy");
    await third.close();
    await clock.advance("1h");
    assert.equal(ran.length, 1);
  });

  test("a scheduled job has the options of its definition, and its input as given", async (t) => {
    const { hf, clock } = await memory(t);
    const def = job({
      name: "report",
      queue: "reports",
      version: 3,
      retry: { attempts: 7 },
      input: z.object({ day: z.string().transform(Number) }),
      run: () => {},
    });
    await hf.schedule(def, { cron: "@hourly", input: { day: "5" } });
    await clock.advance("1h");
    await using claim = await hf.claim(def, { worker: "me" });
    assert.deepEqual([claim?.job.queue, claim?.job.input], ["reports", { day: "5" }]);
    const old = job({ name: "report", version: 2, run: () => {} });
    await clock.advance("1h");
    assert.equal(await hf.claim(old, { worker: "me" }), null, "the version is the definition's");
  });

  test("a schedule saved again at a restart neither loses nor repeats a tick", async (t) => {
    const { clock, another } = await file(t);
    const { def, ran } = recorder();
    const options = { cron: "0 * * * *", input: null };
    const first = await another();
    const start = clock.now();
    await first.schedule(def, options);
    await first.close();
    await clock.advance("61m");
    const second = await another();
    const { nextAt } = await second.schedule(def, options);
    assert.equal(nextAt, start + HOUR, "it is still due");
    second.work([def]);
    await clock.advance("1s");
    await second.schedule(def, { ...options, input: { what: "new" } });
    await second.schedule(def, { ...options, input: { what: "newer" } });
    await clock.advance("1h");
    assert.deepEqual(ran, [start + HOUR, start + 2 * HOUR]);
    assert.deepEqual(
      (await seeAll(second)).map(({ input }) => input),
      [null, { what: "newer" }],
    );
    assert.equal((await second.schedules.list()).length, 1);
  });

  test("a schedule with a changed pattern starts again from now", async (t) => {
    const { hf, clock } = await memory(t);
    const { def } = recorder();
    await hf.schedule(def, { cron: "0 * * * *", input: null });
    await clock.advance("30m");
    const changed = await hf.schedule(def, { cron: "15 * * * *", input: null });
    assert.equal(changed.nextAt, clock.now() + 45 * MINUTE);
    assert.deepEqual(await hf.schedules.list(), [changed]);
  });

  test("several keys make several schedules of one job", async (t) => {
    const { hf, clock } = await memory(t);
    const { def, ran } = recorder();
    await hf.schedule(def, { key: "b", cron: "@daily", input: null });
    await hf.schedule(def, { key: "a", cron: "@hourly", input: null });
    hf.work([def]);
    await clock.advance("1h");
    assert.deepEqual(
      (await hf.schedules.list()).map(({ key, job: name }) => [key, name]),
      [
        ["a", "tidy"],
        ["b", "tidy"],
      ],
    );
    assert.equal(ran.length, 1);
  });
});

suite("ticks that came due while no process was there", () => {
  test("of missed ticks, the newest runs once by default", async (t) => {
    assert.deepEqual(await ranAfter(t, 5 * HOUR + MINUTE, {}), [5]);
  });

  test("missed ticks within `within` run once", async (t) => {
    assert.deepEqual(await ranAfter(t, 5 * HOUR + 20 * MINUTE, { within: "30m" }), [5]);
    assert.deepEqual(await ranAfter(t, 5 * HOUR + 40 * MINUTE, { within: "30m" }), []);
  });

  test('missed ticks are skipped with "skip", and a tick that is on time is not missed', async (t) => {
    assert.deepEqual(await ranAfter(t, 5 * HOUR + MINUTE, { missed: "skip" }), []);
    assert.deepEqual(await ranAfter(t, 5 * HOUR + 5_000, { missed: "skip" }), [5]);
  });

  test('missed ticks all run with "all", in order, back to a day or `within`', async (t) => {
    assert.deepEqual(await ranAfter(t, 3 * HOUR + MINUTE, { missed: "all" }), [1, 2, 3]);
    assert.deepEqual(await ranAfter(t, 6 * HOUR + MINUTE, { missed: "all", within: "2h" }), [5, 6]);
    const days = await ranAfter(t, 3 * DAY + MINUTE, { missed: "all" });
    assert.deepEqual([days.length, days[0], days.at(-1)], [24, 49, 72]);
  });

  test("thousands of missed ticks run in chunks", async (t) => {
    const ran = await ranAfter(t, HOUR + MINUTE, { missed: "all", cron: "* * * * * *", within: "20m" });
    assert.ok(ran.length >= 1_200 && ran.length <= 1_206, `${ran.length} ticks`);
    assert.equal(new Set(ran).size, ran.length, "none twice");
    assert.deepEqual(
      ran,
      ran.toSorted((a, b) => a - b),
      "in order",
    );
  });

  for (const [missed, expected] of [
    ["skip", []],
    ["once", [4]],
    ["all", [1, 2, 3, 4]],
  ] as const) {
    test(`ticks passed over by a clock set forward count as missed, with "${missed}"`, async (t) => {
      const { hf, clock } = await memory(t);
      const start = clock.now();
      const { def, ran } = recorder();
      await hf.schedule(def, { cron: "@hourly", input: null, missed });
      hf.work([def]);
      await clock.advance("1m");
      clock.set(start + 4 * HOUR + MINUTE);
      await clock.advance("6s");
      assert.deepEqual(
        ran.map((at) => ((at as number) - start) / HOUR),
        expected,
      );
    });
  }

  test("a clock set back repeats no tick", async (t) => {
    const { hf, clock } = await memory(t);
    const start = clock.now();
    const { def, ran } = recorder();
    await hf.schedule(def, { cron: "*/10 * * * *", input: null, missed: "all" });
    hf.work([def]);
    await clock.advance("31m");
    clock.set(start + 5 * MINUTE);
    await clock.advance("30m");
    assert.equal(ran.length, 3);
    await clock.advance("5m");
    assert.deepEqual(
      ran.map((at) => ((at as number) - start) / MINUTE),
      [10, 20, 30, 40],
    );
  });
});

suite("with overlap: false", () => {
  test("a tick is skipped while the last job is unfinished", async (t) => {
    const { hf, clock } = await memory(t);
    const { run, calls } = stage();
    const def = job({ name: "slow", run });
    await hf.schedule(def, { cron: "* * * * *", input: null, overlap: false });
    hf.work([def]);
    await clock.advance("3m");
    assert.equal(calls.length, 1);
    calls[0]?.end();
    await clock.advance("1m");
    assert.equal(calls.length, 2);
    assert.equal((await seeAll(hf)).length, 2, "nothing is waiting either");
    calls[1]?.end();
  });

  test("without `overlap: false`, jobs run beside each other", async (t) => {
    const { hf, clock } = await memory(t);
    const { run, calls } = stage();
    const def = job({ name: "slow", run });
    await hf.schedule(def, { cron: "* * * * *", input: null });
    hf.work([def]);
    await clock.advance("3m");
    assert.equal(calls.length, 3);
    for (const call of calls) call.end();
  });
});

suite("by hand", () => {
  test("a paused schedule stays paused over restarts, and ticks during the pause are not missed ticks", async (t) => {
    const { clock, another } = await file(t);
    const start = clock.now();
    const { def, ran } = recorder();
    const options = { cron: "@hourly", input: null, missed: "all" } as const;
    const first = await another();
    await first.schedule(def, options);
    await first.schedules.pause("tidy");
    await first.schedules.pause("tidy");
    await first.close();
    const second = await another();
    assert.equal((await second.schedule(def, options)).paused, true);
    second.work([def]);
    await clock.advance("150m");
    assert.deepEqual(ran, []);
    await second.schedules.resume("tidy");
    const [resumed] = await second.schedules.list();
    assert.deepEqual([resumed?.paused, resumed?.nextAt], [false, start + 3 * HOUR]);
    await second.schedules.resume("tidy");
    await clock.advance("30m");
    assert.deepEqual(ran, [start + 3 * HOUR]);
  });

  test("a triggered schedule creates one job now, and its ticks stay the same", async (t) => {
    const { hf, clock } = await memory(t);
    const start = clock.now();
    const { def, ran } = recorder();
    await hf.schedule(def, { cron: "@hourly", input: null });
    hf.work([def]);
    await clock.advance("10m");
    const { id, duplicate } = await hf.schedules.trigger("tidy");
    assert.equal(duplicate, false);
    await clock.advance("55m");
    assert.equal((await hf.jobs.get(id))?.state, "succeeded");
    assert.deepEqual(ran, [start + 10 * MINUTE, start + HOUR]);
  });

  test("a schedule is removed once", async (t) => {
    const { hf, clock } = await memory(t);
    const { def, ran } = recorder();
    await hf.schedule(def, { cron: "@hourly", input: null });
    assert.equal(await hf.schedules.remove("tidy"), true);
    assert.equal(await hf.schedules.remove("tidy"), false);
    hf.work([def]);
    await clock.advance("2h");
    assert.deepEqual(ran, []);
  });

  test("an unknown schedule is rejected, with the names of those that exist", async (t) => {
    const { hf } = await memory(t);
    await hf.schedule(recorder().def, { cron: "@hourly", input: null });
    for (const act of ["pause", "resume", "trigger"] as const) {
      await assert.rejects(hf.schedules[act]("tody"), (error: unknown) => {
        code("NO_SUCH_SCHEDULE")(error);
        assert.match((error as { hint: string }).hint, /tidy/);
        return true;
      });
    }
  });

  test("a claim finds the job of a due tick although no worker runs", async (t) => {
    const { clock, another } = await file(t);
    const { def } = recorder();
    const first = await another();
    await first.schedule(def, { cron: "@hourly", input: null });
    await first.close();
    await clock.advance("1h");
    const second = await another();
    await using claim = await second.claim(def, { worker: "me" });
    assert.ok(claim);
  });

  test("a drain runs the job of a due tick", async (t) => {
    const { clock, another } = await file(t);
    const { def, ran } = recorder();
    const first = await another();
    await first.schedule(def, { cron: "@hourly", input: null });
    await first.close();
    await clock.advance("1h");
    assert.deepEqual(await drain(await another(), [def]), { ran: 1, failed: [] });
    assert.equal(ran.length, 1);
  });

  test("a waiting claim gets the job of the next tick", async (t) => {
    const { clock, another } = await file(t);
    const { def } = recorder();
    const first = await another();
    await first.schedule(def, { cron: "* * * * *", input: null });
    await first.close();
    const second = await another();
    const waiting = second.claim(def, { worker: "me", wait: "2m" });
    await clock.advance("61s");
    await using claim = await waiting;
    assert.equal(claim?.job.runAt, Date.UTC(2026, 0, 1, 0, 1));
  });
});

suite("a bad schedule is refused, and changes nothing:", () => {
  const BAD: [string, unknown, string][] = [
    ["no options", undefined, "OPTION_INVALID"],
    ["an unknown option", { cron: "@daily", input: { day: "1" }, catchUp: true }, "OPTION_INVALID"],
    ["no pattern", { input: { day: "1" } }, "CRON_INVALID"],
    ["a pattern that is none", { cron: "soon", input: { day: "1" } }, "CRON_INVALID"],
    ["a pattern that never comes", { cron: "0 0 31 2 *", input: { day: "1" } }, "CRON_INVALID"],
    ["a time zone that is none", { cron: "@daily", timezone: "Moon/Base", input: { day: "1" } }, "TIMEZONE_INVALID"],
    ["missed: often", { cron: "@daily", input: { day: "1" }, missed: "often" }, "OPTION_INVALID"],
    ["within that is none", { cron: "@daily", input: { day: "1" }, within: "a while" }, "DURATION_INVALID"],
    ["overlap: no", { cron: "@daily", input: { day: "1" }, overlap: "no" }, "OPTION_INVALID"],
    ["an empty key", { cron: "@daily", input: { day: "1" }, key: "" }, "NAME_INVALID"],
    ["input that does not fit", { cron: "@daily", input: { day: 1 } }, "INPUT_INVALID"],
    ["input that is no JSON", { cron: "@daily", input: { day: "1", at: new Date(0) } }, "NOT_JSON"],
  ];
  const def = job({ name: "report", input: z.looseObject({ day: z.string() }), run: () => {} });
  for (const [what, options, expected] of BAD) {
    test(what, async (t) => {
      const { hf } = await memory(t);
      const before = await hf.schedule(def, { cron: "@daily", input: { day: "1" } });
      await assert.rejects(hf.schedule(def, unchecked(options)), code(expected));
      assert.deepEqual(await hf.schedules.list(), [before]);
    });
  }

  test("a value that is not a definition, and a closed handle, are rejected", async (t) => {
    const { hf } = await memory(t);
    await assert.rejects(hf.schedule(unchecked<typeof def>({}), { cron: "@daily", input: { day: "1" } }), code("NOT_A_JOB"));
    await hf.close();
    await assert.rejects(hf.schedule(def, { cron: "@daily", input: { day: "1" } }), code("CLOSED"));
    for (const act of ["list", "remove", "pause", "resume", "trigger"] as const) {
      await assert.rejects(hf.schedules[act]("report"), code("CLOSED"));
    }
  });
});

suite("the compiler", () => {
  test("the compiler knows the input of a schedule", () => {
    const def = job({ name: "typed", input: z.object({ day: z.string().transform(Number) }), run: () => {} });
    compiled((hf) => hf.schedule(def, { cron: "@daily", input: { day: "1" } }));
    // @ts-expect-error what the schema makes is not what it takes
    compiled((hf) => hf.schedule(def, { cron: "@daily", input: { day: 1 } }));
    // @ts-expect-error no input
    compiled((hf) => hf.schedule(def, { cron: "@daily" }));
    // @ts-expect-error no such word
    compiled((hf) => hf.schedule(def, { cron: "@daily", input: { day: "1" }, missed: "sometimes" }));
    // @ts-expect-error an option that is none
    compiled((hf) => hf.schedule(def, { cron: "@daily", input: { day: "1" }, tz: "UTC" }));
  });
});

suite("trouble", () => {
  test("an error of the store is logged, and the tick is caught up", async (t) => {
    const { hf, clock, logged } = await memory(t);
    const { def, ran } = recorder();
    await hf.schedule(def, { cron: "* * * * *", input: null });
    hf.work([def]);
    await clock.advance("1m");
    t.mock.method(hf.engine.store.schedules, "tick", () => Promise.reject(new Error("disk full")), { times: 2 });
    t.mock.method(hf.engine.store.schedules, "list", () => Promise.reject(new Error("disk gone")), { times: 3 });
    await clock.advance("65s");
    assert.equal(ran.length, 2);
    assert.ok(logged.some(({ level, data }) => level === "warn" && JSON.stringify(data).includes("disk full")));
    assert.ok(logged.some(({ level, data }) => level === "warn" && JSON.stringify(data).includes("disk gone")));
  });

  test("a schedule with an unknown time zone does not stop the others", async (t) => {
    const { hf, clock, logged } = await memory(t);
    const { def, ran } = recorder();
    await hf.schedule(def, { cron: "* * * * *", input: null });
    await saveUnknownZone(hf, clock.now());
    hf.work([def]);
    await clock.advance("2m");
    assert.equal(ran.length, 2);
    const said = logged.filter(({ data }) => JSON.stringify(data)?.includes('"schedule":"elsewhere"'));
    assert.equal(said.length, 1, "and is said once");
    assert.equal(await hf.schedules.remove("elsewhere"), true);
  });
});

/** As a newer version of the time zones, in another process, would have. */
async function saveUnknownZone(hf: Holdfast, nextAt: number): Promise<void> {
  const policy = { attempts: 1, backoff: "fixed", delay: 0, maxDelay: 0, crashes: 1, onInterrupt: "retry", timeout: 1 } as const;
  await hf.engine.store.schedules.save({
    key: "elsewhere",
    cron: "* * * * *",
    timezone: "Mars/Olympus",
    missed: "once",
    within: null,
    overlap: true,
    nextAt,
    template: { name: "tidy", queue: "tidy", version: 1, policy, input: null, priority: 0, delay: 0 },
  });
}

/** A schedule of every hour, then no process for so long, then a worker. Returns what ran, in hours from the start. */
async function ranAfter(t: Parameters<typeof file>[0], away: number, options: Partial<ScheduleOptions<null>>): Promise<number[]> {
  const { clock, another } = await file(t);
  const start = clock.now();
  const { def, ran } = recorder();
  const before = await another();
  await before.schedule(def, { cron: "0 * * * *", input: null, ...options });
  await before.close();
  await clock.advance(away);
  (await another()).work([def]);
  await clock.advance("5s");
  return ran.map((at) => ((at as number) - start) / HOUR);
}

/** What the compiler checks is never run. */
function compiled(_program: (hf: Holdfast) => unknown): void {}
