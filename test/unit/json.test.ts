import assert from "node:assert/strict";
import { test } from "node:test";
import { runInNewContext } from "node:vm";
import * as fc from "fast-check";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { fromJson, toJson } from "../../src/core/text/json.ts";

test("every JSON value survives a round trip", () => {
  fc.assert(
    fc.property(fc.jsonValue(), fc.constantFrom(0, -0), (value, zero) => {
      const given = { value, zero, list: [zero, { zero }] };
      assert.deepEqual(fromJson(toJson(given, "input")), given);
    }),
  );
});

test("rare JSON values survive a round trip: minus zero, odd names, lone surrogates, very large numbers", () => {
  const names = Object.fromEntries(["", "__proto__", "a b", "\0", "constructor"].map((name) => [name, name]));
  for (const value of [-0, [-0], { a: { b: -0 } }, names, "\ud800", "\u2028\0", 1e21, 5e-324, Number.MAX_SAFE_INTEGER, {}, []]) {
    assert.deepEqual(fromJson(toJson(value, "input")), value);
  }
  assert.equal(toJson({ a: -0, b: [0, -0] }, "input"), '{"a":-0,"b":[0,-0]}');
});

test("hidden symbols of a library do not make an object invalid", () => {
  assert.equal(toJson(Object.defineProperty({ a: 1 }, Symbol("mark"), { value: 1, enumerable: false }), "input"), '{"a":1}');
});

test("undefined has no text, and no text is undefined", () => {
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

test("the same object twice is not a cycle", () => {
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
  ["a date", new Date(0), "The input is a Date"],
  ["a map", { a: new Map() }, "`input.a` is a Map"],
  ["a set", [new Set()], "`input[0]` is a Set"],
  ["a buffer", { bytes: Buffer.from("x") }, "`input.bytes` is a Buffer"],
  ["a typed array", new Uint8Array(2), "The input is a Uint8Array"],
  ["a big integer", { a: [1, 2n] }, "`input.a[1]` is a bigint"],
  ["a function", { f: () => 1 }, "`input.f` is a function"],
  ["a symbol", Symbol("s"), "The input is a symbol"],
  ["not a number", { a: { b: Number.NaN } }, "`input.a.b` is NaN"],
  ["infinity", [Number.POSITIVE_INFINITY], "`input[0]` is Infinity"],
  ["a hole in an array", [undefined], "`input[0]` is undefined"],
  ["a class instance", { p: new Point() }, "`input.p` is a Point"],
  ["an error", new Error("e"), "The input is a Error"],
  ["an object with toJSON", { toJSON: () => 1 }, "The input is an object with toJSON"],
  ["a symbol for a name", { a: { [Symbol("s")]: 1 } }, "`input.a` is an object with a symbol for a name"],
  ["an array with names", { found: "abc".match(/b/) }, "`input.found` is an array with properties of its own"],
  ["an array with names only", [Object.assign([1], { more: 2 })], "`input[0]` is an array with properties of its own"],
  ["what has an odd name", { "a b": [{ "": 1n }] }, '`input["a b"][0][""]` is a bigint'],
  ["a boxed number", { n: Object(1) }, "`input.n` is a Number"],
  ["a cycle of objects", circle, "`input.self.back` is a cycle"],
  ["a cycle of arrays", ring, "`input[0][0]` is a cycle"],
];
for (const [what, value, says] of REFUSED) {
  test(`${what} is rejected, and the error names its place`, () => {
    assert.throws(
      () => toJson(value, "The input"),
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

test("a value that is nested too deeply is rejected without a crash", () => {
  let deep: unknown = 1;
  for (let n = 0; n < 200_000; n++) deep = [deep];
  assert.throws(() => toJson(deep, "input"), { code: "NOT_JSON" });
});
