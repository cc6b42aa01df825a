import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import { Crier } from "../../src/store/postgres/crier.ts";

const READY: ReadonlySet<string> = new Set(["mail"]);

/** One whose notices are heard by somebody, and that knows it. */
async function heard(): Promise<Crier> {
  const crier = new Crier("holdfast", "me", async () => [1]);
  crier.say(READY, []);
  while (crier.behind(READY, []) === null) await passes(1);
  return crier;
}

/** When the last notice is long enough ago. */
async function along(crier: Crier): Promise<[channel: string, text: string]> {
  for (;;) {
    const notice = crier.along(READY);
    if (notice !== null) return notice;
    await passes(1);
  }
}

test("a commit tells others by itself, and the next, right after it, does not", async () => {
  const crier = await heard();
  assert.match((await along(crier))[1], /mail/);
  assert.equal(crier.along(READY), null);
  await crier.close();
});

test("nothing is told by a commit that nobody would hear, or that has nothing to tell", async () => {
  const alone = new Crier("holdfast", "me", async () => []);
  assert.equal(alone.along(READY), null);
  const crier = await heard();
  await along(crier);
  await passes(6);
  assert.equal(crier.along(new Set()), null);
  await crier.close();
});

test("after a commit that told others and was slow, they are told behind the commits", async () => {
  const crier = await heard();
  await along(crier);
  crier.took(10);
  for (;;) {
    assert.equal(crier.along(READY), null);
    if (crier.behind(READY, []) !== null) break;
    await passes(1);
  }
  await crier.close();
});

test("what is untold at the end is told first, also what was committed just before", async () => {
  const told: string[] = [];
  const crier = new Crier("holdfast", "me", async (...sent) => {
    told.push(String(sent[2]));
    return [1];
  });
  crier.say(new Set(["first"]), []);
  crier.say(new Set(["second"]), []);
  process.nextTick(() => crier.say(new Set(["third"]), []));
  await crier.close();
  assert.deepEqual(
    told.map((text) => (JSON.parse(text) as string[][])[1]),
    [["first"], ["second", "third"]],
  );
});

test("a server that does not answer is not waited for at the end", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const crier = new Crier("holdfast", "me", () => new Promise(() => {}));
  crier.say(READY, []);
  const closing = crier.close();
  await new Promise((resolve) => setImmediate(resolve));
  t.mock.timers.tick(1_000);
  await closing;
});
