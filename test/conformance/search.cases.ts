import assert from "node:assert/strict";
import type { ListFilter } from "../../src/store/queries.ts";
import type { Store } from "../../src/store/store.ts";
import { add, claimOne, newJob, pass, see, settle, SUCCEEDED } from "./parts.ts";
import type { Check } from "./suite.ts";

async function found(store: Store, filter: Partial<ListFilter>): Promise<string[]> {
  const ids: string[] = [];
  for (let after: string | undefined; ;) {
    const page = await store.queries.list({ limit: 2, ...filter, ...(after !== undefined && { after }) });
    ids.push(...page.items.map(({ id }) => id));
    if (page.next === undefined) return ids;
    after = page.next;
  }
}

export function searchCases(check: Check): void {
  check("pages in newest-first order are the oldest-first pages reversed", async ({ store }) => {
    await add(store, ...["1", "2", "3", "4", "5", "6", "7"].map((id) => ({ id, name: Number(id) % 2 ? "odd" : "even" })));
    await store.cancel("2");
    await store.cancel("5");
    await claimOne(store, { from: [{ name: "odd", lease: 1_000 }] });
    for (const filter of [
      {},
      { name: "odd" },
      { state: "cancelled" },
      { state: "pending" },
      { state: ["running", "cancelled"] },
    ]) {
      const oldest = await found(store, filter as Partial<ListFilter>);
      assert.ok(oldest.length >= 2, JSON.stringify(filter));
      assert.deepEqual(await found(store, { ...(filter as Partial<ListFilter>), order: "newest" }), oldest.toReversed());
    }
  });

  check("a page that earlier slices have filled continues at the job that did not fit", async ({ store }) => {
    const large = { input: JSON.stringify("x".repeat(3 * 1024 * 1024)), tags: ["large"] };
    const small = Array.from({ length: 1_200 }, () => ({}));
    await add(store, { ...large, id: "a" }, ...small, { ...large, id: "b" });
    for (const [order, ids] of [
      ["oldest", ["a", "b"]],
      ["newest", ["b", "a"]],
    ] as const) {
      const first = await store.queries.list({ limit: 10, tag: "large", order });
      const second = await store.queries.list({ limit: 10, tag: "large", order, after: first.next as string });
      assert.deepEqual(
        [first, second].map(({ items }) => items.map(({ id }) => id)),
        ids.map((id) => [id]),
        order,
      );
    }
  });

  check("a page ends at four megabytes, and the next one continues after its last job", async ({ store }) => {
    const MB = 1024 * 1024;
    const sizes = { a: 1, b: 1, c: 1, d: 3 * MB, e: 3 * MB, f: 6 * MB, g: 1, h: MB, i: 2 * MB };
    await add(store, ...Object.entries(sizes).map(([id, size]) => ({ id, input: JSON.stringify("x".repeat(size)) })));
    const pagesOf = async (filter: Partial<ListFilter>) => {
      const pages: string[] = [];
      for (let after: string | undefined; ;) {
        const page = await store.queries.list({ limit: 100, ...filter, ...(after !== undefined && { after }) });
        pages.push(page.items.map(({ id }) => id).join(""));
        if (page.next === undefined) return pages;
        after = page.next;
      }
    };
    for (const filter of [{}, { state: "pending" as const }, { createdAfter: 1 }, { state: ["succeeded", "pending"] as const }]) {
      assert.deepEqual(await pagesOf(filter), ["abcd", "e", "f", "ghi"], JSON.stringify(filter));
      assert.deepEqual(await pagesOf({ ...filter, order: "newest" }), ["ihg", "f", "e", "dcba"], JSON.stringify(filter));
    }
    assert.deepEqual(await pagesOf({ limit: 1 }), [..."abcdefghi"]);
  });

  check("a list of several states has the jobs of each, in order", async ({ store }) => {
    await add(store, ...["1", "2", "3", "4", "5"].map((id) => ({ id })));
    await store.cancel("4");
    await settle(store, await claimOne(store), SUCCEEDED);
    await settle(store, await claimOne(store), { kind: "error", error: { name: "Error", message: "no" }, retry: false });
    await claimOne(store);
    assert.deepEqual(await found(store, { state: ["failed", "cancelled"] }), ["2", "4"]);
    assert.deepEqual(await found(store, { state: ["cancelled", "running", "failed"] }), ["2", "3", "4"]);
    assert.deepEqual(await found(store, { state: ["succeeded", "pending"] }), ["1", "5"]);
    assert.deepEqual(await found(store, { state: ["pending", "running"] }), ["3", "5"]);
    assert.deepEqual(await found(store, { state: [] }), []);
  });

  check("a key finds its jobs of every name, finished or not", async ({ store }) => {
    await add(store, { id: "1", key: "a" });
    await settle(store, await claimOne(store), SUCCEEDED);
    await add(store, { id: "2", key: "a" }, { id: "3", key: "a", name: "other" }, { id: "4", key: "b" }, { id: "5" });
    assert.deepEqual(await found(store, { key: "a" }), ["1", "2", "3"]);
    assert.deepEqual(await found(store, { key: "a", name: "work" }), ["1", "2"]);
    assert.deepEqual(await found(store, { key: "a", state: "pending" }), ["2", "3"]);
    assert.deepEqual(await found(store, { key: "a", state: ["running", "waiting"] }), []);
    await add(store, { id: "6", key: "q", queue: "apart" });
    assert.deepEqual(await found(store, { key: "q", queue: "apart", state: "pending" }), ["6"]);
    assert.deepEqual(await found(store, { key: "q", queue: "work", state: "pending" }), []);
    assert.deepEqual(await found(store, { key: "c" }), []);
  });

  check(
    "jobs are found by creation and end time, from the first instant inclusive to the second exclusive",
    async ({ store, clock }) => {
      const start = clock.now();
      const HOUR = 3_600_000;
      for (const id of ["1", "2", "3", "4", "5", "6"]) {
        await add(store, { id });
        pass(clock, HOUR);
      }
      assert.deepEqual(await found(store, { createdAfter: start + 2 * HOUR }), ["3", "4", "5", "6"]);
      assert.deepEqual(await found(store, { createdBefore: start + 2 * HOUR }), ["1", "2"]);
      assert.deepEqual(await found(store, { createdAfter: start + HOUR, createdBefore: start + 4 * HOUR }), ["2", "3", "4"]);
      assert.deepEqual(await found(store, { createdAfter: start + HOUR, createdBefore: start + 4 * HOUR, order: "newest" }), [
        "4",
        "3",
        "2",
      ]);
      assert.deepEqual(await found(store, { createdAfter: start + 9 * HOUR }), []);
      assert.deepEqual(await found(store, { createdBefore: start }), []);
      const ended = clock.now();
      await store.cancel("5");
      pass(clock, HOUR);
      await store.cancel("1");
      assert.deepEqual(await found(store, { finishedAfter: ended }), ["1", "5"]);
      assert.deepEqual(await found(store, { finishedAfter: ended + 1 }), ["1"]);
      assert.deepEqual(await found(store, { finishedBefore: ended + HOUR }), ["5"]);
    },
  );

  check("a creation time finds nothing in an empty database", async ({ store }) => {
    assert.deepEqual(await found(store, { createdAfter: 1 }), []);
    assert.deepEqual(await found(store, { createdBefore: 1e13 }), []);
  });

  check("an error is found by a part of its name, code or message, ignoring case, and not by its stack", async ({ store }) => {
    const errors = [
      { name: "FetchError", message: 'The server said "no"', stack: "FetchError\n at connect (net.js)" },
      { name: "Error", message: "Zeitüberschreitung", code: "ETIMEDOUT" },
      { name: "Error", message: "50% of it" },
    ];
    await add(store, ...errors.map((_, n) => ({ id: String(n) })), { id: "pending" });
    for (const error of errors) await settle(store, await claimOne(store), { kind: "error", error, retry: false });
    const cases: Record<string, string[]> = {
      fetcherror: ["0"],
      'said "NO"': ["0"],
      zeitÜber: ["1"],
      timedout: ["1"],
      "50%": ["2"],
      "%": ["2"],
      ü: ["1"],
      "net.js": [],
      "": ["0", "1", "2"],
    };
    for (const [error, ids] of Object.entries(cases)) assert.deepEqual(await found(store, { error }), ids, error);
    assert.deepEqual(await found(store, { error: "error", state: "failed", order: "newest" }), ["2", "1", "0"]);
    assert.deepEqual(await found(store, { error: "error", state: "cancelled" }), []);
  });

  check("an input is found by the values at its paths, also a large one", async ({ store }) => {
    const inputs = {
      a: { user: { id: 7, name: 'Ann "A"' }, tags: ["x", "y"], ok: true, none: null },
      b: { user: { id: 70 }, id: 7, filler: "x".repeat(5_000), ok: false },
      c: { "user.id": 7 },
      d: [{ id: 7 }],
      e: 7,
      f: { user: { id: "7" } },
      g: { user: { id: -0 } },
    };
    await add(store, ...Object.entries(inputs).map(([id, input]) => ({ id, input: JSON.stringify(input) })), {
      id: "none",
      input: null,
    });
    assert.deepEqual(await found(store, { input: { "user.id": 7 } }), ["a", "c"]);
    assert.deepEqual(await found(store, { input: { "user.id": "7" } }), ["f"]);
    assert.deepEqual(await found(store, { input: { "user.id": 70, ok: false } }), ["b"]);
    assert.deepEqual(await found(store, { input: { "user.name": 'Ann "A"' } }), ["a"]);
    assert.deepEqual(await found(store, { input: { "tags.1": "y" } }), ["a"]);
    assert.deepEqual(await found(store, { input: { "0.id": 7 } }), ["d"]);
    assert.deepEqual(await found(store, { input: { none: null } }), ["a"]);
    assert.deepEqual(await found(store, { input: { id: 7 } }), ["b"]);
    assert.deepEqual(await found(store, { input: { "user.id": 0 } }), ["g"]);
    assert.deepEqual(await found(store, { input: { "user.__proto__": 7 } }), []);
  });

  check("a search reads a bounded number of rows, and continues after them", async ({ store }) => {
    const rows = 2_500;
    await store.enqueue(Array.from({ length: rows }, (_, n) => newJob({ input: n % 1_000 === 999 ? '{"n":-1}' : '{"n":1}' })));
    for (const order of ["oldest", "newest"] as const) {
      assert.equal((await found(store, { input: { n: -1 }, order })).length, 2);
      assert.equal((await found(store, { input: { n: -2 }, order })).length, 0);
      assert.equal(new Set(await found(store, { input: { n: 1 }, order, limit: 700 })).size, rows - 2);
    }
  });

  // ── tags ──

  check("tags stay with the job through retries, and find it", async ({ store }) => {
    await add(
      store,
      { id: "1", tags: ["red", 'the "big" one'] },
      { id: "2" },
      { id: "3", tags: ["redder"] },
      { id: "4", tags: [] },
    );
    assert.deepEqual((await see(store, "1")).tags, ["red", 'the "big" one']);
    assert.equal("tags" in (await see(store, "2")), false);
    assert.equal("tags" in (await see(store, "4")), false);
    assert.deepEqual(await found(store, { tag: "red" }), ["1"]);
    assert.deepEqual(await found(store, { tag: 'the "big" one' }), ["1"]);
    assert.deepEqual(await found(store, { tag: "tags" }), []);
    await settle(store, await claimOne(store), { kind: "error", error: { name: "Error", message: "no" }, retry: false });
    assert.equal(await store.retry("1"), true);
    const again = await claimOne(store);
    assert.equal(again.id, "1");
    await settle(store, again, SUCCEEDED, [newJob({ followUpId: "next", tags: ["blue"] })]);
    assert.deepEqual((await see(store, "1")).tags, ["red", 'the "big" one']);
    assert.deepEqual(await found(store, { tag: "blue" }), ["next"]);
  });
}
