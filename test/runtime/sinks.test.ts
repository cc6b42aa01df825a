import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { appendFileSync, existsSync, mkdirSync, readFileSync, renameSync, rmdirSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Writable } from "node:stream";
import { describe, test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type Event, job } from "../../src/index.ts";
import { open } from "../../src/open.ts";
import type { OpenOptions } from "../../src/engine/open-options.ts";
import { consoleSink, fileSink } from "../../src/engine/events/sinks.ts";
import { drain, type TestClock, testClock } from "../../src/testing/index.ts";
import { delivered, happens, nameOf, sink } from "./event-parts.ts";
import { apart, code, file, folder, type Logged, logInto, unchecked } from "./parts.ts";
import { isAuthentic, WebhookServer } from "./webhook-server.ts";

const SECRET = `whsec_${Buffer.from("twenty-four bytes or more of it").toString("base64")}`;
const NEVER = new AbortController().signal;
const jobOf = ({ body }: { body: string }) => (JSON.parse(body) as Event).job;

describe("a file sink", () => {
  test("a file sink gets one line per event, on disk before its position moves", async (t) => {
    const path = join(await folder(t), "events.jsonl");
    const { hf } = await memoryWith(t, { out: { type: "file", path } });
    await happens(hf, "a", "b", "line\nbreak");
    await delivered(hf, "out");
    assert.deepEqual(linesOf(path), await hf.engine.store.events.page({ after: 0, limit: 10 }));
  });

  test("a file sink that cannot be written is retried until it can", async (t) => {
    const path = join(await folder(t), "later", "events.jsonl");
    const { hf, clock, logged } = await memoryWith(t, { out: { type: "file", path } });
    await happens(hf, "a");
    await sink(hf, "out", ({ failures }) => failures === 1);
    assert.match((await hf.engine.store.events.sinks())[0]?.error ?? "", /^The file cannot be written: ENOENT/);
    mkdirSync(join(path, ".."));
    await happens(hf, "b");
    await clock.advance("1s");
    await delivered(hf, "out");
    assert.deepEqual(linesOf(path).map(nameOf), ["a", "b"]);
    assert.equal(logged.length, 1);
  });

  test("a file sink may be renamed while it is in use, as log rotation does", async (t) => {
    const path = join(await folder(t), "events.jsonl");
    const { hf } = await memoryWith(t, { out: { type: "file", path } });
    await happens(hf, "a");
    await delivered(hf, "out");
    renameSync(path, `${path}.1`);
    await happens(hf, "b");
    await delivered(hf, "out");
    assert.deepEqual([linesOf(`${path}.1`).map(nameOf), linesOf(path).map(nameOf)], [["a"], ["b"]]);
  });

  test("a file sink torn at any byte of its last line is repaired before anything is added", async (t) => {
    const path = join(await folder(t), "events.jsonl");
    const events = [1, 2, 3].map((seq) => event(seq, "ü"));
    const out = fileSink(path);
    await out.deliver(events.slice(0, 2), NEVER);
    const whole = readFileSync(path);
    const second = whole.indexOf("\n") + 1;
    for (let size = second; size <= whole.length; size++) {
      writeFileSync(path, whole.subarray(0, size));
      await out.deliver(events.slice(2), NEVER);
      const seqs = linesOf(path).map(({ seq }) => seq);
      assert.deepEqual(seqs, size === whole.length ? [1, 2, 3] : [1, 3], `torn at ${size}`);
    }
  });

  test("a file sink torn in a very long line, or ending in zeros after a power cut, is repaired", async (t) => {
    const path = join(await folder(t), "events.jsonl");
    const out = fileSink(path);
    await out.deliver([event(1, "x".repeat(200_000)), event(2, "y".repeat(200_000))], NEVER);
    truncateSync(path, readFileSync(path).length - 10);
    await out.deliver([event(3, "z")], NEVER);
    assert.deepEqual(
      linesOf(path).map(({ seq }) => seq),
      [1, 3],
    );
    appendFileSync(path, Buffer.alloc(5_000));
    await out.deliver([event(4, "z")], NEVER);
    assert.deepEqual(
      linesOf(path).map(({ seq }) => seq),
      [1, 3, 4],
    );
  });

  test("a file sink keeps lines of other writers, with or without a line end", async (t) => {
    const path = join(await folder(t), "notes.txt");
    for (const text of ["mine", "mine\n", '{"mine":1}', "two\nlines"]) {
      writeFileSync(path, text);
      await fileSink(path).deliver([event(1, "x")], NEVER);
      assert.ok(readFileSync(path, "utf8").startsWith(`${text.trimEnd()}\n{"seq":1,`), JSON.stringify(text));
    }
  });
});

describe("a console sink", () => {
  test("a console sink writes one line per event to standard output", async (t) => {
    const program = fileURLToPath(new URL("children/console-sink.ts", import.meta.url));
    const { stdout, stderr } = spawnSync(process.execPath, [program, join(await folder(t), "work.db")], { encoding: "utf8" });
    const events = stdout
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line) as Event);
    assert.deepEqual(events.map(nameOf), ["a", "b"], stderr);
  });

  test("a console sink whose reader has exited fails without affecting other sinks", async () => {
    const broken = new Writable({ write: (_chunk, _encoding, done) => done(new Error("EPIPE")) });
    await assert.rejects(consoleSink(broken).deliver([event(1, "x")], NEVER), /Standard output cannot be written: EPIPE/);
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(broken.listenerCount("error"), 0);
  });
});

describe("a webhook", () => {
  test("a webhook gets one POST per event, in order, signed as Standard Webhooks specify", async (t) => {
    const server = await WebhookServer.start(t);
    const { hf, clock } = await memoryWith(t, {
      hook: { type: "webhook", url: `${server.url}/in?token=abc`, secret: SECRET },
    });
    await happens(hf, "a", "ü ∑ 😀", "c");
    await delivered(hf, "hook");
    const events = await hf.engine.store.events.page({ after: 0, limit: 10 });
    assert.deepEqual(
      server.received.map(({ body }) => JSON.parse(body) as object),
      events.map(({ seq, type, at, data }) => ({ type, timestamp: new Date(at).toISOString(), data, seq })),
    );
    for (const [i, received] of server.received.entries()) {
      assert.equal(received.path, "/in?token=abc");
      assert.equal(received.headers["content-type"], "application/json");
      assert.equal(received.headers["webhook-id"], events[i]?.dedupeKey);
      assert.equal(received.headers["webhook-timestamp"], String(Math.floor(clock.now() / 1_000)));
      assert.ok(isAuthentic(received, SECRET));
      assert.ok(!isAuthentic(received, `whsec_${Buffer.alloc(32).toString("base64")}`), "another secret does not fit");
      assert.ok(!isAuthentic({ ...received, body: received.body.replace("{", "{ ") }, SECRET), "nor another body");
    }
  });

  test("a webhook that answers anything but 2xx gets the same event again with the same id, and no other event twice", async (t) => {
    const server = await WebhookServer.start(t);
    const answers = [204, 500, 404, 302, 410, 200, 202].map((status) => ({
      status,
      headers: { location: `${server.url}/other`, ...(status === 410 ? { "retry-after": "2" } : {}) },
    }));
    server.answer = () => answers.shift() ?? { status: 204 };
    const { hf, clock } = await memoryWith(t, { hook: { type: "webhook", url: server.url, secret: SECRET } });
    await happens(hf, "a", "b", "c");
    for (const failures of [1, 2, 3, 4]) {
      await sink(hf, "hook", (view) => view.failures === failures && view.behind === 2);
      // No longer than the pause can be, so that the next one is not over too.
      await clock.advance(failures === 4 ? "2s" : 100 * 2 ** (failures - 1));
    }
    await delivered(hf, "hook");
    const ids = server.received.map(({ headers }) => headers["webhook-id"]);
    const [a, b, c] = (await hf.engine.store.events.page({ after: 0, limit: 10 })).map(({ dedupeKey }) => dedupeKey);
    assert.deepEqual(ids, [a, b, b, b, b, b, c]);
    assert.ok(
      server.received.every(({ path }) => path === "/"),
      "a redirect is not followed",
    );
    const stamps = server.received.map(({ headers }) => Number(headers["webhook-timestamp"]));
    assert.ok((stamps[5] as number) > (stamps[1] as number), "each attempt has its own time");
    for (const received of server.received) assert.ok(isAuthentic(received, SECRET));
  });

  test("a webhook that rejects one job's events gets those of others at once, and each job's in order", async (t) => {
    const server = await WebhookServer.start(t);
    const { hf, clock } = await memoryWith(t, { hook: { type: "webhook", url: server.url, secret: SECRET } });
    const told = job({ name: "told", queue: { name: "told", events: true }, run: () => null });
    let isWell = false;
    server.answer = (received) => ({ status: isWell || jobOf(received) !== "bad" ? 204 : 500 });
    for (const id of ["bad", "one", "two", "three"]) await hf.enqueue(told, 1, { id });
    await drain(hf, [told]);
    const types = (id: string) =>
      server.received.filter((one) => jobOf(one) === id).map(({ body }) => (JSON.parse(body) as Event).type);
    const whole = ["job.enqueued", "job.started", "job.succeeded"];
    // No time passes: the refused event waits for its retry, and nothing else does.
    await server.until(() => ["one", "two", "three"].every((id) => types(id).length === 3));
    for (const id of ["one", "two", "three"]) assert.deepEqual(types(id), whole);
    assert.deepEqual(types("bad"), ["job.enqueued"]);
    const [view] = await hf.engine.store.events.sinks();
    assert.equal(view?.behind, 12, "the place stays before the refused event, so that a crash loses nothing");
    isWell = true;
    await clock.advance("100ms");
    await delivered(hf, "hook");
    assert.deepEqual(types("bad"), ["job.enqueued", ...whole]);
  });

  test("a webhook that rejects two jobs for ever gets the events of all others", async (t) => {
    const server = await WebhookServer.start(t);
    const { hf, clock } = await memoryWith(t, { hook: { type: "webhook", url: server.url, secret: SECRET } });
    const told = job({ name: "told", queue: { name: "told", events: true }, run: () => null });
    server.answer = (received) => ({ status: jobOf(received)?.startsWith("bad") ? 400 : 204 });
    for (const id of ["bad1", "bad2"]) await hf.enqueue(told, 1, { id });
    for (let second = 0; second < 10; second++) await clock.advance("1s");
    for (const id of ["one", "two"]) await hf.enqueue(told, 1, { id });
    await clock.advance("100ms");
    await server.until((received) => ["one", "two"].every((id) => received.some((one) => jobOf(one) === id)));
  });

  for (const [what, bad] of [
    ["never answers the events of one job", "silence"],
    ["asks for a pause at each event of one job", { status: 503, headers: { "retry-after": "20" } }],
  ] as const)
    test(`a webhook that ${what} gets the events of all others`, async (t) => {
      const server = await WebhookServer.start(t);
      const { hf, clock } = await memoryWith(t, { hook: { type: "webhook", url: server.url, secret: SECRET } });
      const told = job({ name: "told", queue: { name: "told", events: true }, run: () => null });
      server.answer = (received) => (jobOf(received) === "bad" ? bad : { status: 204 });
      const failed = (times: number) => sink(hf, "hook", ({ failures }) => failures === times);
      const tries = (id: string) => server.received.filter((one) => jobOf(one) === id).length;
      await hf.enqueue(told, 1, { id: "bad" });
      await server.until(() => tries("bad") === 1);
      await hf.enqueue(told, 1, { id: "one" });
      if (bad === "silence") await clock.advance("15s");
      await failed(1);
      while (tries("bad") < 2) await clock.advance("1s");
      if (bad === "silence") await clock.advance("15s");
      await server.until(() => tries("one") === 1);
      // No time passes: the event that has no answer waits, and nothing else does.
      await hf.enqueue(told, 1, { id: "two" });
      await server.until(() => tries("two") === 1);
      await clock.advance("19s");
      await hf.enqueue(told, 1, { id: "three" });
      await server.until(() => tries("three") === 1);
      assert.equal(tries("bad"), 2);
      while (tries("bad") < 3) await clock.advance("1s");
    });

  test("a webhook gets nothing more from a process that lost the right to deliver during a rejection", async (t) => {
    const server = await WebhookServer.start(t);
    const { hf } = await memoryWith(t, { hook: { type: "webhook", url: server.url, secret: SECRET } });
    const told = job({ name: "told", queue: { name: "told", events: true }, run: () => null });
    // An operator forgets the sink: the process finds out when it writes the refusal down.
    server.answer = async () => {
      await hf.engine.store.events.dropSink("hook");
      return { status: 500 };
    };
    await hf.enqueueMany(told, [1, 2, 3]);
    while ((await hf.engine.store.events.sinks()).length === 0 || server.received.length === 0)
      await new Promise((resolve) => setImmediate(resolve));
    for (let turn = 0; turn < 50; turn++) await new Promise((resolve) => setImmediate(resolve));
    assert.equal(server.received.length, 1);
  });

  test("a webhook that rejects one event of fifty keeps up, because a rejection does not pause the others", async (t) => {
    const server = await WebhookServer.start(t);
    const { hf } = await memoryWith(t, { hook: { type: "webhook", url: server.url, secret: SECRET } });
    const told = job({ name: "told", queue: { name: "told", events: true }, run: () => null });
    let posts = 0;
    server.answer = () => ({ status: ++posts % 50 === 0 ? 503 : 204 });
    await hf.enqueueMany(
      told,
      Array.from({ length: 200 }, (_, i) => i),
    );
    // 200 events, 4 of them refused, while time stands still.
    await server.until((received) => received.length >= 200);
    assert.equal(new Set(server.received.map(({ headers }) => headers["webhook-id"])).size, 200);
  });

  test("occasional failures of a webhook do not lengthen its pauses", async (t) => {
    const server = await WebhookServer.start(t);
    server.answer = () => ({ status: server.received.length % 2 === 1 ? 500 : 204 });
    const { hf, clock } = await memoryWith(t, { hook: { type: "webhook", url: server.url, secret: SECRET } });
    await happens(hf, "a", "b", "c", "d");
    for (const left of [4, 3, 2, 1]) {
      // Within the second there may be room for two short pauses.
      await sink(hf, "hook", ({ failures, behind }) => failures === 1 || behind < left);
      await clock.advance("1s");
    }
    await delivered(hf, "hook");
    assert.equal(server.received.length, 8);
  });

  for (const [what, header] of [
    ["seconds", () => "3600"],
    ["a date", (now: number) => new Date(now + 3_600_000).toUTCString()],
  ] as const) {
    test(`a webhook that asks for a pause (${what}) gets it`, async (t) => {
      const server = await WebhookServer.start(t);
      const { hf, clock } = await memoryWith(t, { hook: { type: "webhook", url: server.url, secret: SECRET } });
      server.answer = ({ headers }) =>
        server.received.length > 1
          ? { status: 204 }
          : { status: 503, headers: { "retry-after": header(Number(headers["webhook-timestamp"]) * 1_000) } };
      await happens(hf, "a");
      await sink(hf, "hook", ({ failures }) => failures === 1);
      await clock.advance("59m");
      assert.equal(server.received.length, 1);
      await clock.advance("2m");
      await delivered(hf, "hook");
      assert.equal(server.received.length, 2);
    });
  }

  test("a webhook that does not answer within 15 seconds or does not exist counts as down", async (t) => {
    const server = await WebhookServer.start(t);
    const silent = Promise.withResolvers<void>();
    server.answer = () => {
      silent.resolve();
      return "silence";
    };
    const { hf, clock, logged } = await memoryWith(t, {
      hook: { type: "webhook", url: `${server.url}/secret-path`, secret: SECRET },
    });
    const { url } = server;
    await happens(hf, "a");
    await silent.promise;
    await clock.advance("15s");
    await sink(hf, "hook", ({ error }) => error === `${url} did not answer within 15 s.`);
    await server.stop();
    await clock.advance("1s");
    await sink(hf, "hook", ({ error }) => error === `${url} cannot be reached: ECONNREFUSED.`);
    const told = JSON.stringify([logged, await hf.engine.store.events.sinks()]);
    assert.ok(!told.includes("secret-path") && !told.includes(SECRET.slice(6, 20)), "no secret is printed");
  });

  test("a webhook on a port that fetch blocks reports the reason", async (t) => {
    const { hf, logged } = await memoryWith(t, {
      hook: { type: "webhook", url: "http://127.0.0.1:9/secret-path?token=hidden", secret: SECRET },
    });
    await happens(hf, "a");
    await sink(hf, "hook", ({ error }) => error === "http://127.0.0.1:9 cannot be reached: bad port.");
    const told = JSON.stringify([logged, await hf.engine.store.events.sinks()]);
    assert.ok(!told.includes("secret-path") && !told.includes("hidden"), "no secret is printed");
  });

  test("a webhook that is down delays only itself", async (t) => {
    const server = await WebhookServer.start(t);
    server.answer = () => ({ status: 500 });
    const path = join(await folder(t), "events.jsonl");
    const { hf, clock } = await memoryWith(t, {
      hook: { type: "webhook", url: server.url, secret: SECRET },
      out: { type: "file", path },
    });
    await happens(hf, "a");
    await sink(hf, "hook", ({ failures }) => failures === 1);
    await happens(hf, "b", "c");
    await delivered(hf, "out");
    assert.deepEqual(linesOf(path).map(nameOf), ["a", "b", "c"]);
    assert.equal(server.received.length, 1, "nor is it asked more often because more happens");
    server.answer = () => ({ status: 204 });
    await clock.advance("1s");
    await delivered(hf, "hook");
    assert.deepEqual(
      server.received.map(({ body }) => nameOf(JSON.parse(body) as Event)),
      ["a", "a", "b", "c"],
    );
  });

  test("a delivery in flight at close is given up after a while", async (t) => {
    const server = await WebhookServer.start(t);
    const silent = Promise.withResolvers<void>();
    server.answer = () => {
      silent.resolve();
      return "silence";
    };
    const { hf, clock } = await memoryWith(t, { hook: { type: "webhook", url: server.url, secret: SECRET } });
    await happens(hf, "a");
    await silent.promise;
    const closed = hf.close();
    await clock.advance("5s");
    await closed;
  });
});

describe("sinks", () => {
  const bad: Record<string, unknown> = {
    "no object": "console",
    "a list": [{ type: "console" }],
    "no type": { out: {} },
    nothing: { out: null },
    "an unknown type": { out: { type: "kafka" } },
    "an unknown option": { out: { type: "console", colour: true } },
    "no path": { out: { type: "file" } },
    "an empty path": { out: { type: "file", path: "" } },
    "no url": { out: { type: "webhook", secret: SECRET } },
    "another protocol": { out: { type: "webhook", url: "ftp://example.com", secret: SECRET } },
    "a password in the url": { out: { type: "webhook", url: "https://me:hunter2@example.com", secret: SECRET } },
    "no secret": { out: { type: "webhook", url: "https://example.com" } },
    "a secret without its prefix": { out: { type: "webhook", url: "https://example.com", secret: SECRET.slice(6) } },
    "a short secret": { out: { type: "webhook", url: "https://example.com", secret: "whsec_aHVudGVyMg==" } },
  };
  for (const [what, sinks] of Object.entries(bad)) {
    test(`sinks with ${what} are rejected, no secret is printed and no database is created`, async (t) => {
      const path = join(await folder(t), "work.db");
      await assert.rejects(open(path, { sinks: unchecked(sinks) }), (error: Error) => {
        assert.ok(!/hunter2|aHVudGVyMg|twenty/.test(error.message), error.message);
        return code("OPTION_INVALID")(error);
      });
      assert.equal(existsSync(path), false);
    });
  }

  test("sinks are shared by the handles of a process until the last one closes", async (t) => {
    const dir = await folder(t);
    const out: OpenOptions["sinks"] = { out: { type: "file", path: join(dir, "out") } };
    const first = await open(join(dir, "work.db"), { sinks: out });
    const second = await open(join(dir, "work.db"), { sinks: out });
    const third = await open(join(dir, "work.db"));
    t.after(() => Promise.all([first.close(), second.close(), third.close()]));
    const differs = open(join(dir, "work.db"), { sinks: { out: { type: "file", path: join(dir, "other") } } });
    await assert.rejects(differs, code("SINK_DIFFERS"));
    await first.close();
    await happens(third, "a");
    await delivered(third, "out");
    await second.close();
    await happens(third, "b");
    assert.deepEqual(linesOf(join(dir, "out")).map(nameOf), ["a"]);
    assert.equal((await third.engine.store.events.sinks())[0]?.behind, 1);
    assert.equal((await third.engine.store.events.sinks())[0]?.holder, null);
  });

  test("sinks with one name in two processes get each event once", async (t) => {
    const { path, clock } = await file(t);
    const out = join(path, "..", "out");
    const sinks: OpenOptions["sinks"] = { out: { type: "file", path: out } };
    const [one, two] = [await apart(path, { clock, sinks }), await apart(path, { clock, sinks })];
    t.after(() => Promise.all([one.close(), two.close()]));
    await happens(one, "a", "b");
    await happens(two, "c");
    await delivered(one, "out");
    await clock.advance("1m");
    assert.deepEqual(linesOf(out).map(nameOf), ["a", "b", "c"]);
  });

  test("sinks deliver the events of the time when no process delivered", async (t) => {
    const { path, clock, another } = await file(t);
    const out = join(path, "..", "out");
    const sinks: OpenOptions["sinks"] = { out: { type: "file", path: out } };
    await (await apart(path, { clock, sinks })).close();
    await happens(await another(), "a");
    assert.equal(existsSync(out), false);
    const again = await apart(path, { clock, sinks });
    t.after(() => again.close());
    await delivered(again, "out");
    assert.deepEqual(linesOf(out).map(nameOf), ["a"]);
  });

  test("a file sink whose path is a folder fails at delivery, and says so", async (t) => {
    const dir = join(await folder(t), "a folder");
    mkdirSync(dir);
    const { hf, clock } = await memoryWith(t, { out: { type: "file", path: dir } });
    await happens(hf, "a");
    await sink(hf, "out", ({ error }) => error?.startsWith("The file cannot be written: EISDIR") ?? false);
    rmdirSync(dir);
    await clock.advance("1s");
    await delivered(hf, "out");
  });
});

async function memoryWith(t: TestContext, sinks: NonNullable<OpenOptions["sinks"]>) {
  const clock: TestClock = testClock();
  const logged: Logged[] = [];
  const hf = await open(":memory:", { clock, log: logInto(logged), sinks });
  t.after(async () => {
    const closed = hf.close();
    await clock.advance("6s");
    await closed;
  });
  return { hf, clock, logged };
}

function linesOf(path: string): Event[] {
  const lines = readFileSync(path, "utf8").split("\n");
  assert.equal(lines.pop(), "", "the last line is whole");
  return lines.map((line) => JSON.parse(line) as Event);
}

function event(seq: number, text: string): Event {
  return { seq, type: "test", at: 0, dedupeKey: String(seq), data: { sink: text } };
}
