import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import { Notifier } from "../../src/store/postgres/change-feed.ts";

const MAIL = committed("mail");
const TIMEOUT = Object.assign(new Error("canceling statement due to lock timeout"), { code: "55P03" });

/** A notifier that knows that another process listens. */
async function heard(send: ConstructorParameters<typeof Notifier>[2] = async () => [1]): Promise<Notifier> {
  const notifier = new Notifier("holdfast", "me", send);
  notifier.add(MAIL);
  await behind(notifier);
  notifier.answered({ rows: [1] });
  return notifier;
}

/** The statement behind a commit, when the last notification was long enough ago. */
async function behind(notifier: Notifier): Promise<readonly unknown[]> {
  for (;;) {
    const statement = notifier.behind(MAIL);
    if (statement !== null) return statement;
    await passes(1);
  }
}

function committed(queue: string) {
  return { ready: new Set([queue]), ended: [] };
}

test("no notification follows a commit while no process listens, or if nothing others wait for changed", async () => {
  const alone = new Notifier("holdfast", "me", async () => []);
  alone.add(MAIL);
  await passes(5);
  assert.equal(alone.behind(MAIL), null);
  const notifier = await heard();
  await passes(5);
  assert.equal(notifier.behind({ ready: new Set(), ended: [] }), null);
  await notifier.close();
});

test("while one notification is in flight, the next waits", async () => {
  const notifier = await heard();
  assert.match(String((await behind(notifier))[2]), /mail/);
  await passes(5);
  assert.equal(notifier.behind(MAIL), null);
  notifier.answered({ rows: [1] });
  assert.notEqual(notifier.behind(MAIL), null);
  await notifier.close();
});

test("an undelivered notification is repeated once a second, and commits send no other until then", async (t) => {
  const tried: unknown[][] = [];
  let fails = false;
  const notifier = await heard(async (...sent) => {
    tried.push(sent);
    if (fails) throw TIMEOUT;
    return [1];
  });
  tried.length = 0;
  await behind(notifier);
  const now = performance.now.bind(performance);
  let later = 0;
  t.mock.method(performance, "now", () => now() + later);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const afterASecond = async () => {
    later += 1_100;
    t.mock.timers.tick(1_100);
    await new Promise((resolve) => setImmediate(resolve));
  };
  notifier.answered({ error: TIMEOUT });
  assert.equal(tried.length, 0);
  for (fails of [true, true, false]) {
    assert.equal(notifier.behind(MAIL), null);
    await afterASecond();
  }
  assert.equal(tried.length, 3);
  for (const [, , text] of tried) assert.match(String(text), /"mail"/);
  await afterASecond();
  assert.equal(tried.length, 3, "once it is delivered, that is all");
  assert.notEqual(notifier.behind(MAIL), null);
  t.mock.timers.reset();
  await notifier.close();
});

test("pending notifications are sent before the notifier closes", async () => {
  const sent: string[] = [];
  const notifier = new Notifier("holdfast", "me", async (...values) => {
    sent.push(String(values[2]));
    return [1];
  });
  notifier.add(committed("first"));
  notifier.add(committed("second"));
  process.nextTick(() => notifier.add(committed("third")));
  await notifier.close();
  assert.deepEqual(
    sent.map((text) => (JSON.parse(text) as string[][])[1]),
    [["first"], ["second", "third"]],
  );
});

test("close does not wait for a server that does not answer", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const notifier = new Notifier("holdfast", "me", () => new Promise(() => {}));
  notifier.add(MAIL);
  const closing = notifier.close();
  await new Promise((resolve) => setImmediate(resolve));
  t.mock.timers.tick(1_000);
  await closing;
});
