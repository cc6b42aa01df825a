import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test, type TestContext } from "node:test";
import { type Event, type Holdfast, type OpenOptions } from "../../src/index.ts";
import { delivered } from "../runtime/event-parts.ts";
import { isAuthentic, type Received, WebhookServer } from "../runtime/webhook-server.ts";
import { telling } from "./jobs.ts";
import { randomFrom, SEEDS } from "../seeds.ts";
import { LONG, testAllOnly } from "../selection.ts";
import { bestOfThree, passes, type Scene } from "./scene.ts";
import type { Child } from "./spawn.ts";
import { firstOnServer, inFile, MOMENTS, type Stage, variantsAt, wherever } from "./wherever.ts";

const SECRET = `whsec_${Buffer.from("thirty-two bytes, give or take a few").toString("base64")}`;
const LASTS = LONG ? 60_000 : 1_000;

/** What arrived, in the order it did. */
type Arrived = Pick<Event, "seq" | "type" | "dedupeKey">;

interface Outlet {
  name: string;
  /** Options of a deliverer of this sink. */
  told: object;
  arrived(): Arrived[];
}

/** Each way out, as the world on the other side sees it. */
const OUTLETS: Record<string, (t: TestContext, scene: Scene) => Outlet | Promise<Outlet>> = {
  "a file": (_t, scene) => {
    const path = join(scene.folder, "events.jsonl");
    return { name: "out", told: { sinks: { out: { type: "file", path } } }, arrived: () => linesOf(path) };
  },
  "a webhook": async (t) => {
    const server = await WebhookServer.start(t);
    const sinks: OpenOptions["sinks"] = { out: { type: "webhook", url: server.url, secret: SECRET } };
    return { name: "out", told: { sinks }, arrived: () => server.received.map(opened) };
  },
  "a subscriber": (_t, scene) => ({ name: "out", told: { subscribes: "out" }, arrived: () => linesOf(scene.effects) }),
};

/** What is found after a deliverer was killed there: whether something arrived, and whether its place says so. */
const POINTS = {
  "hold:begun": { arrived: false, moved: false },
  "hold:written": { arrived: false, moved: false },
  "hold:committed": { arrived: false, moved: false },
  "deliver:begun": { arrived: false, moved: false },
  "deliver:written": { arrived: true, moved: false },
  "advance:begun": { arrived: true, moved: false },
  "advance:written": { arrived: true, moved: false },
  "advance:committed": { arrived: true, moved: true },
} as const;

wherever((stage, place) => {
  for (const [nth, [kind, outletFor]] of Object.entries(OUTLETS).entries()) {
    describe(`a deliverer to ${kind}`, { concurrency: 2 }, () => {
      for (const [at, [point, found]] of Object.entries(POINTS).entries()) {
        test(
          `killed at ${point}: every event arrives, in order, and what comes twice can be told`,
          // Each point with one outlet in turn.
          at % 3 === nth ? firstOnServer(place, 3, at) : testAllOnly,
          async (t) => {
            const { scene, outlet, hf } = await stageFor(stage, t, outletFor);
            const child = await start(scene, outlet, { point });
            await hf.enqueueMany(telling, [1, 2, 3]);
            assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
            const before = outlet.arrived().filter(ofJob);
            assert.equal(before.length > 0, found.arrived);
            assert.equal((await behind(hf, outlet)) < 3, found.moved);

            await hf.enqueueMany(telling, [4, 5]);
            await start(scene, outlet);
            await delivered(hf, outlet.name);
            const after = await complete(hf, outlet);
            if (found.arrived && !found.moved) assert.ok(after.length > 5, "what was not written down came again");
          },
        );
      }

      test("a dead deliverer is replaced within a second by a waiting one", firstOnServer(place, 3, nth), async (t) => {
        const best = await bestOfThree(1_000, async () => {
          const { scene, outlet, hf } = await stageFor(stage, t, outletFor);
          const first = await start(scene, outlet);
          await hf.enqueue(telling, 1);
          await delivered(hf, outlet.name);
          await start(scene, outlet);
          first.kill();
          await first.end();
          const since = performance.now();
          await hf.enqueue(telling, 2);
          await delivered(hf, outlet.name);
          const took = performance.now() - since;
          assert.equal((await complete(hf, outlet)).length, 2, "nothing came twice");
          return took;
        });
        assert.ok(best < 1_000, `it took ${best} ms`);
      });
    });
  }

  for (const [operation, type] of [
    ["claim", "job.started"],
    ["settle", "job.succeeded"],
  ] as const) {
    for (const moment of variantsAt(place, MOMENTS, type.length)) {
      test(`a worker killed at ${operation}:${moment} leaves the event exactly if it leaves the change`, async (t) => {
        const scene = await stage(t);
        const hf = await scene.open();
        const { id } = await hf.enqueue(telling, 1);
        const child = scene.start("deliverer", { works: true, point: `${operation}:${moment}` });
        assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
        const told = (await hf.engine.store.events.page({ after: 0, limit: 10, job: id })).map((event) => event.type);
        const state = (await hf.jobs.get(id))?.state;
        assert.equal(told.includes(type), moment === "committed");
        assert.equal(state === (operation === "claim" ? "running" : "succeeded"), moment === "committed");
      });
    }
  }

  for (const moment of variantsAt(place, MOMENTS)) {
    test(`a deliverer killed at sink:${moment} leaves its sink from the commit on, and the next deliverer continues`, async (t) => {
      const { scene, outlet, hf } = await stageFor(stage, t, OUTLETS["a file"] as NonNullable<(typeof OUTLETS)[string]>);
      const child = scene.start("deliverer", { ...outlet.told, point: `sink:${moment}` });
      assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
      assert.equal((await hf.engine.store.events.sinks()).length, moment === "committed" ? 1 : 0);
      const { id } = await hf.enqueue(telling, 1);
      await start(scene, outlet);
      await hf.enqueue(telling, 2);
      await delivered(hf, outlet.name);
      const got = linesOf(join(scene.folder, "events.jsonl")) as Event[];
      assert.equal(got.filter(({ job }) => job === id).length, moment === "committed" ? 1 : 0, "from its first commit on");
      assert.equal(got.at(-1)?.seq, await hf.engine.store.events.position());
    });

    test(`a deliverer killed at trim:${moment} removes all old events or none, and no event that a sink still needs`, async (t) => {
      const { scene, outlet, hf } = await stageFor(stage, t, OUTLETS["a subscriber"] as NonNullable<(typeof OUTLETS)[string]>);
      await hf.enqueueMany(telling, [1, 2]);
      await hf.engine.store.events.position({ name: outlet.name, kind: "subscriber" });
      await hf.enqueueMany(telling, [3, 4]);
      await scene.backdate(8 * 86_400_000);
      const child = scene.start("deliverer", { ...outlet.told, point: `trim:${moment}` });
      assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
      const left = (await everyEvent(hf)).length;
      // It may have delivered before it cleaned up.
      if (moment === "committed") assert.ok(left <= 2, `${left} are left`);
      else assert.equal(left, 4);
      await start(scene, outlet);
      await delivered(hf, outlet.name);
      assert.equal(
        new Set(
          linesOf(scene.effects)
            .filter(ofJob)
            .map(({ seq }) => seq),
        ).size,
        2,
        "each of those after its entry",
      );
    });
  }

  for (const seed of SEEDS)
    test(
      `deliverers killed at random, with a webhook that fails now and then, skip nothing (HOLDFAST_SEED=${seed})`,
      inFile(place),
      async (t) => {
        const scene = await stage(t);
        const hf = await scene.open();
        const random = randomFrom(seed);
        const server = await WebhookServer.start(t);
        server.answer = () => ({ status: random() < 0.02 ? 500 : 204 });
        const path = join(scene.folder, "events.jsonl");
        const sinks: OpenOptions["sinks"] = {
          hook: { type: "webhook", url: server.url, secret: SECRET },
          file: { type: "file", path },
        };
        const told = { sinks, subscribes: "subscriber" };
        let killed = 0;
        const end = performance.now() + LASTS;
        const keepKilling = async () => {
          while (performance.now() < end) {
            const child = scene.start("deliverer", told);
            await child.next("ready");
            const point = Object.keys(POINTS)[Math.floor(random() * 8)] as string;
            await passes(random() * 150);
            if (random() < 0.5) child.send({ type: "arm", point });
            await Promise.race([child.ended, passes(random() * 300)]);
            child.kill();
            assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
            killed++;
          }
        };
        const produce = async () => {
          while (performance.now() < end) {
            await hf.enqueueMany(telling, Array<number>(1 + Math.floor(random() * 5)).fill(0));
            await passes(random() * 20);
          }
        };
        // From the first event on.
        for (const name of ["hook", "file", "subscriber"]) await hf.engine.store.events.position({ name, kind: "test" });
        await Promise.all([keepKilling(), keepKilling(), produce()]);
        server.answer = () => ({ status: 204 });
        await scene.start("deliverer", told).next("ready");
        for (const name of ["hook", "file", "subscriber"]) await delivered(hf, name);
        const lengths: number[] = [];
        for (const arrived of [() => linesOf(path), () => server.received.map(opened), () => linesOf(scene.effects)]) {
          lengths.push((await complete(hf, { name: "", told, arrived })).length);
        }
        t.diagnostic(`${killed} killed, ${(await everyEvent(hf)).length} events arrived ${lengths.join(", ")} times`);
      },
    );
});

async function stageFor(stage: Stage, t: TestContext, outletFor: (t: TestContext, scene: Scene) => Outlet | Promise<Outlet>) {
  const scene = await stage(t);
  return { scene, outlet: await outletFor(t, scene), hf: await scene.open() };
}

async function start(scene: Scene, outlet: Outlet, more: object = {}): Promise<Child> {
  const child = scene.start("deliverer", { ...outlet.told, ...more });
  await child.next("ready");
  return child;
}

async function behind(hf: Holdfast, { name }: Outlet): Promise<number> {
  return (await hf.engine.store.events.sinks()).find((sink) => sink.name === name)?.behind ?? Number.NaN;
}

/** Everything that happened has arrived; for the first time in order; and again only under its own dedupe key. */
async function complete(hf: Holdfast, outlet: Outlet): Promise<Arrived[]> {
  // That a deliverer died is an event, too, and may be told later than this.
  const arrived = outlet.arrived().filter(ofJob);
  const keys = new Map((await everyEvent(hf)).map(({ seq, dedupeKey }) => [seq, dedupeKey]));
  assert.equal(new Set(keys.values()).size, keys.size, "each event has a key of its own");
  for (const { seq, dedupeKey } of arrived) assert.equal(dedupeKey, keys.get(seq));
  const firsts = [...new Set(arrived.map(({ seq }) => seq))];
  assert.deepEqual(firsts, [...keys.keys()], "first arrivals are all there is, in order");
  return arrived;
}

async function everyEvent(hf: Holdfast): Promise<Event[]> {
  return hf.engine.store.events.page({ after: 0, limit: 1_000_000, types: ["job.enqueued"] });
}

function ofJob({ type }: Arrived): boolean {
  return type === "job.enqueued";
}

function opened(received: Received): Arrived {
  assert.ok(isAuthentic(received, SECRET));
  const { seq, type } = JSON.parse(received.body) as { seq: number; type: string };
  return { seq, type, dedupeKey: String(received.headers["webhook-id"]) };
}

/** Whole lines; a torn one at the end has not arrived. */
function linesOf(path: string): Arrived[] {
  if (!existsSync(path)) return [];
  return readFileSync(path, "utf8")
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line) as Arrived);
}
