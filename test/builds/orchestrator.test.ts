import assert from "node:assert/strict";
import { join } from "node:path";
import { type Build, items, open, pipeline } from "../../src/index.ts";
import { testClock } from "../../src/testing/index.ts";
import { breakOrchestratorLock, buildById, leadOf, type OrchestratorLockRow } from "../../src/store/builds.ts";
import { counts, outputsOf, refusal, test, type Yard, yard } from "./parts.ts";

/** Numbers of which those from three on wait to be let go. */
function slow({ ran }: Yard, given: { many?: number; holds?: Promise<void>; version?: number; key?: string } = {}) {
  const { many = 6, holds = Promise.resolve(), version = 1, key = "k" } = given;
  return pipeline("slow")
    .source(items(() => Array.from({ length: many }, (_, n) => n), { id: (n) => `n${n}` }))
    .stage("first", {}, ({ input }) => (ran.push(`first ${input}`), input))
    .stage("second", { version, key }, async ({ input }) => {
      ran.push(`second ${input}`);
      if (input >= 3) await holds;
      return input;
    });
}

/** So many of them wait. */
async function holding({ ran }: Yard, many: number): Promise<void> {
  while (ran.filter((one) => /^second ([3-9]|\d\d)/.test(one)).length < many) {
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}

test("two builds of one pipeline do not run at once, and the error names the orchestrator; other pipelines run", async (t) => {
  const here = await yard(t);
  const { promise, resolve } = Promise.withResolvers<void>();
  const docs = slow(here, { holds: promise });
  const first = await here.hf.builds.start(docs);
  await assert.rejects(here.hf.builds.start(docs), refusal("LOCK_CONFLICT", new RegExp(`${first.id}.*process ${process.pid}`)));
  await assert.rejects(here.hf.builds.resume(docs, first.id), refusal("LOCK_CONFLICT"));
  await here.succeed(
    pipeline("other")
      .source(items(() => [1], { id: String }))
      .stage("say", {}, () => 1),
  );
  resolve();
  assert.equal((await first.done()).state, "SUCCESS");
  await here.succeed(docs);
});

test("a stopped build lets its attempts end, is CRASHED with the reason stopped, and can be resumed", async (t) => {
  const here = await yard(t);
  const { promise, resolve } = Promise.withResolvers<void>();
  const docs = slow(here, { holds: promise, many: 40 });
  const handle = await here.hf.builds.start(docs, { concurrency: 2 });
  await holding(here, 2);
  const stopping = handle.stop();
  setTimeout(resolve, 5);
  const left = await stopping;
  assert.deepEqual([left.state, left.reason], ["CRASHED", "stopped"]);
  assert.deepEqual(await handle.done(), left);
  assert.equal(await leadOf(here.hf.engine.store.builds, "slow"), null);
  const built = await (await here.hf.builds.resume(docs, handle.id)).done();
  assert.equal(built.state, "SUCCESS", built.reason);
  assert.deepEqual(counts(built, "second"), [40, 0, 0, 0]);
  assert.equal(new Set(here.ran).size, here.ran.length, "nothing ran twice");
});

test("a build stopped with nothing left to do ends as usual", async (t) => {
  const here = await yard(t);
  const { promise, resolve } = Promise.withResolvers<void>();
  const docs = slow(here, { holds: promise });
  const handle = await here.hf.builds.start(docs);
  await holding(here, 3);
  const stopping = handle.stop();
  setTimeout(resolve, 5);
  assert.equal((await stopping).state, "SUCCESS");
});

test("a signal stops a build, and an aborted one starts nothing", async (t) => {
  const here = await yard(t);
  const controller = new AbortController();
  const { promise, resolve } = Promise.withResolvers<void>();
  const docs = slow(here, { holds: promise, many: 40 });
  const handle = await here.hf.builds.start(docs, { signal: controller.signal, concurrency: 2 });
  await holding(here, 2);
  controller.abort();
  setTimeout(resolve, 5);
  assert.equal((await handle.done()).reason, "stopped");
  await assert.rejects(here.hf.builds.start(docs, { signal: controller.signal }), { name: "AbortError" });
});

test("closing the database leaves a build that resumes at the next open", async (t) => {
  const here = await yard(t);
  const { promise, resolve } = Promise.withResolvers<void>();
  const docs = slow(here, { holds: promise, many: 40 });
  const place = [join(here.folder, "work.db"), { artifacts: join(here.folder, "artifacts") }] as const;
  const hf = await open(...place);
  const handle = await hf.builds.start(docs, { concurrency: 2 });
  await holding(here, 2);
  const closed = hf.close();
  setTimeout(resolve, 5);
  await closed;
  const left = await handle.done();
  assert.deepEqual([left.state, left.reason], ["CRASHED", "stopped"]);
  await assert.rejects(hf.builds.start(docs), refusal("CLOSED"));
  const reopened = await open(...place);
  const built = await (await reopened.builds.resume(docs, handle.id)).done();
  await reopened.close();
  assert.equal(built.state, "SUCCESS");
  assert.equal(new Set(here.ran).size, here.ran.length, "nothing ran twice");
});

test("a build resumes only with the same stages, versions, keys and source", async (t) => {
  const here = await yard(t);
  const { promise, resolve } = Promise.withResolvers<void>();
  const docs = slow(here, { holds: promise, many: 30 });
  const handle = await here.hf.builds.start(docs, { concurrency: 1 });
  await holding(here, 1);
  setTimeout(resolve, 5);
  const { id, state } = await handle.stop();
  assert.equal(state, "CRASHED");
  for (const other of [slow(here, { many: 30, version: 2 }), slow(here, { many: 30, key: "another" })]) {
    await assert.rejects(here.hf.builds.resume(other, id), refusal("PIPELINE_CHANGED", /second/));
  }
  const more = slow(here, { many: 30 }).stage("third", {}, () => 1);
  await assert.rejects(here.hf.builds.resume(more, id), refusal("PIPELINE_CHANGED", /third/));
  assert.equal((await here.hf.builds.get(id))?.state, "CRASHED");
  here.taken();
  const built = await here.succeed(more);
  assert.equal((await here.hf.builds.get(id))?.state, "ABANDONED", "one that is started takes its place");
  const [ran = 0, cached = 0] = counts(built, "first");
  assert.equal(ran + cached, 30);
  assert.ok(cached > 0, "what was done is reused");
});

test("an ended or unknown build is not resumed", async (t) => {
  const here = await yard(t);
  const docs = slow(here);
  const { id } = await here.succeed(docs);
  await assert.rejects(here.hf.builds.resume(docs, id), refusal("BUILD_STATE"));
  await assert.rejects(here.hf.builds.abandon(id, "why not"), refusal("BUILD_STATE"));
  await assert.rejects(here.hf.builds.resume(docs, "b00000000000000000"), refusal("NO_SUCH_BUILD"));
  assert.equal(await here.hf.builds.get("b00000000000000000"), null);
});

test("an abandoned active build stops, and the next one reuses what still ends", async (t) => {
  const here = await yard(t);
  const { promise, resolve } = Promise.withResolvers<void>();
  const docs = slow(here, { holds: promise });
  const handle = await here.hf.builds.start(docs);
  await holding(here, 3);
  const abandoned = await here.hf.builds.abandon(handle.id, "wrong files");
  assert.deepEqual([abandoned.state, abandoned.reason], ["ABANDONED", "wrong files"]);
  resolve();
  assert.deepEqual((await handle.done()).state, "ABANDONED");
  await here.succeed(docs);
  assert.equal(new Set(here.ran).size, here.ran.length, "what was paid for is kept");
});

test("progress shows a build as it proceeds, and ends with its end", async (t) => {
  const here = await yard(t);
  const { promise, resolve } = Promise.withResolvers<void>();
  const handle = await here.hf.builds.start(slow(here, { holds: promise }));
  const seen: Build[] = [];
  for await (const build of handle.progress()) {
    seen.push(build);
    if (here.ran.length === 12) resolve();
  }
  assert.equal(seen.at(-1)?.state, "SUCCESS");
  assert.deepEqual(seen.at(-1), await handle.done());
  assert.ok(seen.length >= 2);
  const done = seen.map(({ stages }) => stages["second"]?.ran ?? 0);
  assert.deepEqual(
    done,
    done.toSorted((a, b) => a - b),
  );
  const after: Build[] = [];
  for await (const build of handle.progress()) after.push(build);
  assert.equal(after.at(-1)?.state, "SUCCESS");
});

test("builds are listed in creation order, page by page, by pipeline and state", async (t) => {
  const here = await yard(t);
  const ids: string[] = [];
  for (let n = 0; n < 5; n++) ids.push((await here.succeed(slow(here))).id);
  const first = await here.hf.builds.list({ pipeline: "slow", limit: 2 });
  const second = await here.hf.builds.list({ pipeline: "slow", limit: 9, after: first.next as string });
  assert.deepEqual(
    [...first.items, ...second.items].map(({ id }) => id),
    ids,
  );
  assert.deepEqual((await here.hf.builds.list({ state: "FAILED" })).items, []);
  assert.deepEqual((await here.hf.builds.list({ pipeline: "none" })).items, []);
  await assert.rejects(here.hf.builds.list({ state: "NOPE" as never }), refusal("OPTION_INVALID", /state .*"NOPE"/));
});

test("each transition has an event and an audit entry, in order, with its own key", async (t) => {
  const here = await yard(t);
  const told: { type: string; dedupeKey: string; data: unknown }[] = [];
  const unsubscribe = here.hf.events.subscribe((event) => void told.push(event), { types: ["build.*"] });
  const docs = pipeline("dear", { budget: { usd: 1 } })
    .source(items(() => [1, 2, 3], { id: (n) => `n${n}` }))
    .stage("pay", { estimate: () => ({ usd: 1 }) }, ({ cost }) => cost({ usd: 1 }));
  const paused = await here.build(docs);
  const token = await here.hf.builds.mintToken(paused.id);
  await here.hf.builds.approve(paused.id, { token, budget: { usd: 2 } });
  const again = await (await here.hf.builds.resume(docs, paused.id)).done();
  assert.equal(again.state, "BUDGET_PAUSE");
  await (await here.hf.builds.resume(docs, paused.id, { token: again.token ?? "", budget: { usd: 3 } })).done();
  const types = [
    "build.started",
    "build.paused",
    "build.token_minted",
    "build.approved",
    "build.resumed",
    "build.paused",
    "build.resumed",
    "build.succeeded",
  ];
  while (told.length < types.length) await new Promise((resolve) => setImmediate(resolve));
  await unsubscribe();
  assert.deepEqual(
    told.map(({ type }) => type),
    types,
  );
  assert.equal(new Set(told.map(({ dedupeKey }) => dedupeKey)).size, types.length);
  const audit = await here.hf.engine.store.audit.page({ after: 0, limit: 99, subject: paused.id });
  assert.deepEqual(
    audit.map(({ action }) => action),
    types,
  );
  assert.doesNotMatch(JSON.stringify([told, audit]), new RegExp(token));
});

test("a worker with other code leaves a build to workers with the same code", async (t) => {
  const here = await yard(t);
  const worker = here.hf.work([slow(here, { key: "another" })], { concurrency: 2 });
  const built = await here.build(slow(here), { concurrency: 8 });
  await worker.stop();
  assert.deepEqual([built.state, built.errors], ["SUCCESS", []]);
  assert.equal(new Set(here.ran).size, here.ran.length);
});

test("a worker on a pipeline that is not its orchestrator waits for a build, and then works on it", async (t) => {
  const here = await yard(t);
  const docs = slow(here);
  const worker = here.hf.work([docs]);
  const built = await here.succeed(docs);
  await worker.stop();
  assert.equal(Object.keys(await outputsOf(built, "second")).length, 6);
  assert.equal(new Set(here.ran).size, here.ran.length);
});

test("an orchestrator whose heartbeat finds another token stops and writes nothing", async () => {
  const clock = testClock();
  await using hf = await open(":memory:", { clock, log: false });
  const { promise, resolve } = Promise.withResolvers<void>();
  const ran: string[] = [];
  const docs = slow({ ran } as Yard, { holds: promise });
  const handle = await hf.builds.start(docs);
  while (ran.filter((one) => one.startsWith("second")).length < 6) await clock.advance(1);
  const { builds, audit } = hf.engine.store;
  const { hash, description } = (await buildById(builds, handle.id)) as { hash: string; description: string };
  const {
    pipeline: _,
    build: __,
    acquiredAt: ___,
    beatAt: ____,
    ...lead
  } = (await leadOf(builds, "slow")) as OrchestratorLockRow;
  assert.equal(await breakOrchestratorLock(builds, "slow", { by: "operator" }), true);
  const broken = await buildById(builds, handle.id);
  assert.deepEqual([broken?.state, broken?.reason], ["CRASHED", "orchestrator_lost"], "in the transaction that broke the lock");
  await builds.start({ build: handle.id, hash, description, lead: { ...lead, token: "another" } });
  const seen = async () => [
    await buildById(builds, handle.id),
    await builds.orchestratorLocks(),
    await audit.page({ after: 0, limit: 99, subject: handle.id }),
  ];
  const before = await seen();
  const done = handle.done();
  const over = done.then(() => true);
  for (let beat = 0; beat < 3; beat++) await clock.advance("5s");
  assert.deepEqual(await seen(), before, "the build is that of the other token");
  resolve();
  while (!(await Promise.race([over, clock.advance(50).then(() => false)])));
  assert.equal((await done).state, "ACTIVE", "it is left to the other");
  assert.deepEqual((await builds.orchestratorLocks()).length, 1);
  assert.equal(await breakOrchestratorLock(builds, "slow", { by: "operator" }), true);
});
