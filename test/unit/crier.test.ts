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
  crier.close();
});

test("nothing is told by a commit that nobody would hear, or that has nothing to tell", async () => {
  const alone = new Crier("holdfast", "me", async () => []);
  assert.equal(alone.along(READY), null);
  const crier = await heard();
  await along(crier);
  await passes(6);
  assert.equal(crier.along(new Set()), null);
  crier.close();
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
  crier.close();
});
