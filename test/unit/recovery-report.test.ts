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
  test("a report distinguishes jobs that run again from finished ones", () => {
    assert.deepEqual(jobCounts({ entries: 10, quarantined: 2, failed: 3, replaced: 1 }), {
      jobsRecovered: 10,
      jobsResetToPending: 4,
      jobsQuarantined: 2,
    });
  });
});

suite("what is found", () => {
  test("findings are kept once each, in the order in which they were found", () => {
    const found = addFindings(addFindings(NO_FINDINGS, { errors: ["b", "a"] }), { errors: ["a", "c"] });
    assert.deepEqual(found.errors, ["b", "a", "c"]);
  });

  test("missing commits are the highest number that any check reports, or unknown", () => {
    assert.equal(addFindings(NO_FINDINGS, {}).commitsMissing, null);
    assert.equal(addFindings({ ...NO_FINDINGS, commitsMissing: 3 }, {}).commitsMissing, 3);
    assert.equal(addFindings({ ...NO_FINDINGS, commitsMissing: 3 }, { commitsMissing: 0 }).commitsMissing, 3);
    assert.equal(addFindings(NO_FINDINGS, { commitsMissing: 0 }).commitsMissing, 0);
  });

  test("before the opening, possible losses are counted, and certain losses are errors, too", () => {
    const expected = { severity: "expected", what: "3 commits are gone, as may be.", commitsMissing: 3 } as const;
    const loss = { severity: "loss", what: "2 commits are gone.", commitsMissing: 2 } as const;
    const row = { severity: "row", what: "A row is not what was written.", commitsMissing: null } as const;
    assert.deepEqual(findingsOf([]), { errors: [], commitsMissing: null });
    assert.deepEqual(findingsOf([expected]), { errors: [], commitsMissing: 3 });
    assert.deepEqual(findingsOf([row]), { errors: [row.what], commitsMissing: null });
    assert.deepEqual(findingsOf([expected, loss, row]), { errors: [loss.what, row.what], commitsMissing: 5 });
  });

  test("a finding or a loss needs a report, and a clean state does not", () => {
    assert.equal(isWorthReporting(undefined), false);
    assert.equal(isWorthReporting({ errors: [], commitsMissing: 0, walFramesReplayed: 9 }), false);
    assert.equal(isWorthReporting({ errors: ["cut off"] }), true);
    assert.equal(isWorthReporting({ commitsMissing: 1 }), true);
  });
});

suite("a report", () => {
  test("a report without findings is successful, and one with findings stays open", () => {
    assert.deepEqual([wasSuccessful([]), finalState([])], [true, "completed"]);
    assert.deepEqual([wasSuccessful(["cut off"]), finalState(["cut off"])], [false, "failed"]);
  });

  test("the states of reports are those of the databases", () => {
    const [, states = ""] = /create table holdfast_recoveries [^;]*?check \(state in \((.*?)\)\)/.exec(SCHEMA) ?? [];
    const known: ReportState[] = ["running", "completed", "failed", "acknowledged"];
    assert.deepEqual(states.replaceAll("'", "").split(", "), known);
  });

  test("a report belongs to its owner while that process lives, then to the next one", () => {
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

test("dead processes are charged a crash, those of a rebooted host are not, and others prove nothing", () => {
  assert.deepEqual([endedBy("dead"), endedBy("rebooted")], ["crashed", "interrupted"]);
  for (const life of ["alive", "unknown", "orphan", "by-hand"] as const) assert.equal(isProvenDead(life), false);
  const lease = { lease: 1_000, left: 500 } as Parameters<typeof judgeLease>[0];
  assert.deepEqual([judgeLease(lease, "dead", 0), judgeLease(lease, "rebooted", 0)], ["crashed", "interrupted"]);
});
