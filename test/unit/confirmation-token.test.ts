import assert from "node:assert/strict";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import { BUILD_STATES, type MovingBuild } from "../../src/core/pipelines/build.ts";
import {
  hashToken,
  judgeToken,
  mintToken,
  type PresentedToken,
  refusedToken,
  type StoredToken,
  TOKEN_BYTES,
  TOKEN_LIFETIME_MS,
  type TokenRefusal,
} from "../../src/core/pipelines/budget.ts";

const NOW = Date.UTC(2026, 0, 1);
const BUILD: MovingBuild = { id: "b1", state: "BUDGET_PAUSE", seq: 4 };
const { token, stored } = mintToken(new Uint8Array(TOKEN_BYTES).fill(7), BUILD, NOW);
const GOOD: PresentedToken = { presented: token, stored, build: BUILD, now: NOW };

describe("a confirmation token", () => {
  test("a confirmation token is plain text made of the given bytes", () => {
    assert.match(token, /^hft_[\w-]{43}$/);
    assert.notEqual(mintToken(new Uint8Array(TOKEN_BYTES).fill(8), BUILD, NOW).token, token);
    assert.throws(() => mintToken(new Uint8Array(8), BUILD, NOW));
  });

  test("a confirmation token is stored as a hash bound to its build and pause, and the hash cannot resume a build", () => {
    assert.deepEqual(stored, {
      hash: hashToken(token),
      build: "b1",
      pause: 4,
      mintedAt: NOW,
      expiresAt: NOW + 60 * 60_000,
      usedAt: null,
      replacedAt: null,
    });
    assert.ok(!JSON.stringify(stored).includes(token.slice(4)));
    assert.equal(codeOf({ ...GOOD, presented: stored.hash }), "TOKEN_MALFORMED");
  });

  test("a confirmation token is made only for a paused build", () => {
    for (const state of BUILD_STATES) {
      const make = () => mintToken(new Uint8Array(TOKEN_BYTES), { ...BUILD, state }, NOW);
      if (state === "BUDGET_PAUSE") assert.ok(make());
      else assert.throws(make, { code: "BUILD_NOT_PAUSED" });
    }
  });

  test("a confirmation token resumes its build once", () => {
    const verdict = judgeToken(GOOD);
    assert.ok(verdict.ok);
    assert.deepEqual(verdict.used, { ...stored, usedAt: NOW });
    assert.equal(codeOf({ ...GOOD, stored: verdict.used }), "TOKEN_USED");
  });

  test("a confirmation token is valid until its hour is over, exclusive", () => {
    assert.ok(judgeToken({ ...GOOD, now: NOW + TOKEN_LIFETIME_MS - 1 }).ok);
    assert.equal(codeOf({ ...GOOD, now: NOW + TOKEN_LIFETIME_MS }), "TOKEN_EXPIRED");
  });

  const refusals: [string, Partial<PresentedToken>, TokenRefusal][] = [
    ["none is given", { presented: undefined, stored: null }, "TOKEN_NEEDED"],
    ["an empty one is given", { presented: "", stored: null }, "TOKEN_NEEDED"],
    ["it is cut short", { presented: token.slice(0, -1), stored: null }, "TOKEN_MALFORMED"],
    ["it is not a string", { presented: 5, stored: null }, "TOKEN_MALFORMED"],
    ["it was never issued", { stored: null }, "TOKEN_UNKNOWN"],
    ["what is stored is another's", { stored: { ...stored, hash: hashToken("hft_other") } }, "TOKEN_UNKNOWN"],
    ["it is of another build", { build: { ...BUILD, id: "b2" } }, "TOKEN_OF_ANOTHER_BUILD"],
    ["it was used", { stored: { ...stored, usedAt: NOW } }, "TOKEN_USED"],
    ["a newer one was made", { stored: { ...stored, replacedAt: NOW } }, "TOKEN_REPLACED"],
    ["it is of an earlier pause", { build: { ...BUILD, seq: 6 } }, "TOKEN_REPLACED"],
    ["it has expired", { now: NOW + TOKEN_LIFETIME_MS }, "TOKEN_EXPIRED"],
    ["the build runs already", { build: { ...BUILD, state: "ACTIVE" } }, "BUILD_NOT_PAUSED"],
    ["the build has ended", { build: { ...BUILD, state: "ABANDONED" } }, "BUILD_NOT_PAUSED"],
    ["the build has crashed", { build: { ...BUILD, state: "CRASHED" } }, "BUILD_NOT_PAUSED"],
  ];
  for (const [what, change, code] of refusals) {
    test(`a confirmation token is rejected when ${what}, with its own code and hint`, () => {
      const presented = { ...GOOD, ...change };
      const verdict = judgeToken(presented);
      assert.ok(!verdict.ok);
      assert.equal(verdict.code, code);
      const error = refusedToken(verdict.code, presented.build);
      assert.equal(error.code, code);
      assert.ok(error.hint !== "");
      assert.equal(
        error.message.includes(presented.build.id),
        code === "BUILD_NOT_PAUSED",
        "the state of the build is the reason",
      );
      assert.ok(!`${error.message}${error.hint}`.includes(token.slice(4, -1)));
    });
  }

  test("a confirmation token resumes a build only if everything matches", () => {
    fc.assert(
      fc.property(
        maybe<unknown>(token, "hft_x"),
        maybe<StoredToken | null>(stored, null),
        fc.record({ usedAt: maybe<number | null>(null, NOW), replacedAt: maybe<number | null>(null, NOW) }),
        fc.record({ id: maybe("b1", "b2"), state: fc.constantFrom(...BUILD_STATES), seq: maybe(4, 5) }),
        fc.integer({ min: NOW, max: NOW + 2 * TOKEN_LIFETIME_MS }),
        (presented, found, marks, build, now) => {
          const kept = found === null ? null : { ...found, ...marks };
          const right =
            presented === token &&
            kept !== null &&
            kept.usedAt === null &&
            kept.replacedAt === null &&
            build.id === "b1" &&
            build.state === "BUDGET_PAUSE" &&
            build.seq === 4 &&
            now < NOW + TOKEN_LIFETIME_MS;
          assert.equal(judgeToken({ presented, stored: kept, build, now }).ok, right);
        },
      ),
      { numRuns: 1_000 },
    );
  });
});

function maybe<T>(right: T, wrong: T): fc.Arbitrary<T> {
  return fc.constantFrom(right, right, wrong);
}

function codeOf(presented: PresentedToken): string | null {
  const verdict = judgeToken(presented);
  return verdict.ok ? null : verdict.code;
}
