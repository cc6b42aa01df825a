import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test, type TestContext } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import { type Finished, job, open } from "../../src/index.ts";
import { Holdfast } from "../../src/holdfast.ts";
import { selectFrom } from "../selection.ts";
import { until } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

describe("a finished job whose end the server does not take", { skip: noServer }, () => {
  let server: PostgresServer;
  let url: string;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => void (url = await server.createDatabase()));

  const echo = job<string, string>({ name: "echo", run: async ({ input }) => input });

  const openAt = async (t: TestContext) => {
    const logged: string[] = [];
    const note = (message: string) => void logged.push(message);
    const log = { debug: note, info: note, warn: note, error: note };
    const hf = (await open(url, { log })) as Holdfast;
    t.after(() => hf.close());
    return { hf, logged };
  };

  /** From now on the end of whatever answers "poison" is refused so. */
  const refuse = (code: string) =>
    server.query(
      `create or replace function holdfast.refuse() returns trigger language plpgsql as
         $$ begin raise 'refused' using errcode = '${code}'; end $$;
       create or replace trigger refuse before update on holdfast.jobs for each row
         when (new.output = '"poison"') execute function holdfast.refuse()`,
      url,
    );
  const relent = () => server.query("drop trigger refuse on holdfast.jobs", url);

  const PASSING = ["XX000", "XX001", "58030", "53400", "53100", "26000", "57014", "40001", "P0001", "0A000", "42703"];
  // All are told apart by their codes alone, so a few at a time will do.
  for (const code of selectFrom(PASSING, 4)) {
    test(
      `a success rejected for a reason that is not its own (${code}) is recorded when that is over`,
      { timeout: 30_000 },
      async (t) => {
        const { hf, logged } = await openAt(t);
        await refuse(code);
        const jobs = await hf.enqueueMany(echo, ["a", "poison", "b", "c"]);
        hf.work([echo]);
        const [first, poison, ...others] = jobs.map((one) => hf.jobs.wait(one)) as Promise<Finished<string>>[];
        // Its neighbours do not wait for it.
        for (const one of await Promise.all([first, ...others])) assert.equal(one?.state, "succeeded");
        while (!logged.some((message) => message.includes("could not be recorded"))) await passes(5);
        assert.equal((await hf.jobs.get(jobs[1]?.id as string))?.state, "running");
        // Nor do those that come later.
        assert.equal((await hf.jobs.wait(await hf.enqueue(echo, "later"))).state, "succeeded");
        await relent();
        const { state, attempt, output } = (await poison) as Finished<string>;
        assert.deepEqual([state, attempt, output], ["succeeded", 1, "poison"]);
      },
    );
  }

  const OWN = ["22001", "22003", "22021", "22P05", "23514", "54000"];
  test(`a success rejected for what it writes (${OWN.join(", ")}) has failed, and no other`, { timeout: 60_000 }, async (t) => {
    const { hf } = await openAt(t);
    hf.work([echo]);
    for (const code of OWN) {
      await refuse(code);
      const jobs = await hf.enqueueMany(echo, ["a", "poison", "b"]);
      const ends = await Promise.all(jobs.map((one) => hf.jobs.wait(one)));
      assert.deepEqual(
        ends.map(({ state }) => state),
        ["succeeded", "failed", "succeeded"],
        code,
      );
      assert.equal(ends[1]?.error?.code, code === "22021" ? "TEXT_INVALID" : "VALUE_INVALID");
    }
  });

  test("a rejected success that a dependent waits for does not block the others of its batch", async (t) => {
    const many = 5;
    const { hf, logged } = await openAt(t);
    const { promise: opened, resolve: open } = Promise.withResolvers<void>();
    let ran = 0;
    const held = job<string, string>({
      name: "held",
      run: async ({ input }) => {
        ran++;
        await opened;
        return input;
      },
    });
    const inputs = Array.from({ length: many }, (_, i) => (i === 2 ? "poison" : "fine"));
    const jobs = await hf.enqueueMany(held, inputs);
    const behind = await hf.enqueue(echo, "behind", { after: [jobs[2]?.id as string] });
    const worker = hf.work([held], { concurrency: many });
    await until(async () => ran === many, "all of them run");
    await refuse("XX000");
    // From now on it claims nothing, so that these ends are all that is written in their turn.
    const stopped = worker.stop({ drain: "30s" });
    open();
    while (!logged.some((message) => message.includes("could not be recorded"))) await passes(5);
    const counts = () => hf.jobs.counts({ name: "held" });
    await until(async () => (await counts()).succeeded === many - 1, "the others are settled");
    assert.equal((await counts()).running, 1);
    await relent();
    await stopped;
    hf.work([echo]);
    assert.equal((await hf.jobs.wait(behind)).state, "succeeded");
    assert.equal((await hf.jobs.counts({ name: "held" })).succeeded, many);
    assert.equal(ran, many, "each has run once");
    assert.deepEqual(
      logged.filter((message) => message.includes("lease was gone")),
      [],
    );
  });

  test("a success with a follow-up that no database could store has failed, and no other", { timeout: 30_000 }, async (t) => {
    const { hf } = await openAt(t);
    const parent = job<number, string>({
      name: "parent",
      run: ({ input, enqueue }) => {
        enqueue(echo, `of ${input}`, { key: `k${input}` });
        return "done";
      },
    });
    // Past all that is checked when it is enqueued.
    const { store } = hf.engine;
    const settle = store.settle.bind(store);
    store.settle = (settlements) => {
      for (const { followUps = [] } of settlements) for (const one of followUps) if (one.key === "k2") one.key = "a\0b";
      return settle(settlements);
    };
    const jobs = await hf.enqueueMany(parent, [1, 2, 3]);
    hf.work([parent]);
    const ends = await Promise.all(jobs.map((one) => hf.jobs.wait(one)));
    assert.deepEqual(
      ends.map(({ state }) => state),
      ["succeeded", "failed", "succeeded"],
    );
    assert.equal(ends[1]?.error?.code, "TEXT_INVALID");
    assert.equal((await hf.jobs.counts({ name: "echo" })).pending, 2);
  });

  test("a rejected success is logged once a round, and rounds grow longer", { timeout: 30_000 }, async (t) => {
    const { hf, logged } = await openAt(t);
    await refuse("XX000");
    const jobs = await hf.enqueueMany(
      echo,
      Array.from({ length: 50 }, () => "poison"),
    );
    hf.work([echo], { concurrency: 50 });
    // The third pause is a second; on a busy machine one before it may be as long.
    let said = 0;
    for (let since = performance.now(); said < 2 || performance.now() - since < 900; await passes(10)) {
      const before = said;
      said = logged.filter((message) => message.includes("could not be recorded")).length;
      if (said > before) since = performance.now();
      assert.ok(said <= 8, `${said} times`);
    }
    await relent();
    const ends = await Promise.all(jobs.map((one) => hf.jobs.wait(one)));
    assert.ok(ends.every(({ state, attempt }) => state === "succeeded" && attempt === 1));
  });
});
