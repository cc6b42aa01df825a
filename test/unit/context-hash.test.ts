import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { isDeepStrictEqual } from "node:util";
import * as fc from "fast-check";
import { canonicalJson } from "../../src/core/text/json.ts";
import {
  contextHash,
  type ContextParts,
  memberHash,
  MembersHash,
  secret,
  type ValueHash,
  valueHash,
} from "../../src/core/pipelines/work.ts";
import { changedParts, explainRun } from "../../src/core/pipelines/build-view.ts";

const PARTS: ContextParts = {
  stage: "summarise",
  version: 1,
  key: canonicalJson({ model: "small", prompt: { text: "Sum up.", tone: "dry" } }, "key"),
  input: valueHash('"text"'),
  uses: { parse: valueHash("{}") },
  target: { id: "docs/a.md", hash: "aa" },
  reuse: "target",
};

/** Each changes one part. */
const CHANGES: [string, Partial<ContextParts>][] = [
  ["stage", { stage: "summarize" }],
  ["version", { version: 2 }],
  ["key", { key: canonicalJson({ model: "large" }, "key") }],
  ["no key", { key: null }],
  ["input", { input: valueHash('"other"') }],
  ["no input", { input: valueHash(null) }],
  ["uses", { uses: { parse: valueHash("[]") } }],
  ["nothing used", { uses: {} }],
  ["an output that is not there", { uses: { parse: null } }],
  ["an output of another stage", { uses: { load: valueHash("{}") } }],
  ["the target's id", { target: { id: "docs/b.md", hash: "aa" } }],
  ["the target's bytes", { target: { id: "docs/a.md", hash: "bb" } }],
];

describe("a context hash", () => {
  test("a context hash is a stable SHA-256 of its parts", () => {
    assert.match(contextHash(PARTS), /^[0-9a-f]{64}$/);
    assert.equal(contextHash({ ...PARTS, uses: { ...PARTS.uses } }), contextHash(PARTS));
    assert.equal(
      contextHash({
        stage: "s",
        version: 1,
        key: null,
        input: "none",
        uses: {},
        target: { id: "t", hash: "h" },
        reuse: "target",
      }),
      "8df2ce0b5f80f12af0b45b5f0d9f141c4ffeb97dd7747abf6b187106d766a3d7",
    );
  });

  for (const [what, change] of CHANGES) {
    test(`a context hash changes with its parts: ${what}`, () => {
      assert.notEqual(contextHash({ ...PARTS, ...change }), contextHash(PARTS));
    });
  }

  test("a context hash does not depend on the order of named outputs", () => {
    const [a, b] = [valueHash("1"), valueHash("2")];
    assert.equal(contextHash({ ...PARTS, uses: { a, b } }), contextHash({ ...PARTS, uses: { b, a } }));
  });

  test('leaves out the target\'s id with `reuse: "bytes"`, and nothing else', () => {
    const bytes = { ...PARTS, reuse: "bytes" } as const;
    assert.equal(contextHash({ ...bytes, target: { id: "copy.md", hash: "aa" } }), contextHash(bytes));
    assert.notEqual(contextHash({ ...bytes, target: { id: "docs/a.md", hash: "bb" } }), contextHash(bytes));
    assert.notEqual(contextHash(bytes), contextHash(PARTS));
  });

  test("a context hash is equal only for equal parts, however they are spelled", () => {
    fc.assert(
      fc.property(parts(), parts(), (a, b) => {
        assert.equal(contextHash(a) === contextHash(b), isDeepStrictEqual(plain(a), plain(b)));
      }),
      { numRuns: 2_000 },
    );
  });

  test("a context hash changes exactly when why names a part", () => {
    fc.assert(
      fc.property(parts(), parts(), (a, b) => {
        assert.equal(contextHash(a) === contextHash(b), changedParts(a, b).length === 0);
      }),
      { numRuns: 2_000 },
    );
  });
});

test("the hash of a value distinguishes JSON, bytes and nothing", () => {
  const hashes = [valueHash("1"), valueHash(Buffer.from("1")), valueHash(null), valueHash("null"), valueHash(new Uint8Array())];
  assert.equal(new Set(hashes).size, hashes.length);
  assert.equal(valueHash(Buffer.from("abc")), "bytes:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
});

describe("the hash of a gather's members", () => {
  test("the hash of a gather changes with any member, any hash, the number of members, and failures", () => {
    const hashes = [
      of([]),
      of([], 1),
      of([["a", "1"]]),
      of([["a", "2"]]),
      of([["b", "1"]]),
      of([
        ["a", "1"],
        ["b", "1"],
      ]),
      of([["a", "1"]], 1),
      of([['a","1"]\n["b', "1"]]),
    ];
    assert.equal(new Set(hashes).size, hashes.length);
  });

  test("the hash of a gather is computed in the order of ids, by bytes", () => {
    assert.throws(() =>
      of([
        ["b", "1"],
        ["a", "1"],
      ]),
    );
    assert.throws(() =>
      of([
        ["a", "1"],
        ["a", "1"],
      ]),
    );
    // Code units would have these the other way round.
    of([
      ["\u{ffee}", "1"],
      ["\u{1f600}", "1"],
    ]);
  });

  test("the hash of a gather covers every output that the gather can read", () => {
    const member = { target: "aa", output: valueHash("1"), outputs: { parse: valueHash("2"), check: null } };
    const hashes = [
      memberHash(member),
      memberHash({ ...member, target: "bb" }),
      memberHash({ ...member, output: valueHash("3") }),
      memberHash({ ...member, outputs: { ...member.outputs, parse: valueHash("3") } }),
      memberHash({ ...member, outputs: { ...member.outputs, check: valueHash("3") } }),
    ];
    assert.equal(new Set(hashes).size, hashes.length);
    const { parse, check } = member.outputs;
    assert.equal(memberHash({ ...member, outputs: { check, parse } }), hashes[0]);
  });
});

describe("why a stage ran", () => {
  test("why names the innermost part of the key that changed, with both values", () => {
    const after = { ...PARTS, key: canonicalJson({ model: "small", prompt: { text: "Sum up!", tone: "dry" } }, "key") };
    assert.deepEqual(explainRun({ ran: true, before: PARTS, after }), {
      ran: true,
      reason: "Ran: key.prompt.text changed.",
      parts: [{ part: "key.prompt.text", before: "Sum up.", after: "Sum up!" }],
    });
  });

  test("why names every part that changed", () => {
    const after: ContextParts = {
      ...PARTS,
      version: 2,
      key: null,
      uses: { load: null },
      target: { id: PARTS.target.id, hash: "bb" },
    };
    assert.deepEqual(
      changedParts(PARTS, after).map(({ part }) => part),
      ["key", "target.hash", "uses.load", "uses.parse", "version"],
    );
  });

  test("why shows a new or removed part as undefined on the other side", () => {
    const [before, after] = [withKey({ a: 1, list: [1] }), withKey({ list: [1, 2], "b c": null })];
    assert.deepEqual(changedParts(before, after), [
      { part: "key.a", before: 1, after: undefined },
      { part: 'key["b c"]', before: undefined, after: null },
      { part: "key.list[1]", before: undefined, after: 2 },
    ]);
  });

  test("why shows that secrets differ, and nothing else of them", () => {
    const [before, after] = [withKey({ token: secret("hunter2") }), withKey({ token: secret("hunter3") })];
    const [change, ...more] = changedParts(before, after);
    assert.deepEqual(more, []);
    assert.equal(change?.part, "key.token");
    for (const shown of [change?.before, change?.after]) assert.match(String(shown), /^\[secret [0-9a-f]{12}\]$/);
  });

  test("why leaves out the id of a target that is identified by its bytes", () => {
    const bytes = { ...PARTS, reuse: "bytes" } as const;
    assert.deepEqual(changedParts(bytes, { ...bytes, target: { id: "copy.md", hash: "aa" } }), []);
  });

  test("why says in words that nothing changed", () => {
    const same = { before: PARTS, after: PARTS };
    assert.match(explainRun({ ran: false, ...same }).reason, /^Reused/);
    assert.match(explainRun({ ran: true, ...same, forced: true }).reason, /rerun/);
    assert.match(explainRun({ ran: true, ...same, failedBefore: true }).reason, /last attempt failed/);
    assert.match(explainRun({ ran: true, before: null, after: PARTS, failedBefore: true }).reason, /last attempt failed/);
    assert.match(explainRun({ ran: true, before: null, after: PARTS }).reason, /had no result before/);
    assert.match(explainRun({ ran: true, ...same }).reason, /was deleted/);
    assert.match(explainRun({ ran: false, ...same, edited: true }).reason, /^Reused.*code was edited.*version was not raised/);
  });

  test("why is brief where much changed", () => {
    const after = { ...PARTS, key: canonicalJson(Object.fromEntries([..."abcdefgh"].map((name) => [name, 1])), "key") };
    const { reason, parts } = explainRun({ ran: true, before: { ...PARTS, key: "{}" }, after });
    assert.equal(parts.length, 8);
    assert.equal(reason, "Ran: key.a, key.b, key.c, key.d, key.e and 3 more changed.");
  });
});

function of(members: [string, string][], failed = 0): ValueHash {
  const all = new MembersHash();
  for (const [id, hash] of members) all.add(id, hash);
  return all.end(failed);
}

function withKey(key: unknown): ContextParts {
  return { ...PARTS, key: canonicalJson(key, "key") };
}

/** Few values, so that equal ones meet, and such as would run together without a clear edge between them. */
function parts(): fc.Arbitrary<ContextParts> {
  const text = fc.constantFrom("a", "b", 'a","b', "a|b", "");
  const value = fc.constantFrom<ValueHash[]>("none", "json:a", "bytes:a");
  return fc
    .record({
      stage: text,
      version: fc.nat(1),
      key: fc.constantFrom(null, "null", '"a"', '{"a":1}', '{"a":{"b":1}}'),
      input: value,
      uses: fc.dictionary(text, fc.option(value), { maxKeys: 2, noNullPrototype: true }),
      target: fc.record({ id: text, hash: text }, { noNullPrototype: true }),
      reuse: fc.constantFrom<("target" | "bytes")[]>("target", "bytes"),
    })
    .chain((one) => fc.constantFrom(one, { ...one, version: 0, stage: "a" }));
}

/** What counts of the parts. */
function plain({ target, reuse, ...rest }: ContextParts): unknown {
  return { ...rest, uses: { ...rest.uses }, target: reuse === "bytes" ? { hash: target.hash } : { ...target }, reuse };
}
