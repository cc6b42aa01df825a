import assert from "node:assert/strict";
import { suite, test } from "node:test";
import {
  addFindings,
  finalState,
  findingsOf,
  isWorthReporting,
  jobCounts,
  NO_FINDINGS,
  reportOwner,
  type ReportState,
  wasSuccessful,
} from "../../src/core/recovery/recovery-report.ts";
import { endedBy, isProvenDead, judgeLease } from "../../src/core/jobs/lease.ts";
import { SCHEMA } from "../../src/store/sqlite/schema.ts";

suite("what a report counts", () => {
  test("tells jobs that are tried again from those that are over", () => {
    assert.deepEqual(jobCounts({ entries: 10, quarantined: 2, failed: 3, replaced: 1 }), {
      jobsRecovered: 10,
      jobsResetToPending: 4,
      jobsQuarantined: 2,
    });
  });
});

suite("what is found", () => {
  test("is kept, each thing once, in the order in which it was found", () => {
    const found = addFindings(addFindings(NO_FINDINGS, { errors: ["b", "a"] }), { errors: ["a", "c"] });
    assert.deepEqual(found.errors, ["b", "a", "c"]);
  });

  test("is the highest number that any check reports; without a report it is unknown", () => {
    assert.equal(addFindings(NO_FINDINGS, {}).commitsMissing, null);
    assert.equal(addFindings({ ...NO_FINDINGS, commitsMissing: 3 }, {}).commitsMissing, 3);
    assert.equal(addFindings({ ...NO_FINDINGS, commitsMissing: 3 }, { commitsMissing: 0 }).commitsMissing, 3);
    assert.equal(addFindings(NO_FINDINGS, { commitsMissing: 0 }).commitsMissing, 0);
  });

  test("before the opening: what may be lost is counted, and is no error; what must not be is both", () => {
    const expected = { severity: "expected", what: "3 commits are gone, as may be.", commitsMissing: 3 } as const;
    const loss = { severity: "loss", what: "2 commits are gone.", commitsMissing: 2 } as const;
    const row = { severity: "row", what: "A row is not what was written.", commitsMissing: null } as const;
    assert.deepEqual(findingsOf([]), { errors: [], commitsMissing: null });
    assert.deepEqual(findingsOf([expected]), { errors: [], commitsMissing: 3 });
    assert.deepEqual(findingsOf([row]), { errors: [row.what], commitsMissing: null });
    assert.deepEqual(findingsOf([expected, loss, row]), { errors: [loss.what, row.what], commitsMissing: 5 });
  });

  test("is worth a report when something is wrong or missing, and not when all is well", () => {
    assert.equal(isWorthReporting(undefined), false);
    assert.equal(isWorthReporting({ errors: [], commitsMissing: 0, walFramesReplayed: 9 }), false);
    assert.equal(isWorthReporting({ errors: ["cut off"] }), true);
    assert.equal(isWorthReporting({ commitsMissing: 1 }), true);
  });
});

suite("a report", () => {
  test("was successful when nothing was found to be wrong, and stands open otherwise", () => {
    assert.deepEqual([wasSuccessful([]), finalState([])], [true, "completed"]);
    assert.deepEqual([wasSuccessful(["cut off"]), finalState(["cut off"])], [false, "failed"]);
  });

  test("has the states that the databases know", () => {
    const [, states = ""] = /create table holdfast_recoveries [^;]*?check \(state in \((.*?)\)\)/.exec(SCHEMA) ?? [];
    const known: ReportState[] = ["running", "completed", "failed", "acknowledged"];
    assert.deepEqual(states.replaceAll("'", "").split(", "), known);
  });

  test("belongs to its owner while that process lives, and to the next one after that", () => {
    assert.equal(
      reportOwner({ owner: 1 }, 2, () => false),
      1,
    );
    assert.equal(
      reportOwner({ owner: 1 }, 2, () => true),
      2,
    );
    assert.equal(
      reportOwner({ owner: null }, 2, () => false),
      2,
    );
  });
});

test("the dead are charged a crash, those who went with the host none, and of others nothing is proven", () => {
  assert.deepEqual([endedBy("dead"), endedBy("rebooted")], ["crashed", "interrupted"]);
  for (const life of ["alive", "unknown", "orphan", "by-hand"] as const) assert.equal(isProvenDead(life), false);
  const lease = { lease: 1_000, left: 500 } as Parameters<typeof judgeLease>[0];
  assert.deepEqual([judgeLease(lease, "dead", 0), judgeLease(lease, "rebooted", 0)], ["crashed", "interrupted"]);
});
