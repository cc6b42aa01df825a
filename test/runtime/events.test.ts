import assert from "node:assert/strict";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { execFile } from "node:child_process";
import { join } from "node:path";
import { describe, type TestContext } from "node:test";
import { type Event, type HoldfastError, job, open } from "../../src/index.ts";
import { delivered, happens, nameOf } from "./event-parts.ts";
import { apart, code, deferred, file, folder, memory, stage, test, unchecked } from "./parts.ts";

describe("a subscriber", () => {
  test("a subscriber gets complete events from its subscription on, in order", async (t) => {
    const { hf, clock } = await memory(t);
    await happens(hf, "before");
    const got: Event[] = [];
    hf.events.subscribe((event) => void got.push(event));
    await happens(hf, "a", "b", "c");
    await clock.advance(0);
    assert.deepEqual(got.map(nameOf), ["a", "b", "c"]);
    assert.deepEqual(got, await hf.engine.store.events.page({ after: 1, limit: 10 }));
    assert.match(got[0]?.dedupeKey ?? "", /^[0-9a-f]{64}$/);
    assert.equal(got[0]?.at, clock.now());
    assert.deepEqual(await hf.engine.store.events.sinks(), [], "nothing is stored about it");
  });

  test("a subscriber gets events that commit in the same turn as its subscription", async (t) => {
    for (const options of [{}, { name: "durable" }]) {
      const { hf, clock } = await memory(t);
      await hf.engine.store.events.position({ name: "a", kind: "test" });
      const got: string[] = [];
      hf.events.subscribe((event) => void got.push(nameOf(event)), options);
      void hf.engine.store.events.dropSink("a");
      await clock.advance(0);
      assert.deepEqual(got, ["a"], JSON.stringify(options));
    }
  });

  test("a subscriber gets one event at a time, the next after it has handled the last", async (t) => {
    const { hf, clock } = await memory(t);
    const on = stage<Event>();
    hf.events.subscribe(on.run as () => Promise<void>);
    await happens(hf, "a", "b");
    await on.called(1);
    await clock.advance("1h");
    assert.equal(on.calls.length, 1);
    on.calls[0]?.end();
    await on.called(2);
    assert.equal(nameOf(on.calls[1]?.context as Event), "b");
    on.calls[1]?.end();
  });

  test("a subscriber gets only the types it asked for, by full name or prefix", async (t) => {
    const { hf, clock } = await memory(t);
    const got: Record<string, number> = {};
    const asked = {
      all: undefined,
      exact: ["sink.forgotten"],
      prefix: ["queue.paused", "sink.*"],
      star: ["*"],
      none: ["queue.paused", "job.*"],
    };
    for (const [name, types] of Object.entries(asked)) {
      hf.events.subscribe(() => void (got[name] = (got[name] ?? 0) + 1), types === undefined ? {} : { types });
    }
    await happens(hf, "a", "b");
    await clock.advance(0);
    assert.deepEqual(got, { all: 2, exact: 2, prefix: 2, star: 2 });
  });

  test("a subscriber that throws gets the same event again after growing delays, and delays only itself", async (t) => {
    const { hf, clock, logged } = await memory(t);
    const tries: { name: string; at: number }[] = [];
    const other: string[] = [];
    hf.events.subscribe(
      (event) => {
        tries.push({ name: nameOf(event), at: clock.now() });
        if (tries.length < 12) throw new Error("no, thanks");
      },
      { name: "picky" },
    );
    hf.events.subscribe(async (event) => void other.push(nameOf(event)), { name: "easy" });
    await happens(hf, "a", "b");
    await clock.advance(0);
    assert.deepEqual(other, ["a", "b"]);
    const [, picky] = await hf.engine.store.events.sinks();
    assert.deepEqual([picky?.name, picky?.behind, picky?.failures, picky?.error], ["picky", 2, 1, "no, thanks"]);
    assert.deepEqual(logged[0]?.message, "delivering events failed; it is tried again");

    await clock.advance("2h");
    assert.deepEqual(
      tries.map(({ name }) => name),
      [...Array<string>(12).fill("a"), "b"],
    );
    const pauses = tries.slice(1, 12).map(({ at }, i) => at - (tries[i]?.at as number));
    for (const [i, pause] of pauses.entries()) {
      const full = Math.min(300_000, 1_000 * 2 ** i);
      assert.ok(pause >= full / 2 && pause <= full, `pause ${i} is ${pause}`);
    }
    assert.equal((await hf.engine.store.events.sinks())[1]?.failures, 0);
  });

  for (const options of [{}, { name: "durable" }]) {
    const which = "name" in options ? "a subscriber with a name" : "a subscriber without a name";
    test(`${which} that unsubscribes is awaited, and not called again`, async (t) => {
      const { hf, clock } = await memory(t);
      const on = stage<Event>();
      const off = hf.events.subscribe(on.run as () => Promise<void>, options);
      await happens(hf, "a", "b");
      await on.called(1);
      let ended = false;
      const end = off().then(() => (ended = true));
      await clock.advance("1h");
      assert.equal(ended, false);
      on.calls[0]?.end();
      await end;
      await happens(hf, "c");
      await clock.advance("1h");
      assert.equal(on.calls.length, 1);
      await off();
    });

    test(`${which} may unsubscribe and close its handle from inside the callback`, async (t) => {
      const { hf, clock, logged } = await memory(t);
      const got: string[] = [];
      const [ended, closed] = [deferred(), deferred()];
      const off = hf.events.subscribe(async (event) => {
        got.push(nameOf(event));
        await off();
        ended.resolve();
      }, options);
      await happens(hf, "a");
      await ended.promise;
      hf.events.subscribe(async () => {
        await hf.close();
        closed.resolve();
      }, options);
      await happens(hf, "b");
      await clock.advance("10s");
      await closed.promise;
      assert.deepEqual(got, ["a"]);
      assert.deepEqual(logged, []);
    });
  }

  test("invalid arguments of subscribe are rejected", async (t) => {
    const { hf } = await memory(t);
    for (const bad of [{ types: [] }, { types: ["a*b"] }, { types: [""] }, { types: "job.*" }, { type: ["a"] }, null]) {
      assert.throws(() => hf.events.subscribe(nothing, unchecked(bad)), code("OPTION_INVALID"), JSON.stringify(bad));
    }
    for (const [type, meant] of [
      ["job.suceeded", "job.succeeded"],
      ["jobs.*", "job.*"],
      ["jbo.*", "job.*"],
      ["job", "job.*"],
      ["weather", undefined],
    ] as const) {
      const subscribe = () => hf.events.subscribe(nothing, { types: ["*", "job.fail*", type] })();
      assert.throws(subscribe, ({ message, hint }: HoldfastError) => {
        assert.equal(message, `There is no event type "${type}".`);
        assert.equal(hint?.match(/Did you mean "(.*?)"/)?.[1], meant);
        return true;
      });
    }
    assert.throws(() => hf.events.subscribe(nothing, { name: "" }), code("NAME_INVALID"));
    assert.throws(() => hf.events.subscribe(unchecked({})), code("OPTION_INVALID"));
    await hf.close();
    assert.throws(() => hf.events.subscribe(nothing), code("CLOSED"));
  });
});

describe("a durable subscriber", () => {
  test("a durable subscriber gets the events of its absence, and none twice after a clean end", async (t) => {
    const { another, clock } = await file(t);
    const first = await another();
    const got: string[] = [];
    first.events.subscribe((event) => void got.push(nameOf(event)), { name: "mail" });
    await happens(first, "a", "b");
    await clock.advance(0);
    await first.close();
    const second = await another();
    await happens(second, "c", "d");
    assert.deepEqual(got, ["a", "b"]);
    const off = second.events.subscribe((event) => void got.push(nameOf(event)), { name: "mail" });
    await delivered(second, "mail");
    await off();
    assert.deepEqual(got, ["a", "b", "c", "d"]);
  });

  test("a durable subscriber advances over events that it did not ask for", async (t) => {
    const { hf, clock } = await memory(t);
    const got: string[] = [];
    const off = hf.events.subscribe((event) => void got.push(nameOf(event)), { name: "job", types: ["job.*"] });
    await happens(hf, "a", "b");
    await clock.advance("2s");
    const [view] = await hf.engine.store.events.sinks();
    assert.equal(view?.behind, 0);
    await happens(hf, "c");
    await clock.advance(0);
    await off();
    assert.equal((await hf.engine.store.events.sinks())[0]?.behind, 0);
    assert.deepEqual(got, []);
  });

  test("close waits briefly for a delivery in flight, and the position is kept", async (t) => {
    const { hf, path } = await alone(t);
    const on = stage<Event>();
    hf.events.subscribe(on.run as () => Promise<void>, { name: "s" });
    await happens(hf, "a", "b");
    await on.called(1);
    const closed = hf.close();
    on.calls[0]?.end();
    await closed;
    assert.deepEqual(await rest(path, "s"), ["b"]);
  });

  test("a durable subscriber that hangs does not block close, and gets its event again", async (t) => {
    const { hf, clock, path } = await alone(t);
    const on = stage<Event>();
    const off = hf.events.subscribe(on.run as () => Promise<void>, { name: "s" });
    await happens(hf, "a", "b");
    await on.called(1);
    const closed = hf.close();
    await clock.advance("6s");
    await closed;
    await off();
    on.calls[0]?.end();
    assert.deepEqual(await rest(path, "s"), ["a", "b"]);
  });

  test("a durable subscriber in two processes gets each event once, and the second takes over when the first exits", async (t) => {
    const { another, clock } = await file(t);
    const [one, two] = [await another(), await another()];
    const got: string[] = [];
    const off = one.events.subscribe((event) => void got.push(`1${nameOf(event)}`), { name: "s" });
    await clock.advance(0);
    two.events.subscribe((event) => void got.push(`2${nameOf(event)}`), { name: "s" });
    await happens(one, "a");
    await delivered(one, "s");
    // Both hear of it, one has it.
    await clock.advance("1s");
    assert.equal(got.length, 1);
    const second = got[0] === "1a" ? two : one;
    await (second === two ? off() : two.close());
    await happens(second, "b");
    await delivered(second, "s");
    assert.deepEqual(
      got.map((text) => text.slice(1)),
      ["a", "b"],
    );
    assert.notEqual(got[0]?.[0], got[1]?.[0]);
  });

  test("a slow durable subscriber keeps its right to deliver", async (t) => {
    const { another, clock } = await file(t);
    const [one, two] = [await another(), await another()];
    const on = stage<Event>();
    one.events.subscribe(on.run as () => Promise<void>, { name: "s" });
    await happens(one, "a");
    await on.called(1);
    const got: string[] = [];
    two.events.subscribe((event) => void got.push(nameOf(event)), { name: "s" });
    await clock.advance("10m");
    assert.deepEqual(got, []);
    on.calls[0]?.end();
    await delivered(one, "s");
    await clock.advance("1m");
    assert.deepEqual(got, []);
    assert.equal(on.calls.length, 1);
  });

  test("a durable subscriber that slept past its hold moves no position and waits for its turn", async (t) => {
    const { another, clock } = await file(t);
    const [one, two] = [await another(), await another()];
    const on = stage<Event>();
    one.events.subscribe(on.run as () => Promise<void>, { name: "s" });
    await happens(one, "a", "b");
    await on.called(1);
    const slow = stage<Event>();
    // As a host does that sleeps: the time of day has gone on, and its timers have not.
    clock.set(clock.now() + 60_000);
    two.events.subscribe(slow.run as () => Promise<void>, { name: "s" });
    await slow.called(1);
    assert.equal(nameOf(slow.calls[0]?.context as Event), "a", "it starts where the other's place is known to be");
    const before = (await two.engine.store.events.sinks())[0]?.cursor;
    on.calls[0]?.end();
    await clock.advance("1s");
    assert.equal((await two.engine.store.events.sinks())[0]?.cursor, before, "the late one's place is not written");
    assert.equal(on.calls.length, 1, "nor does it go on");
    slow.calls[0]?.end();
    await slow.called(2);
    slow.calls[1]?.end();
    await delivered(two, "s");
    assert.deepEqual(
      slow.calls.map(({ context }) => nameOf(context)),
      ["a", "b"],
    );
  });

  test("a durable subscriber that an operator removed starts again from now", async (t) => {
    const { hf, clock } = await memory(t);
    const got: string[] = [];
    hf.events.subscribe((event) => void got.push(nameOf(event)), { name: "s" });
    await happens(hf, "a");
    await clock.advance("1m");
    await hf.engine.store.events.dropSink("s");
    await clock.advance("1m");
    await happens(hf, "b");
    await clock.advance("1m");
    await happens(hf, "c");
    await clock.advance("1m");
    assert.equal(got[0], "a");
    assert.equal(got.at(-1), "c");
    assert.equal((await hf.engine.store.events.sinks())[0]?.behind, 0);
  });
});

test("events of two databases have different dedupe keys", async (t) => {
  const keys: string[] = [];
  for (const { hf } of [await memory(t), await memory(t)]) {
    await happens(hf, "a");
    for (const { dedupeKey } of await hf.engine.store.events.page({ after: 0, limit: 9 })) keys.push(dedupeKey);
  }
  assert.equal(keys.length, 2);
  assert.notEqual(keys[0], keys[1]);
});

test("a queue with events reports a job's whole life, and another queue only operators' actions", async (t) => {
  const { hf, clock } = await memory(t);
  const got: Event[] = [];
  hf.events.subscribe((event) => void got.push(event), { name: "all" });
  let tries = 0;
  const told = job<string>({
    name: "told",
    queue: { name: "loud", events: true },
    retry: { attempts: 2, delay: 1 },
    run: () => {
      if (++tries === 1) throw new Error("not yet");
    },
  });
  const untold = job<string>({ name: "untold", run: () => {} });
  const { id } = await hf.enqueue(told, "a");
  const { id: quiet } = await hf.enqueue(untold, "b", { delay: "1h" });
  hf.work([told, untold]);
  const waited = hf.jobs.wait(id);
  await clock.advance("5s");
  await waited;
  await hf.jobs.cancel(quiet);
  await hf.queues.pause("loud");
  await hf.queues.resume("loud");
  await clock.advance(0);
  assert.deepEqual(
    got.map(({ type, job }) => [type, job]),
    [
      ["job.enqueued", id],
      ["job.started", id],
      ["job.returned", id],
      ["job.started", id],
      ["job.succeeded", id],
      ["job.cancelled", quiet],
      ["queue.paused", undefined],
      ["queue.resumed", undefined],
    ],
  );
  assert.equal(new Set(got.map(({ dedupeKey }) => dedupeKey)).size, 8);
});

test("every process that works or listens trims old events that every subscriber has passed", async (t) => {
  const { hf, clock } = await memory(t);
  const on = stage<Event>();
  hf.events.subscribe(on.run as () => Promise<void>, { name: "slow" });
  await happens(hf, "a", "b");
  await on.called(1);
  const left = async () => (await hf.engine.store.events.page({ after: 0, limit: 9 })).map(nameOf);
  // Steps, or the fake clock would have to make a million ticks.
  clock.set(clock.now() + 8 * 86_400_000);
  await clock.advance("2m");
  assert.deepEqual(await left(), ["a", "b"]);
  on.calls[0]?.end();
  await on.called(2);
  await clock.advance("2m");
  assert.deepEqual(await left(), ["b"]);
  on.calls[1]?.end();
});

test("a failed trim is repeated within moments, not a minute later", async (t) => {
  const { hf, clock } = await memory(t);
  const { store } = hf.engine;
  const trim = store.events.trim.bind(store.events);
  let tries = 0;
  store.events.trim = (what) => (++tries === 1 ? Promise.reject(new Error("busy")) : trim(what));
  await happens(hf, "a", "b");
  clock.set(clock.now() + 8 * 86_400_000);
  hf.events.subscribe(() => {}, { name: "new" });
  await clock.advance("2s");
  assert.deepEqual([tries, await store.events.page({ after: 0, limit: 9 })], [2, []]);
});

async function alone(t: TestContext) {
  const { path, clock, another } = await file(t);
  return { path, clock, hf: await another() };
}

/** What a subscriber of this name would get that comes next. */
async function rest(path: string, name: string): Promise<string[]> {
  const hf = await apart(path);
  const got: string[] = [];
  hf.events.subscribe((event) => void got.push(nameOf(event)), { name });
  await delivered(hf, name);
  await hf.close();
  return got;
}

function nothing(): void {}

test("a subscriber that never returns does not keep close from resolving", async () => {
  const child = fileURLToPath(new URL("./children/deaf-subscriber.ts", import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [child]);
  assert.equal(stdout, "closed\n");
});

test("a sink and a durable subscriber with one name are rejected, because each event would reach only one of them", async (t) => {
  const path = join(await folder(t), "work.db");
  const sinks = { audit: { type: "file", path: join(await folder(t), "audit.jsonl") } } as const;
  await using hf = await open(path, { sinks });
  assert.throws(() => hf.events.subscribe(() => {}, { name: "audit" }), code("NAME_TAKEN"));
  hf.events.subscribe(() => {}, { name: "mine" });
  await assert.rejects(open(path, { sinks: { mine: sinks.audit } }), code("NAME_TAKEN"));
});
