import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect, isDeepStrictEqual } from "node:util";
import * as fc from "fast-check";
import { canonicalJson, fromJson, toJson } from "../../src/core/text/json.ts";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { keyText, secret } from "../../src/core/pipelines/work.ts";

test("keys are sorted at every depth, and arrays keep their order", () => {
  assert.equal(
    canonicalJson({ b: 1, a: [{ d: 2, c: 3 }, "x"], 10: 0, 9: 0 }, "key"),
    '{"10":0,"9":0,"a":[{"c":3,"d":2},"x"],"b":1}',
  );
  assert.equal(canonicalJson("text", "key"), '"text"');
  assert.equal(canonicalJson([0, -0], "key"), "[0,-0]");
});

test("the order of an object's properties does not matter", () => {
  fc.assert(
    fc.property(fc.jsonValue(), fc.integer(), (value, seed) => {
      assert.equal(canonicalJson(shuffled(value, seed), "key"), canonicalJson(value, "key"));
    }),
  );
});

test("values have the same text exactly if they are the same JSON", () => {
  const small = fc.jsonValue({ maxDepth: 2, stringUnit: fc.constantFrom("a", '"', "\\", ",", ":", "{", "[") });
  fc.assert(
    fc.property(small, small, (a, b) => {
      const same = isDeepStrictEqual(plain(a), plain(b));
      assert.equal(canonicalJson(a, "key") === canonicalJson(b, "key"), same);
    }),
    { numRuns: 1_000 },
  );
});

test("the text is the JSON of the value", () => {
  fc.assert(fc.property(fc.jsonValue(), (value) => assert.deepEqual(JSON.parse(canonicalJson(value, "key")), plain(value))));
});

class Model {
  name = "m";
}
const circle: { self?: unknown } = {};
circle.self = [circle];
const named = Object.assign([1], { more: 2 });
const REFUSED: [string, unknown, string][] = [
  ["undefined", undefined, "key is undefined"],
  ["an undefined property", { model: { temperature: undefined } }, "key.model.temperature is undefined"],
  ["not a number", { model: { temperature: Number.NaN } }, "key.model.temperature is NaN"],
  ["infinity", [Number.NEGATIVE_INFINITY], "key[0] is -Infinity"],
  ["a date", { at: new Date(0) }, "key.at is a Date"],
  ["a map", { m: [new Map()] }, "key.m[0] is a Map"],
  ["a big integer", { n: 1n }, "key.n is a bigint"],
  ["a function", { f: () => 1 }, "key.f is a function"],
  ["a symbol", { s: Symbol("s") }, "key.s is a symbol"],
  ["a symbol for a name", { a: { [Symbol("s")]: 1 } }, "key.a is an object with a symbol for a name"],
  ["a class instance", { model: new Model() }, "key.model is a Model"],
  ["a pattern", /x/, "key is a RegExp"],
  ["bytes", { b: new Uint8Array(1) }, "key.b is a Uint8Array"],
  ["a promise", { p: Promise.resolve() }, "key.p is a Promise"],
  ["an object with toJSON", { a: { toJSON: () => 1 } }, "key.a is an object with toJSON"],
  ["a cycle", circle, "key.self[0] is a cycle"],
  ["a hole", { list: Array.from({ length: 2 }) }, "key.list[0] is undefined"],
  ["an array with names", named, "key is an array with properties of its own"],
  ["an odd name", { "a b": { "": 1n } }, 'key["a b"][""] is a bigint'],
  ["a secret by hand", { a: { $secret: "x" } }, 'key.a is an object with the name "$secret", which stands for secrets'],
];
for (const [what, value, says] of REFUSED) {
  test(`${what} is rejected, and the error names its place`, () => {
    assert.throws(
      () => canonicalJson(value, "key"),
      (error) => {
        assert.ok(error instanceof HoldfastError);
        assert.equal(error.code, "KEY_INVALID");
        assert.ok(error.message.startsWith(`${says},`), error.message);
        return error.hint !== "";
      },
    );
  });
}

test("a value that is nested too deeply is rejected without a crash", () => {
  let deep: unknown = 1;
  for (let n = 0; n < 200_000; n++) deep = [deep];
  assert.throws(() => canonicalJson(deep, "key"), { code: "KEY_INVALID" });
});

test("the same object twice is not a cycle", () => {
  const shared = { a: 1 };
  assert.equal(canonicalJson([shared, { shared }], "key"), '[{"a":1},{"shared":{"a":1}}]');
});

test("of a secret only its hash is in the text", () => {
  const text = canonicalJson({ token: secret("hunter2-hunter2") }, "key");
  assert.match(text, /^\{"token":\{"\$secret":"[0-9a-f]{64}"\}\}$/);
  assert.equal(text, canonicalJson({ token: secret("hunter2-hunter2") }, "key"));
  assert.notEqual(text, canonicalJson({ token: secret("hunter3-hunter3") }, "key"));
  assert.notEqual(canonicalJson(secret("1"), "key"), canonicalJson(secret(1), "key"));
});

test("a secret is never printed, and is not JSON", () => {
  const hidden = { token: secret("hunter2-hunter2") };
  const printed = [
    inspect(hidden, { depth: 9, showHidden: true, customInspect: true }),
    inspect(hidden, { depth: 9, showHidden: true, customInspect: false }),
    JSON.stringify(hidden),
    String(hidden.token),
    `${hidden.token}`,
  ];
  for (const text of printed) assert.ok(!text.includes("hunter2"), text);
  assert.throws(() => toJson(hidden, "output"), { code: "NOT_JSON" });
});

test("a secret that cannot be hashed is rejected at once, without being printed", () => {
  assert.throws(() => secret({ token: 5n }), { code: "KEY_INVALID", message: /^secret\.token is a bigint/ });
});

test("a key is a string, a number, an object or an array, or absent", () => {
  assert.deepEqual(
    ["a", 1, { a: 1 }, [1], undefined].map((key) => keyText(key, "key")),
    ['"a"', "1", '{"a":1}', "[1]", null],
  );
  for (const wrong of [null, true, 1n, () => 1, Symbol("s"), Promise.reject(new Error("late")), Number.NaN]) {
    assert.throws(() => keyText(wrong, "key"), { code: "KEY_INVALID" });
  }
});

function plain(value: unknown): unknown {
  return fromJson(toJson(value, "value"));
}

function shuffled(value: unknown, seed: number): unknown {
  if (Array.isArray(value)) return value.map((child) => shuffled(child, seed));
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).map(([name, child]) => [name, shuffled(child, seed)] as const);
  return Object.fromEntries(seed % 2 === 0 ? entries.toReversed() : [...entries.slice(1), ...entries.slice(0, 1)]);
}
