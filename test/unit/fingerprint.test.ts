import assert from "node:assert/strict";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import { type FileStat, type Fingerprint, mayHaveChanged, needsHash, toFingerprint } from "../../src/core/pipelines/work.ts";

const AT = 1_700_000_000_000;
const STAT: FileStat = { size: 5, mtime: nanos(AT - 60_000), ctime: nanos(AT - 60_000), inode: "77" };
const KNOWN: Fingerprint = toFingerprint(STAT, "ab".repeat(32), AT);

/** What is different, and who has to look at the bytes because of it. */
const CASES: [string, Partial<FileStat>, { listing: boolean; commit: boolean }][] = [
  ["nothing else", {}, { listing: false, commit: false }],
  ["another size", { size: 6 }, { listing: true, commit: true }],
  ["a later time", { mtime: nanos(AT + 1) }, { listing: true, commit: true }],
  ["an earlier time", { mtime: nanos(AT - 3_600_000) }, { listing: true, commit: true }],
  ["a time that is later by a nanosecond", { mtime: `${BigInt(STAT.mtime) + 1n}` }, { listing: true, commit: true }],
  ["another change time only", { ctime: nanos(AT + 1) }, { listing: false, commit: true }],
  ["another inode only", { inode: "78" }, { listing: false, commit: true }],
];

describe("a fingerprint", () => {
  for (const [what, change, { listing, commit }] of CASES) {
    test(`with ${what}: a listing ${listing ? "hashes" : "does not hash"}, a commit ${commit ? "does" : "does not"}`, () => {
      assert.equal(needsHash(KNOWN, { ...STAT, ...change }), listing);
      assert.equal(mayHaveChanged(KNOWN, { ...STAT, ...change }), commit);
    });
  }

  test("a missing fingerprint is computed", () => {
    assert.equal(needsHash(null, STAT), true);
  });

  for (const [age, racy] of [
    [-5_000, true],
    [0, true],
    [2_000, true],
    [2_001, false],
  ] as const) {
    test(`of a file that was written ${age} ms before it was hashed is ${racy ? "not " : ""}trusted`, () => {
      const stat = { ...STAT, mtime: nanos(AT - age) };
      const print = toFingerprint(stat, KNOWN.hash, AT);
      assert.equal(needsHash(print, stat), racy);
      assert.equal(mayHaveChanged(print, stat), racy);
    });
  }

  test("a fingerprint is compared to the nanosecond", () => {
    const edge = BigInt(AT - 2_000) * 1_000_000n;
    for (const [mtime, racy] of [
      [`${edge}`, true],
      [`${edge - 1n}`, false],
    ] as const) {
      assert.equal(needsHash(toFingerprint({ ...STAT, mtime }, KNOWN.hash, AT), { ...STAT, mtime }), racy);
    }
  });

  test("a file from before 1970 has a fingerprint", () => {
    const stat = { ...STAT, mtime: "-1000000001" };
    assert.equal(needsHash(toFingerprint(stat, KNOWN.hash, AT), stat), false);
  });

  test("a fingerprint is plain JSON with the documented parts", () => {
    const print = toFingerprint({ ...STAT, more: 1 } as FileStat, KNOWN.hash, AT);
    assert.deepEqual(JSON.parse(JSON.stringify(print)), print);
    assert.deepEqual(Object.keys(print).sort(), ["ctime", "hash", "hashedAt", "inode", "mtime", "size"]);
  });

  test("a commit reads the bytes whenever a listing would", () => {
    const stat = fc.record({
      size: fc.nat(3),
      mtime: fc.integer({ min: AT - 4_000, max: AT + 4_000 }).map(nanos),
      ctime: fc.nat(3).map(String),
      inode: fc.nat(3).map(String),
    });
    fc.assert(
      fc.property(stat, stat, (before, now) => {
        const print = toFingerprint(before, KNOWN.hash, AT);
        assert.ok(!needsHash(print, now) || mayHaveChanged(print, now));
      }),
    );
  });
});

function nanos(millis: number): string {
  return `${BigInt(millis) * 1_000_000n}`;
}
