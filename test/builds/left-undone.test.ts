import assert from "node:assert/strict";
import { buildById, type BuildRow } from "../../src/store/builds.ts";
import { items, pipeline } from "../../src/index.ts";
import { counts, ONCE, test, type Yard, yard } from "./parts.ts";

/** Numbers, of which the first fails, and no worker comes to the last. */
function many({ ran }: Yard, given: { fails?: boolean; holds?: Promise<void>; most?: number } = {}) {
  const { fails = true, holds = Promise.resolve(), most = 40 } = given;
  return pipeline("many", { maxFailures: 0 })
    .source(items(() => Array.from({ length: most }, (_, n) => n), { id: (n) => `n${String(n).padStart(4, "0")}` }))
    .stage("say", ONCE, async ({ input }) => {
      ran.push(`say ${input}`);
      if (fails && input === 0) throw new Error("bad");
      await holds;
      return input;
    })
    .stage("echo", {}, ({ input }) => (ran.push(`echo ${input}`), input));
}

test("a failed build leaves no pending work, in the build or its queue", async (t) => {
  const here = await yard(t);
  const built = await here.build(many(here), { concurrency: 1 });
  assert.deepEqual([built.state, built.reason], ["FAILED", "targets_failed"]);
  assert.ok(here.ran.length < 40);
  assert.deepEqual([built.stages["say"]?.left, built.stages["echo"]?.left], [0, 0]);
  await isClear(here, built.id);
  const said = here.ran.filter((one) => one.startsWith("say") && one !== "say 0").length;
  assert.deepEqual(counts(await here.succeed(many(here, { fails: false })), "say"), [40 - said, said, 0, 0]);
});

test("an abandoned build leaves no pending work, however much it had", async (t) => {
  const here = await yard(t);
  const { promise, resolve } = Promise.withResolvers<void>();
  const docs = many(here, { fails: false, holds: promise, most: 2_500 });
  const handle = await here.hf.builds.start(docs, { concurrency: 2 });
  while ((await rowOf(here, handle.id)).open < 2_500) await new Promise((next) => setTimeout(next, 5));
  const stopped = handle.stop();
  resolve();
  assert.equal((await stopped).state, "CRASHED");
  const { id, stages } = await here.hf.builds.abandon(handle.id, "too many");
  assert.deepEqual(
    Object.values(stages).map(({ left }) => left),
    [0, 0],
  );
  await isClear(here, id);
});

test("attempts that run when their build is abandoned end, and their results are kept", async (t) => {
  const here = await yard(t);
  const { promise, resolve } = Promise.withResolvers<void>();
  const handle = await here.hf.builds.start(many(here, { fails: false, holds: promise }), { concurrency: 2 });
  while (here.ran.length < 2) await new Promise((next) => setTimeout(next, 1));
  await here.hf.builds.abandon(handle.id, "wrong numbers");
  assert.equal((await here.hf.jobs.counts({ queue: "pipeline/many" })).pending, 0);
  resolve();
  const { stages } = await handle.done();
  assert.deepEqual([stages["say"]?.ran, stages["echo"]?.ran], [2, 0]);
  await isClear(here, handle.id);
  const before = here.ran.length;
  await here.succeed(many(here, { fails: false }));
  assert.equal(here.ran.length - before, 38 + 40);
});

async function rowOf({ hf }: Yard, id: string): Promise<BuildRow> {
  return (await buildById(hf.engine.store.builds, id)) as BuildRow;
}

async function isClear(here: Yard, id: string): Promise<void> {
  const { open, stages } = await rowOf(here, id);
  assert.deepEqual([open, ...stages.map((stage) => stage.open)], [0, 0, 0]);
  const { pending, waiting, running } = await here.hf.jobs.counts({ queue: "pipeline/many" });
  assert.deepEqual({ pending, waiting, running }, { pending: 0, waiting: 0, running: 0 });
  assert.deepEqual((await here.hf.jobs.list({ state: "pending" })).items, []);
  const queue = (await here.hf.queues.list()).find(({ name }) => name === "pipeline/many");
  assert.equal(queue?.counts.pending, 0);
}
