import assert from "node:assert/strict";
import { describe, test } from "node:test";
import * as fc from "fast-check";
import {
  BUILD_MOVES,
  BUILD_STATES,
  type BuildConditions,
  type BuildMove,
  type BuildProgress,
  type BuildReason,
  type BuildState,
  ENDED_STATES,
  hasEnded,
  mayMoveBuild,
  type MovingBuild,
  moveBuild,
  nextBuildMove,
  nextPausedMove,
  reasonText,
  startsNothingNew,
} from "../../src/core/pipelines/build.ts";
import { HoldfastError } from "../../src/core/text/errors.ts";

const MOVES = Object.keys(BUILD_MOVES) as BuildMove[];
/** All that any move asks for, but for failures: some need them and some must have none. */
const ALL: BuildConditions = {
  holdsLock: true,
  samePipeline: true,
  approved: true,
  holderGone: true,
  running: 0,
  left: 0,
  failed: 0,
  tokenMinted: true,
};

test("exactly the transitions of the table are allowed", () => {
  const allowed: Record<BuildState, BuildState[]> = {
    PENDING: ["ACTIVE", "ABANDONED"],
    ACTIVE: ["SUCCESS", "FAILED", "CRASHED", "BUDGET_PAUSE", "ABANDONED"],
    CRASHED: ["ACTIVE", "ABANDONED"],
    BUDGET_PAUSE: ["ACTIVE", "FAILED", "ABANDONED"],
    SUCCESS: [],
    FAILED: [],
    ABANDONED: [],
  };
  for (const state of BUILD_STATES) {
    const to = MOVES.filter((move) => mayMoveBuild(move, state)).map((move) => BUILD_MOVES[move].to);
    assert.deepEqual(to.toSorted(), allowed[state].toSorted(), state);
  }
});

test("a build that has ended never moves, and every other build can be abandoned", () => {
  for (const state of BUILD_STATES) {
    assert.equal(hasEnded(state), (ENDED_STATES as readonly BuildState[]).includes(state));
    assert.equal(mayMoveBuild("abandon", state), !hasEnded(state), state);
    if (hasEnded(state)) assert.ok(MOVES.every((move) => !mayMoveBuild(move, state)));
  }
});

test("every state is reachable", () => {
  const seen = new Set<BuildState>(["PENDING"]);
  for (const state of seen) for (const move of MOVES) if (mayMoveBuild(move, state)) seen.add(BUILD_MOVES[move].to);
  assert.deepEqual([...seen].toSorted(), BUILD_STATES.toSorted());
});

for (const move of MOVES) {
  for (const state of BUILD_STATES) {
    const { from, to } = BUILD_MOVES[move];
    const way = from[state];
    if (way === undefined) {
      test(`to ${move} a build that is ${state} is rejected, and the error names both states`, () => {
        const error = refusal(() => moveBuild(build(state), { move, reason: "resumed", note: "why" }, ALL));
        assert.equal(error.code, "BUILD_STATE");
        assert.ok(error.message.includes(state) && error.message.includes(to), error.message);
      });
      continue;
    }

    test(`to ${move} a build that is ${state} needs everything that the table requires, and returns the next number`, () => {
      for (const reason of Object.keys(way) as BuildReason[]) {
        assert.deepEqual(moveBuild(build(state, 7), { move, reason, note: "why" }, factsFor(reason)), {
          build: "b1",
          seq: 8,
          move,
          from: state,
          to,
          reason,
          note: "why",
        });
        const error = refusal(() => moveBuild(build(state), { move, reason }, {}));
        assert.equal(error.code, "BUILD_NOT_READY");
        assert.ok(error.message.includes(state) && error.message.includes(to), error.message);
      }
    });

    test(`to ${move} a build that is ${state} for a reason of another move is rejected`, () => {
      const reason = move === "start" ? "stopped" : "started";
      assert.equal(refusal(() => moveBuild(build(state), { move, reason, note: "why" }, ALL)).code, "BUILD_REASON");
    });
  }
}

const LACKS: [BuildMove, BuildState, BuildConditions, RegExp][] = [
  ["start", "PENDING", { holdsLock: false }, /lock/],
  ["succeed", "ACTIVE", { left: 1 }, /work to do/],
  ["succeed", "ACTIVE", { failed: 1 }, /failed/],
  ["succeed", "ACTIVE", { running: 1 }, /in flight/],
  ["succeed", "ACTIVE", { holdsLock: false }, /lock/],
  ["fail", "ACTIVE", { running: 1 }, /in flight/],
  ["fail", "ACTIVE", { failed: 0 }, /no target has failed/],
  ["fail", "BUDGET_PAUSE", { running: 1 }, /in flight/],
  ["crash", "ACTIVE", { holderGone: false }, /orchestrator/],
  ["pause", "ACTIVE", { tokenMinted: false }, /token/],
  ["resume", "CRASHED", { samePipeline: false }, /pipeline/],
  ["resume", "BUDGET_PAUSE", { approved: false }, /budget/],
];
for (const [move, state, lack, says] of LACKS) {
  test(`to ${move} a build that is ${state} with ${JSON.stringify(lack)} is rejected with an explanation`, () => {
    const [reason = "started"] = Object.keys(BUILD_MOVES[move].from[state] ?? {}) as BuildReason[];
    const facts = { ...factsFor(reason), ...lack };
    const error = refusal(() => moveBuild(build(state), { move, reason, note: "why" }, facts));
    assert.equal(error.code, "BUILD_NOT_READY");
    assert.match(error.message, says);
    assert.notEqual(error.hint, "");
  });
}

test("a crashed build needs no approval to continue", () => {
  const { approved: _, ...facts } = ALL;
  assert.equal(moveBuild(build("CRASHED"), { move: "resume", reason: "resumed" }, facts).to, "ACTIVE");
});

test("an operator's note is shown instead of the code", () => {
  assert.equal(reasonText({ reason: "abandoned", note: "not wanted any more" }), "not wanted any more");
  assert.equal(reasonText({ reason: "targets_failed", note: null }), "targets_failed");
  for (const note of ["", "  "]) {
    const error = refusal(() => moveBuild(build("ACTIVE"), { move: "abandon", reason: "abandoned", note }, ALL));
    assert.equal(error.code, "BUILD_NOT_READY");
  }
});

describe("an active build", () => {
  const done: BuildProgress = { listing: "done", open: 0, failed: 0, maxFailures: null, blocked: null };

  test("an active build succeeds when everything is listed, nothing is left and nothing failed", () => {
    assert.deepEqual(nextBuildMove(done), { move: "succeed", reason: "all_targets_done" });
    for (const more of [{ listing: "running" }, { open: 1 }] as const) {
      assert.equal(nextBuildMove({ ...done, ...more }), null);
    }
  });

  test("an active build continues with other targets when one fails, and fails at the end", () => {
    assert.equal(nextBuildMove({ ...done, failed: 3, open: 2 }), null);
    assert.deepEqual(nextBuildMove({ ...done, failed: 3 }), { move: "fail", reason: "targets_failed" });
  });

  test("an active build past its limit of failures starts nothing new, and fails", () => {
    const over = { ...done, listing: "running", failed: 3, maxFailures: 2, open: 10 } as const;
    assert.ok(startsNothingNew(over));
    assert.equal(startsNothingNew({ ...over, failed: 2 }), false);
    assert.deepEqual(nextBuildMove(over), { move: "fail", reason: "targets_failed" });
  });

  test("an active build fails when its source failed", () => {
    assert.deepEqual(nextBuildMove({ ...done, listing: "failed", open: 5 }), { move: "fail", reason: "source_failed" });
  });

  test("an active build pauses when the budget does not allow the remaining work", () => {
    assert.deepEqual(nextBuildMove({ ...done, open: 1, blocked: "budget_precheck_block" }), {
      move: "pause",
      reason: "budget_precheck_block",
    });
    assert.deepEqual(nextBuildMove({ ...done, blocked: "budget_exceeded" })?.move, "succeed", "nothing is left to pay for");
  });

  test("an active build that will fail anyway does not pause for its budget", () => {
    const failing = { ...done, open: 1, failed: 1, maxFailures: 0, blocked: "budget_exceeded" } as const;
    assert.equal(nextBuildMove(failing)?.move, "fail");
  });

  test("an active build makes only moves of the table", () => {
    fc.assert(
      fc.property(progress(), (progress) => {
        const wanted = nextBuildMove(progress);
        if (wanted === null) return;
        const { failed, open: left } = progress;
        const moved = moveBuild(build("ACTIVE"), wanted, { holdsLock: true, tokenMinted: true, running: 0, failed, left });
        assert.equal(moved.seq, 1);
      }),
    );
  });

  test("an active build is never stuck: with nothing in flight it moves, or has work that may start", () => {
    fc.assert(
      fc.property(progress(), (progress) => {
        if (progress.listing === "running") return;
        const mayStart = progress.open > 0 && progress.blocked === null && !startsNothingNew(progress);
        assert.equal(nextBuildMove(progress) === null, mayStart);
      }),
    );
  });
});

describe("a paused build", () => {
  const paused: BuildProgress = { listing: "done", open: 3, failed: 1, maxFailures: 1, blocked: "budget_exceeded" };

  test("a paused build waits while a larger budget would help", () => {
    assert.equal(nextPausedMove(paused), null);
    assert.equal(nextPausedMove({ ...paused, failed: 0, open: 0 }), null);
  });

  test("a paused build fails when the attempts in flight left nothing that a budget would help", () => {
    const failed = { move: "fail", reason: "targets_failed" };
    assert.deepEqual(nextPausedMove({ ...paused, failed: 2 }), failed);
    assert.deepEqual(nextPausedMove({ ...paused, open: 0 }), failed);
    assert.equal(nextPausedMove({ ...paused, open: 0, listing: "running" }), null, "more may be found");
  });

  test("a paused build makes only moves of the table", () => {
    fc.assert(
      fc.property(progress(), (progress) => {
        const wanted = nextPausedMove(progress);
        if (wanted !== null)
          assert.equal(moveBuild(build("BUDGET_PAUSE"), wanted, { running: 0, failed: progress.failed }).to, "FAILED");
      }),
    );
  });
});

function factsFor(reason: BuildReason): BuildConditions {
  return { ...ALL, failed: reason === "targets_failed" ? 1 : 0 };
}

function progress(): fc.Arbitrary<BuildProgress> {
  return fc.record({
    listing: fc.constantFrom("running", "done", "failed"),
    open: fc.nat(2),
    failed: fc.nat(3),
    maxFailures: fc.option(fc.nat(2)),
    blocked: fc.constantFrom(null, "budget_precheck_block", "budget_exceeded"),
  });
}

function build(state: BuildState, seq = 0): MovingBuild {
  return { id: "b1", state, seq };
}

function refusal(act: () => unknown): HoldfastError {
  try {
    act();
  } catch (error) {
    assert.ok(error instanceof HoldfastError);
    return error;
  }
  return assert.fail("it was let pass");
}
