import assert from "node:assert/strict";
import { test } from "node:test";
import { runInNewContext } from "node:vm";
import * as fc from "fast-check";
import { HoldfastError } from "../../src/core/errors.ts";
import { fromJson, toJson } from "../../src/core/json.ts";

test("every JSON value comes back as it was", () => {
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      // JSON has no -0.
      const plain: unknown = JSON.parse(JSON.stringify(value));
      assert.deepEqual(fromJson(toJson(plain, "input")), plain);
    }),
  );
});

test("no value has no text, and no text is no value", () => {
  assert.equal(toJson(undefined, "input"), null);
  assert.equal(fromJson(null), undefined);
  assert.equal(toJson(null, "input"), "null");
  assert.equal(fromJson("null"), null);
});

test("a property that is undefined is absent", () => {
  assert.equal(toJson({ a: undefined, b: 1 }, "input"), '{"b":1}');
});

test("objects without a prototype and of another realm are plain", () => {
  assert.equal(toJson(Object.assign(Object.create(null) as object, { a: 1 }), "input"), '{"a":1}');
  assert.equal(toJson(runInNewContext("({ a: [1, { b: 2 }] })"), "input"), '{"a":[1,{"b":2}]}');
});

test("the same object twice is no cycle", () => {
  const shared = { a: 1 };
  assert.equal(toJson([shared, shared, { shared }], "input"), '[{"a":1},{"a":1},{"shared":{"a":1}}]');
});

class Point {
  x = 1;
}
const circle: { self?: unknown } = {};
circle.self = { back: circle };
const ring: unknown[] = [];
ring.push([ring]);
const REFUSED: [string, unknown, string][] = [
  ["a date", new Date(0), "input is a Date"],
  ["a map", { a: new Map() }, "input.a is a Map"],
  ["a set", [new Set()], "input[0] is a Set"],
  ["a buffer", { bytes: Buffer.from("x") }, "input.bytes is a Buffer"],
  ["a typed array", new Uint8Array(2), "input is a Uint8Array"],
  ["a big integer", { a: [1, 2n] }, "input.a[1] is a bigint"],
  ["a function", { f: () => 1 }, "input.f is a function"],
  ["a symbol", Symbol("s"), "input is a symbol"],
  ["not a number", { a: { b: Number.NaN } }, "input.a.b is NaN"],
  ["infinity", [Number.POSITIVE_INFINITY], "input[0] is Infinity"],
  ["a hole in an array", [undefined], "input[0] is undefined"],
  ["a class instance", { p: new Point() }, "input.p is a Point"],
  ["an error", new Error("e"), "input is a Error"],
  ["an object with toJSON", { toJSON: () => 1 }, "input is an object with toJSON"],
  ["a cycle of objects", circle, "input.self.back is a cycle"],
  ["a cycle of arrays", ring, "input[0][0] is a cycle"],
];
for (const [what, value, says] of REFUSED) {
  test(`${what} is refused, and the error says where it is`, () => {
    assert.throws(
      () => toJson(value, "input"),
      (error) => {
        assert.ok(error instanceof HoldfastError);
        assert.equal(error.code, "NOT_JSON");
        assert.ok(error.message.startsWith(`${says},`), error.message);
        assert.notEqual(error.hint, "");
        return true;
      },
    );
  });
}

test("a value that is nested too deeply is refused, not a crash", () => {
  let deep: unknown = 1;
  for (let n = 0; n < 200_000; n++) deep = [deep];
  assert.throws(() => toJson(deep, "input"), { code: "NOT_JSON" });
});
