import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { addOne, newJob } from "../conformance/parts.ts";
import { firstOf, LONG, selectVariant } from "../selection.ts";
import { BUILD_OPERATIONS } from "./build-operations.ts";
import { OPERATIONS } from "./operations.ts";
import { Proxy } from "./proxy.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { WORK_OPERATIONS } from "./work-operations.ts";
import { countJobs } from "../../src/store/queries.ts";

/** How the connection that writes is called in the server's list. */
const WRITER = "holdfast writes";

const PLAIN = OPERATIONS["enqueue of a plain job"] as (typeof OPERATIONS)[string];

describe("a connection that is cut at each statement", { skip: noServer }, () => {
  let server: PostgresServer;
  let proxy: Proxy;
  /** A store whose connections are cut, and reopened only by itself; and one that tells the truth. */
  let store: PostgresStore;
  let direct: PostgresStore;
  before(async () => {
    server = await startServer();
    proxy = await Proxy.before(server.url());
    direct = await openAt(server.url());
    store = await openAt(proxy.url(server.url()));
  });
  after(async () => {
    await store.close();
    await direct.close();
    await proxy.close();
    await server.close();
  });
  let n = 0;

  for (const [turn, [name, prepare]] of Object.entries({ ...OPERATIONS, ...BUILD_OPERATIONS, ...WORK_OPERATIONS }).entries()) {
    for (const when of selectVariant(["before", "after"] as const, turn >> 1)) {
      const what = when === "before" ? "before it reaches the server" : "before its answer comes back";
      test(`a cut of ${name}, ${what}, is answered with the truth`, { timeout: 60_000, ...firstOf(2, turn) }, async (t) => {
        // The first time something has to be looked up, later it is known.
        for (let i = 0; i < 2; i++) await (await prepare(direct, ++n)).act(store);
        const last = await prepare(direct, ++n);
        const { statements } = proxy.count(WRITER);
        await last.act(store);
        const passed: string[] = [];
        for (let at = 1; ; at++) {
          if (isLeftOut(at, statements.length)) continue;
          const { act, check } = await prepare(direct, ++n);
          const cut = proxy.cut({ of: WRITER, at, when, how: at % 2 === 0 ? "reset" : "end" });
          const answer = await act(store);
          if (cut.at === null) break;
          passed.push(wordsOf(cut.at));
          await check(answer);
        }
        t.diagnostic(`cut at ${passed.length} of ${statements.length} statements: ${passed.join(", ")}`);
        const [first, ...others] = passed as [string, ...string[]];
        // One that is a transaction by itself, or the whole of a longer one.
        if (others.length === 0) return assert.match(first, /^with (clock|given)$/);
        assert.ok(first.startsWith("begin"));
        assert.ok(others.at(-1)?.endsWith("commit"));
      });
    }
  }

  test("a cut before the answer to many jobs with scattered keys gives each caller its own answer", async () => {
    const job = newJob({ name: "apart" });
    const alike = [
      { ...job, input: "1" },
      { ...job, input: "2" },
      { ...job, input: "3" },
    ];
    await store.enqueue(alike);
    // As if others had come in between.
    await server.query("alter sequence holdfast.job increment by 7");
    try {
      const cut = proxy.cut({ of: WRITER, at: 1, when: "after" });
      for (const isCut of [true, false]) {
        const ids = (await store.enqueue(alike)).map(({ id }) => id);
        assert.equal(cut.at !== null, true);
        const found = await Promise.all(ids.map(async (id) => (await direct.queries.get(id))?.input));
        assert.deepEqual(found, [1, 2, 3], isCut ? "by what was left of it" : "by its answer");
      }
      assert.equal((await countJobs(direct.queries, { name: "apart" })).pending, 9);
    } finally {
      await server.query("alter sequence holdfast.job increment by 1");
    }
  });

  for (const when of ["before", "after"] as const) {
    test(`a connection cut while it is opened, ${when}, is opened again`, { timeout: 60_000 }, async () => {
      for (let at = 1; ; at++) {
        await proxy.down();
        await proxy.up();
        const { act, check } = await PLAIN(direct, ++n);
        const cut = proxy.cut({ of: WRITER, at, when });
        const answer = await act(store);
        if (cut.at === null) break;
        await check(answer);
      }
    });

    test(`a read cut ${when} is repeated`, { timeout: 60_000 }, async () => {
      const name = `looked up ${when}`;
      const id = await addOne(direct, { name });
      for (const how of ["end", "reset"] as const) {
        const cut = proxy.cut({ of: "holdfast reads", at: 1, when, how });
        assert.equal((await store.queries.get(id))?.id, id);
        assert.notEqual(cut.at, null);
        await proxy.down();
        await proxy.up();
        const first = proxy.cut({ of: "holdfast reads", at: 1, when, how });
        assert.equal((await countJobs(store.queries, { name })).pending, 1);
        assert.notEqual(first.at, null);
      }
    });
  }
});

export function openAt(url: string, options: { patience?: number } = {}): Promise<PostgresStore> {
  return PostgresStore.open(url, { clock: systemClock, injected: false, random: Math.random, ...options });
}

/** `npm test` cuts the first and last three statements and every eighth between them. */
function isLeftOut(at: number, all: number): boolean {
  return !LONG && at > 3 && at < all - 2 && at % 8 !== 0;
}

/** How it begins, and how it ends if it is several statements in one. */
function wordsOf(text: string): string {
  const [first, ...others] = text.split(";").map((one) => one.trim().split(/\s+/).slice(0, 2).join(" "));
  return others.length === 0 ? `${first}` : `${first} … ${others.at(-1)}`;
}
