import assert from "node:assert/strict";
import { hash } from "node:crypto";
import { describe, test } from "node:test";
import { items, type ItemsSource, sourceOf } from "../../src/core/pipelines/source.ts";
import { type ListedItem, listItems } from "../../src/pipelines/sources/items.ts";

type Options = Parameters<typeof items<unknown>>[1];
const BY_ID: Options = { id: (value) => (value as { id: string }).id };

describe("items", () => {
  for (const [kind, list] of Object.entries({
    "an array": () => [{ id: "a" }, { id: "b" }],
    "a generator": function* () {
      yield { id: "a" };
      yield { id: "b" };
    },
    "an asynchronous generator": async function* () {
      yield { id: "a" };
      yield { id: "b" };
    },
    "an array of promises": () => [Promise.resolve({ id: "a" }), Promise.resolve({ id: "b" })],
  })) {
    test(`items of ${kind} are listed in its order`, async () => {
      assert.deepEqual(await listed(list), [
        { id: "a", hash: hash("sha256", '{"id":"a"}'), value: '{"id":"a"}', cursor: null },
        { id: "b", hash: hash("sha256", '{"id":"b"}'), value: '{"id":"b"}', cursor: null },
      ]);
    });
  }

  test("an item's hash is that of its version, or of its value however it is spelled", async () => {
    const [a, b] = await listed(() => [
      { id: "1", x: 1, y: undefined },
      { x: 1, id: "1" },
    ]);
    const [c] = await listed(() => [{ id: "1", x: 2 }]);
    assert.equal(a?.hash, b?.hash);
    assert.notEqual(a?.hash, c?.hash);
    const [d, e] = await listed(
      () => [
        { id: "1", x: 1 },
        { id: "1", x: 2 },
      ],
      { ...BY_ID, version: (value) => `v${(value as { id: string }).id}` },
    );
    assert.equal(d?.hash, hash("sha256", "v1"));
    assert.equal(d?.hash, e?.hash);
  });

  test("different items with one id are rejected, and a repeated equal item is accepted", async () => {
    const between = Array.from({ length: 2_000 }, (_, n) => ({ id: `n${n}`, x: 0 }));
    const twice = (x: number) => [{ id: "a", x: 1 }, ...between, { id: "a", x }];
    assert.equal((await listed(() => twice(1))).length, 2_002);
    await assert.rejects(
      listed(() => twice(2)),
      { code: "TARGET_TWICE", message: 'Two different items have the id "a".', hint: /a unique id/ },
    );
    const byVersion: Options = { ...BY_ID, version: (value) => String((value as { x: number }).x) };
    await assert.rejects(
      listed(() => twice(2), byVersion),
      { code: "TARGET_TWICE", message: /their versions differ/ },
    );
    const sameVersion: Options = { ...BY_ID, version: () => "1" };
    assert.equal((await listed(() => twice(2), sameVersion)).length, 2_002);
  });

  test("items continue after a cursor", async () => {
    const all = ["a", "b", "c"].map((id, i) => ({ id, at: String(i) }));
    const source = sourceOf(
      items((after?: string) => all.filter(({ at }) => after === undefined || at > after), {
        id: ({ id }) => id,
        cursor: ({ at }) => at,
      }),
    ) as ItemsSource;
    const first = await listItems(source).next();
    assert.equal(first.value?.cursor, "0");
    assert.deepEqual(
      (await collect(listItems(source, "0"))).map(({ id, cursor }) => [id, cursor]),
      [
        ["b", "1"],
        ["c", "2"],
      ],
    );
  });

  for (const kind of ["sync", "async"]) {
    test(`a ${kind} generator of items is closed when the caller stops, and when an item is rejected`, async () => {
      let closed = 0;
      const sync = function* () {
        try {
          for (let i = 0; ; i++) yield { id: i === 2 ? "" : `i${i}` };
        } finally {
          closed++;
        }
      };
      const list = kind === "sync" ? sync : () => asynchronous(sync());
      for await (const item of listItems(source(list))) {
        assert.equal(item.id, "i0");
        break;
      }
      assert.equal(closed, 1);
      await assert.rejects(listed(list), { code: "TARGET_ID_INVALID" });
      assert.equal(closed, 2);
    });
  }

  const FAILING: [string, () => Iterable<unknown> | AsyncIterable<unknown>, Options, RegExp][] = [
    ["list throws", boom, BY_ID, /^The list of items\(\) threw: boom/],
    ["generator throws", () => asynchronous({ [Symbol.iterator]: boom }), BY_ID, /^The list of items\(\) threw: boom/],
    ["promise is rejected", () => [Promise.reject(new TypeError("boom"))], BY_ID, /^The list of items\(\) threw: boom/],
    ["id throws", () => [{ id: "a" }], { id: boom }, /`id` of items\(\) threw: boom/],
    ["version throws", () => [{ id: "a" }], { ...BY_ID, version: boom }, /`version` for item "a" of items\(\) threw: boom/],
    ["cursor throws", () => [{ id: "a" }], { ...BY_ID, cursor: boom }, /`cursor` for item "a" of items\(\) threw: boom/],
  ];
  for (const [what, list, options, message] of FAILING) {
    test(`items whose ${what} fail with what was thrown`, async () => {
      await assert.rejects(listed(list, options), (error: Error & { code: string; hint: string }) => {
        assert.equal(error.code, "SOURCE_FAILED");
        assert.match(error.message, message);
        assert.ok(error.cause instanceof TypeError);
        assert.match(error.hint, /\w/);
        return true;
      });
    });
  }

  const REFUSED: [string, unknown, Partial<Options>, string, RegExp][] = [
    ["an id that is a number", { id: 7 }, {}, "TARGET_ID_INVALID", /is 7/],
    ["an empty id", { id: "" }, {}, "TARGET_ID_INVALID", /is ""/],
    ["an id of half a character", { id: "\ud800" }, {}, "TARGET_ID_INVALID", /ud800/],
    ["an id that is too long", { id: "ä".repeat(1_001) }, {}, "TARGET_ID_INVALID", /2002 bytes/],
    ["an id with a zero", { id: "a\0" }, {}, "TEXT_INVALID", /U\+0000/],
    ["a date in it", { id: "a", at: new Date(0) }, {}, "NOT_JSON", /^`at` in the item "a" is a Date/],
    ["no value", undefined, { id: () => "a" }, "SOURCE_INVALID", /item "a" is undefined/],
    [
      "a version that is not a string",
      { id: "a" },
      { version: () => 1 as never },
      "SOURCE_INVALID",
      /`version` .* 1 for item "a"/,
    ],
    [
      "a cursor that is not a string",
      { id: "a" },
      { cursor: () => undefined as never },
      "SOURCE_INVALID",
      /`cursor` .* undefined for item "a"/,
    ],
    ["a cursor with a zero", { id: "a" }, { cursor: () => "\0" }, "TEXT_INVALID", /`cursor` .* item "a"/],
  ];
  for (const [what, value, options, code, message] of REFUSED) {
    test(`items with ${what} are rejected`, async () => {
      await assert.rejects(
        listed(() => [value], { ...BY_ID, ...options }),
        { name: "HoldfastError", code, message, hint: /\w/ },
      );
    });
  }

  for (const [what, made] of Object.entries<() => unknown>({
    null: () => null,
    nothing: () => undefined,
    "a number": () => 7,
    "a text": () => "text",
    "an object": () => ({}),
    "a promise": () => Promise.reject(new Error("unheard")),
  })) {
    test(`items whose list returns ${what} are rejected`, async () => {
      await assert.rejects(listed(made as never), { code: "SOURCE_INVALID", message: /cannot be iterated/, hint: /generator/ });
    });
  }

  test("items may be any JSON value", async () => {
    const values = await listed(() => ["text", 1, null, [1]], { id: (value) => JSON.stringify(value) });
    assert.deepEqual(
      values.map(({ value }) => value),
      ['"text"', "1", "null", "[1]"],
    );
  });
});

function source(list: () => Iterable<unknown> | AsyncIterable<unknown>, options = BY_ID): ItemsSource {
  return sourceOf(items(list, options)) as ItemsSource;
}

function listed(list: () => Iterable<unknown> | AsyncIterable<unknown>, options = BY_ID): Promise<ListedItem[]> {
  return collect(listItems(source(list, options)));
}

async function collect<T>(iterable: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const one of iterable) all.push(one);
  return all;
}

async function* asynchronous<T>(iterable: Iterable<T>): AsyncGenerator<T> {
  yield* iterable;
}

function boom(): never {
  throw new TypeError("boom");
}
