import assert from "node:assert/strict";
import { hashToken, TOKEN_LIFETIME_MS } from "../../src/core/pipelines/budget.ts";
import { breakOrchestratorLock, type Approval, leadOf } from "../../src/store/builds.ts";
import type { Store } from "../../src/store/store.ts";
import {
  bytes,
  claimable,
  everything,
  type Led,
  made,
  PAUSED,
  paused,
  refused,
  isQueuePaused,
  resuming,
  seeBuild,
  started,
  STOPPED,
  stopped,
  tokenOf,
  toldOf,
} from "./build-parts.ts";
import { pass } from "./parts.ts";
import type { Check } from "./suite.ts";

const TEN = { usd: 10 };

/** The two ways in which a token is given. */
const WAYS: Record<string, (store: Store, led: Led, approval: Approval) => Promise<unknown>> = {
  resume: (store, led, approval) => store.builds.start(resuming(led, { approval })),
  approve: (store, { build }, approval) => store.builds.authorize(build.id, approval, "operator"),
};

export function tokenCases(check: Check): void {
  check("a build pauses for its budget only with a token for its resume, and releases its lock", async ({ store }) => {
    const { build, lock } = await started(store);
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, PAUSED, lock));
    const rest = made(await store.builds.move(build.id, PAUSED, lock, { bytes: bytes(1) }));
    assert.deepEqual([rest.state, rest.reason, rest.seq, rest.finishedAt], ["BUDGET_PAUSE", "budget_precheck_block", 2, null]);
    assert.equal(await leadOf(store.builds, "docs"), null);
    assert.equal(await isQueuePaused(store, build), true);
    assert.equal(await claimable(store, build), 0);
    const [, told] = await toldOf(store, build);
    assert.deepEqual([told?.type, told?.data["to"]], ["build.paused", "BUDGET_PAUSE"]);
  });

  check("a paused build resumes with the token and a new budget, in one commit", async ({ store }) => {
    const led = await paused(store);
    const build = made(await store.builds.start(resuming(led, { approval: { token: tokenOf(1), budget: TEN } })));
    assert.deepEqual([build.state, build.reason, build.seq], ["ACTIVE", "budget_approved", 3]);
    assert.deepEqual([build.budget, build.approved, build.blocked], [{ micros: 10_000_000, tokens: null }, false, null]);
    assert.equal((await leadOf(store.builds, "docs"))?.build, build.id);
    assert.equal(await claimable(store, build), 1);
    const told = (await toldOf(store, build)).at(-1);
    assert.deepEqual([told?.type, told?.data["budget"]], ["build.resumed", TEN]);
    const entry = (await store.audit.page({ after: 0, limit: 10, subject: build.id })).at(-1) ?? assert.fail();
    assert.deepEqual([entry.before, entry.after].map(budgetOf), [{ usd: 5 }, TEN]);
  });

  check("parts that the new budget does not name stay unchanged", async ({ store }) => {
    const led = await paused(store, { budget: { micros: 5_000_000, tokens: 100 } });
    const approval = { token: tokenOf(1), budget: { tokens: 1_000 } };
    const build = made(await store.builds.start(resuming(led, { approval })));
    assert.deepEqual(build.budget, { micros: 5_000_000, tokens: 1_000 });
  });

  for (const [way, give] of Object.entries(WAYS)) {
    check(`an invalid token changes nothing: ${way}`, async ({ store }) => {
      const led = await paused(store);
      const other = await started(store, { pipeline: "blog", token: "token-9" });
      await store.builds.move(other.build.id, PAUSED, other.lock, { bytes: bytes(9) });
      const wrong: [code: string, token: unknown][] = [
        ["TOKEN_NEEDED", undefined],
        ["TOKEN_NEEDED", ""],
        ["TOKEN_MALFORMED", 7],
        ["TOKEN_MALFORMED", {}],
        ["TOKEN_MALFORMED", tokenOf(1).slice(0, -1)],
        ["TOKEN_MALFORMED", hashToken(tokenOf(1))],
        ["TOKEN_UNKNOWN", tokenOf(2)],
        ["TOKEN_OF_ANOTHER_BUILD", tokenOf(9)],
      ];
      for (const [code, token] of wrong) await refused(store, code, () => give(store, led, { token, budget: TEN }));
      assert.ok(await give(store, led, { token: tokenOf(1), budget: TEN }), "and the right one is still good");
    });

    check(`an invalid budget does not use up the token: ${way}`, async ({ store }) => {
      const led = await paused(store);
      const token = tokenOf(1);
      await refused(store, "BUDGET_INVALID", () => give(store, led, { token, budget: {} }));
      await refused(store, "COST_INVALID", () => give(store, led, { token, budget: { usd: -1 } }));
      await refused(store, "COST_INVALID", () => give(store, led, { token, budget: { dollars: 1 } as object }));
      assert.ok(await give(store, led, { token, budget: TEN }));
    });

    check(`a token is valid for an hour, and not a millisecond more: ${way}`, async ({ store, clock }) => {
      const led = await paused(store);
      pass(clock, TOKEN_LIFETIME_MS);
      await refused(store, "TOKEN_EXPIRED", () => give(store, led, { token: tokenOf(1), budget: TEN }));
      await store.builds.authorize(led.build.id, { bytes: bytes(2) }, "operator");
      pass(clock, TOKEN_LIFETIME_MS - 1);
      assert.ok(await give(store, led, { token: tokenOf(2), budget: TEN }));
    });

    check(`a newer token replaces older ones: ${way}`, async ({ store }) => {
      const led = await paused(store);
      await store.builds.authorize(led.build.id, { bytes: bytes(2) }, "operator");
      await store.builds.authorize(led.build.id, { bytes: bytes(3) }, "operator");
      for (const old of [1, 2]) {
        await refused(store, "TOKEN_REPLACED", () => give(store, led, { token: tokenOf(old), budget: TEN }));
      }
      assert.ok(await give(store, led, { token: tokenOf(3), budget: TEN }));
    });

    check(`a token is valid for its own pause, and not for a later one: ${way}`, async ({ store }) => {
      const led = await paused(store);
      await store.builds.authorize(led.build.id, { bytes: bytes(2) }, "operator");
      await store.builds.start(resuming(led, { approval: { token: tokenOf(2), budget: TEN } }));
      await store.builds.move(led.build.id, PAUSED, { pipeline: "docs", token: "token-2" }, { bytes: bytes(3) });
      await refused(store, "TOKEN_REPLACED", () => give(store, led, { token: tokenOf(1), budget: TEN }));
      await refused(store, "TOKEN_USED", () => give(store, led, { token: tokenOf(2), budget: TEN }));
      assert.ok(await give(store, led, { token: tokenOf(3), budget: TEN }));
    });

    check(`a build that is not paused has nothing to approve: ${way}`, async ({ store }) => {
      const led = await stopped(store);
      await refused(store, "BUILD_NOT_PAUSED", () => give(store, led, { token: tokenOf(1), budget: TEN }));
    });
  }

  check("a paused build without a token does not continue", async ({ store }) => {
    const led = await paused(store);
    await refused(store, "TOKEN_NEEDED", () => store.builds.start(resuming(led)));
  });

  check("another pipeline is rejected before a token is used", async ({ store }) => {
    const led = await paused(store);
    const approval = { token: tokenOf(1), budget: TEN };
    await refused(store, "PIPELINE_CHANGED", () => store.builds.start(resuming(led, { version: 2, approval })));
    assert.equal(made(await store.builds.start(resuming(led, { approval }))).state, "ACTIVE");
  });

  check("of two concurrent uses of one token, one succeeds", async ({ store }) => {
    const { build } = await paused(store);
    const approval = { token: tokenOf(1), budget: TEN };
    const both = await Promise.allSettled(["alice", "bob"].map((by) => store.builds.authorize(build.id, approval, by)));
    assert.deepEqual(both.map(({ status }) => status).toSorted(), ["fulfilled", "rejected"]);
    const lost = both.find(({ status }) => status === "rejected") as PromiseRejectedResult;
    assert.equal((lost.reason as { code: string }).code, "TOKEN_USED");
  });

  check("an approval is kept until the build is resumed, which then needs no token", async ({ store }) => {
    const led = await paused(store);
    const approval = { token: tokenOf(1), budget: TEN };
    const approved = made(await store.builds.authorize(led.build.id, approval, "alice"));
    assert.deepEqual([approved.state, approved.seq, approved.approved], ["BUDGET_PAUSE", 2, true]);
    assert.deepEqual(approved.budget, { micros: 10_000_000, tokens: null });
    assert.equal(await isQueuePaused(store, led.build), true, "nothing runs yet");
    await refused(store, "TOKEN_USED", () => store.builds.authorize(led.build.id, approval, "alice"));
    const build = made(await store.builds.start(resuming(led)));
    assert.deepEqual([build.state, build.reason, build.approved], ["ACTIVE", "budget_approved", false]);
    assert.deepEqual(
      (await toldOf(store, build)).map(({ type }) => type),
      ["build.started", "build.paused", "build.approved", "build.resumed"],
    );
    await store.builds.move(build.id, PAUSED, { pipeline: "docs", token: "token-2" }, { bytes: bytes(2) });
    await refused(store, "TOKEN_NEEDED", () => store.builds.start(resuming(led, { token: "token-3" })));
  });

  check("an operator may approve again with another token: each approval has an event and an audit entry", async ({ store }) => {
    const { build } = await paused(store);
    await store.builds.authorize(build.id, { token: tokenOf(1), budget: TEN }, "alice");
    await store.builds.authorize(build.id, { bytes: bytes(2) }, "bob");
    await store.builds.authorize(build.id, { token: tokenOf(2), budget: { usd: 8 } }, "bob");
    assert.deepEqual((await seeBuild(store, build)).budget, { micros: 8_000_000, tokens: null });
    const events = await store.events.page({ after: 0, limit: 10, build: build.id });
    assert.deepEqual(
      events.map(({ type }) => type),
      ["build.started", "build.paused", "build.approved", "build.token_minted", "build.approved"],
    );
    assert.equal(new Set(events.map(({ dedupeKey }) => dedupeKey)).size, 5);
    const entries = (await store.audit.page({ after: 0, limit: 10, subject: build.id })).slice(2);
    assert.deepEqual(
      entries.map(({ by, action, after }) => [by, action, budgetOf(after)]),
      [
        ["alice", "build.approved", TEN],
        ["bob", "build.token_minted", TEN],
        ["bob", "build.approved", { usd: 8 }],
      ],
    );
  });

  check("tokens are made for paused builds only", async ({ store }) => {
    const { build, lock } = await started(store);
    await refused(store, "BUILD_NOT_PAUSED", () => store.builds.authorize(build.id, { bytes: bytes(1) }, "operator"));
    await store.builds.move(build.id, STOPPED, lock);
    await refused(store, "BUILD_NOT_PAUSED", () => store.builds.authorize(build.id, { bytes: bytes(1) }, "operator"));
    const none = "b00000000000000000";
    assert.equal(await store.builds.authorize(none, { bytes: bytes(1) }, "operator"), null);
    assert.equal(await store.builds.authorize(none, { token: tokenOf(1), budget: TEN }, "operator"), null);
  });

  check("an operator who does not approve more lets a paused build fail", async ({ store, clock }) => {
    const { build } = await paused(store);
    const refusal = { move: "fail", reason: "budget_refused" } as const;
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, refusal, { by: "alice" }));
    const failed = made(await store.builds.move(build.id, { ...refusal, note: "too dear" }, { by: "alice" }));
    assert.deepEqual([failed.state, failed.reason, failed.note], ["FAILED", "budget_refused", "too dear"]);
    assert.equal(failed.finishedAt, clock.now());
    assert.equal((await store.audit.page({ after: 0, limit: 10, subject: build.id })).at(-1)?.by, "alice");
    const other = await started(store);
    const fail = { move: "fail", reason: "source_failed" } as const;
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(other.build.id, fail, { by: "alice" }));
  });

  check("no event and no audit entry contains a token, its hash, or the lock's token", async ({ store }) => {
    const led = await paused(store, { token: "the-lock-s-token" });
    await store.builds.authorize(led.build.id, { bytes: bytes(2) }, "operator");
    await store.builds.authorize(led.build.id, { token: tokenOf(2), budget: TEN }, "operator");
    await store.builds.start(resuming(led, { token: "the-next-token" }));
    await breakOrchestratorLock(store.builds, "docs", { by: "operator" });
    const all = JSON.stringify(await everything(store));
    for (const n of [1, 2]) {
      assert.ok(!all.includes(tokenOf(n)) && !all.includes(hashToken(tokenOf(n))));
    }
    assert.ok(!all.includes("the-lock-s-token") && !all.includes("the-next-token"));
  });
}

function budgetOf(audited: unknown): object {
  return (audited as { budget: object }).budget;
}
