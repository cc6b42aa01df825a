import assert from "node:assert/strict";
import { job, type JobContext } from "../../src/index.ts";
import { code, memory, see, test } from "./parts.ts";

const BAD = "a\0b";
const echo = job<unknown, unknown>({ name: "echo", run: ({ input }) => input });

test("the character NUL is rejected in ids, keys and names before anything is written", async (t) => {
  const { hf } = await memory(t);
  const limited = job<unknown>({ name: "limited", limit: { key: () => BAD, concurrency: 1 }, run: () => null });
  for (const options of [{ id: BAD }, { key: BAD }, { after: [BAD] }]) {
    await assert.rejects(hf.enqueue(echo, 1, options), code("TEXT_INVALID"));
    await assert.rejects(
      hf.enqueueMany(echo, [1, 2], () => options),
      code("TEXT_INVALID"),
    );
  }
  await assert.rejects(hf.enqueue(limited, 1), code("TEXT_INVALID"));
  await assert.rejects(hf.jobs.get(BAD), code("TEXT_INVALID"));
  await assert.rejects(hf.jobs.cancel(BAD), code("TEXT_INVALID"));
  await assert.rejects(hf.jobs.retry(BAD), code("TEXT_INVALID"));
  await assert.rejects(hf.jobs.wait(BAD), code("TEXT_INVALID"));
  await assert.rejects(hf.jobs.watch(BAD).next(), code("TEXT_INVALID"));
  await assert.rejects(hf.jobs.list({ queue: BAD }), code("TEXT_INVALID"));
  await assert.rejects(hf.jobs.counts({ name: BAD }), code("TEXT_INVALID"));
  for (const name of [{ name: BAD }, { name: "a", queue: BAD }, { name: "a", queue: { name: BAD } }])
    assert.throws(() => job({ ...name, run: () => null }), code("NAME_INVALID"));
  await assert.rejects(async () => hf.lock(BAD).acquire("me", 1), code("NAME_INVALID"));
  assert.deepEqual(await hf.jobs.list(), { items: [] });
});

test("a follow-up with the character NUL is rejected in the handler's call", async (t) => {
  const { hf, clock } = await memory(t);
  const refused: unknown[] = [];
  const parent = job({
    name: "parent",
    run: ({ enqueue }: JobContext<null>) => {
      for (const options of [{ id: BAD }, { key: BAD }, { after: [BAD] }]) {
        try {
          enqueue(echo, 1, options);
        } catch (error) {
          refused.push(error);
        }
      }
    },
  });
  hf.work([parent]);
  const accepted = await hf.enqueue(parent, null);
  await clock.advance("1s");
  assert.equal((await hf.jobs.wait(accepted)).state, "succeeded");
  assert.equal(refused.length, 3);
  for (const error of refused) code("TEXT_INVALID")(error);
  assert.equal((await hf.jobs.counts({ name: "echo" })).pending, 0);
});

test("the character NUL is stored in inputs, outputs, errors, checkpoints and progress", async (t) => {
  const { hf, clock } = await memory(t);
  const saved: unknown[] = [];
  const odd = job({
    name: "odd",
    retry: { attempts: 1 },
    run: async ({ input, progress, checkpoint }: JobContext<string>) => {
      progress(0.5, BAD);
      await checkpoint.save(BAD);
      saved.push(await checkpoint.load());
      if (input === "throw") throw new Error(BAD);
      return input;
    },
  });
  hf.work([odd]);
  const [fine, fails] = await hf.enqueueMany(odd, [BAD, "throw"]);
  await clock.advance("1s");
  assert.equal((await hf.jobs.wait(fine?.id as string)).output, BAD);
  const { state, error } = await hf.jobs.wait(fails?.id as string);
  assert.deepEqual([state, error?.message], ["failed", BAD]);
  assert.deepEqual(saved, [BAD, BAD]);
  assert.deepEqual((await see(hf, fine?.id as string)).progress, { fraction: 0.5, message: "a\u{fffd}b" });
});
