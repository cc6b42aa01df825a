import assert from "node:assert/strict";
import { test } from "node:test";
import { checkInvariants, untilDone } from "./invariants.ts";
import { after, workJob } from "./jobs.ts";
import { randomFrom, SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { passes, type Scene } from "./scene.ts";
import type { Child } from "./spawn.ts";
import { inFile, wherever } from "./wherever.ts";

const LASTS = LONG ? 60_000 : 2_500;
/** Generous: no process waits for it where one has died at a point. */
const PATIENCE = 30_000;
const PROCESSES = 4;
const POINTS = ["tick", "schedule", "claim", "settle"].flatMap((operation) =>
  ["begun", "written", "committed"].map((moment) => `${operation}:${moment}`),
);
const SECOND = 1_000;
/** How many ticks a run needs to mean something. */
const TICKS = 3;

wherever((stage, place) => {
  test("four processes with one schedule create one job for each tick, at its second", inFile(place), async (t) => {
    const scene = await stage(t);
    const children = Array.from({ length: PROCESSES }, () => scene.start("scheduler"));
    for (const child of children) await child.next("ready");
    while ((await ticksSoFar(scene)) < TICKS) await passes(100);
    for (const child of children) child.kill();
    const ticks = await ticksMade(scene);
    assert.ok(ticks.length >= TICKS, `${ticks.length} ticks`);
  });

  for (const seed of SEEDS)
    test(
      `processes with one schedule killed at ticks and at random create one job for each tick (HOLDFAST_SEED=${seed})`,
      inFile(place),
      async (t) => {
        const scene = await stage(t);
        const end = performance.now() + LASTS;
        const deaths = { inside: 0, outside: 0 };
        // On a slow machine processes take longer to start, and the first ones may all be too late for a tick.
        const isEnough = async () => deaths.inside > 0 && (await ticksSoFar(scene)) >= TICKS;

        /** One slot in the fleet: the process in it dies before long, and is replaced. */
        const keepKilling = async (place: number) => {
          const random = randomFrom(seed + place);
          while (performance.now() < end || (performance.now() < end + PATIENCE && !(await isEnough()))) {
            const child = scene.start("scheduler");
            await child.next("ready");
            const inside = random() < 0.7;
            // Half of them in the middle of a tick.
            const point = random() < 0.5 ? POINTS[Math.floor(random() * 3)] : POINTS[Math.floor(random() * POINTS.length)];
            if (inside) child.send({ type: "arm", point });
            const overdue = passes(inside ? 1_500 : random() * 1_000).then(() => false);
            if (await Promise.race([child.ended.then(() => true), overdue])) deaths.inside++;
            else deaths.outside++;
            await dies(child);
          }
        };
        await Promise.all(Array.from({ length: PROCESSES }, (_, place) => keepKilling(place)));
        const ticks = await ticksMade(scene);
        assert.ok(ticks.length >= TICKS, `${ticks.length} ticks`);
        assert.ok(deaths.inside > 0, "a process died at a point");
        t.diagnostic(`${ticks.length} ticks; ${deaths.inside} died at a point, ${deaths.outside} from outside`);
      },
    );
});

async function ticksSoFar(scene: Scene): Promise<number> {
  return (await scene.witness.query("select id from {jobs} where scheduled_for is not null")).length;
}

async function dies(child: Child): Promise<void> {
  child.kill();
  assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
}

/** Makes up for what is due, stops the schedule, and checks that the ticks have a job each: none without, none with two. */
async function ticksMade(scene: Scene): Promise<number[]> {
  const hf = await scene.open();
  const worker = hf.work([workJob(scene.effects), after]);
  await hf.engine.scheduler.check();
  await hf.schedules.pause("work");
  await untilDone(hf);
  await worker.stop();
  const [schedule] = await hf.schedules.list();
  const made = await scene.witness.query("select scheduled_for as at from {jobs} where scheduled_for is not null order by 1");
  const ticks = made.map(({ at }) => Number(at));
  const first = ticks[0] ?? assert.fail("no tick has a job");
  const expected = Array.from({ length: ((schedule?.nextAt ?? 0) - first) / SECOND }, (_, i) => first + i * SECOND);
  assert.deepEqual(ticks, expected, "every second from the first to the last that is dealt with, each once");
  const jobs = await checkInvariants(scene, hf);
  assert.deepEqual(new Set(jobs.map(({ state }) => state)), new Set(["succeeded"]));
  assert.equal(jobs.filter(({ name }) => name === "work").length, ticks.length, "and no other jobs");
  return ticks;
}
