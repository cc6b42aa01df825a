import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import { Crier } from "../../src/store/postgres/notifier.ts";

const READY: ReadonlySet<string> = new Set(["mail"]);

/** One whose notices are heard by somebody, and that knows it. */
async function heard(send: ConstructorParameters<typeof Crier>[2] = async () => [1]): Promise<Crier> {
  const crier = new Crier("holdfast", "me", send);
  crier.say(READY, []);
  while (crier.behind(READY, []) === null) await passes(1);
  crier.wentBehind();
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

test("once nobody could be told, no commit tells anything, nor is anything sent behind one, until a try aside went well", async (t) => {
  const tried: string[] = [];
  let isInVain = false;
  const crier = await heard(async (...sent) => {
    tried.push(String(sent[0]));
    if (isInVain) throw Object.assign(new Error("canceling statement due to lock timeout"), { code: "55P03" });
    return [1];
  });
  await along(crier);
  tried.length = 0;
  crier.hush();
  const now = performance.now.bind(performance);
  let later = 0;
  t.mock.method(performance, "now", () => now() + later);
  const isSilent = () => crier.along(READY) === null && crier.behind(READY, []) === null;
  for (isInVain of [true, false]) {
    later += 500;
    crier.say(READY, []);
    assert.ok(isSilent() && tried.length === 0, "not yet");
    later += 500;
    assert.ok(isSilent(), "and not by one who waits for his commit");
    crier.say(READY, []);
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(tried.length, 1);
    assert.match(tried.pop() as string, /'lock_timeout', '100ms'/);
  }
  later += 10;
  assert.ok(!isSilent());
  await crier.close();
});

test("what could not be told is tried again by itself, until it is told", async (t) => {
  const tried: unknown[][] = [];
  let isInVain = true;
  const crier = await heard(async (...sent) => {
    if (String(sent[0]).includes("100ms")) tried.push(sent);
    if (isInVain && tried.length > 0)
      throw Object.assign(new Error("canceling statement due to lock timeout"), { code: "55P03" });
    return [1];
  });
  while (crier.behind(READY, []) === null) await passes(1);
  const now = performance.now.bind(performance);
  let later = 0;
  t.mock.method(performance, "now", () => now() + later);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const afterAWhile = async () => {
    later += 1_100;
    t.mock.timers.tick(1_100);
    await new Promise((resolve) => setImmediate(resolve));
  };
  crier.hush();
  assert.equal(tried.length, 0);
  for (isInVain of [true, true, false]) await afterAWhile();
  assert.equal(tried.length, 3);
  for (const [, , text] of tried) assert.match(String(text), /"mail"/);
  await afterAWhile();
  assert.equal(tried.length, 3, "once it is told, that is all");
  t.mock.timers.reset();
  await crier.close();
});

test("while a notice is on its way behind a commit, the next one does not go there", async () => {
  const crier = await heard();
  while (crier.behind(READY, []) === null) await passes(1);
  await passes(6);
  assert.equal(crier.behind(READY, []), null);
  assert.equal(crier.along(READY), null);
  crier.wentBehind();
  assert.notEqual(crier.behind(READY, []), null);
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
