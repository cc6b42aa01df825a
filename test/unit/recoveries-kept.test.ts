import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { NO_FINDINGS } from "../../src/core/recovery/recovery-report.ts";
import { REPORTS_KEPT } from "../../src/store/recoveries.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import { testClock } from "../../src/testing/index.ts";

test("old reports are deleted with their names, except reports with unacknowledged errors", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-reports-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "work.db");
  const options = { driver: "node:sqlite", clock: testClock(), random: () => 0.5, busyTimeout: 20 } as const;
  const store = await SqliteStore.open(path, options);
  t.after(() => store.close());
  const db = new DatabaseSync(path);
  t.after(() => db.close());
  const states = ["completed", "failed", "acknowledged", "completed"];
  for (const [i, state] of states.entries()) {
    const id = i === 3 ? REPORTS_KEPT : i + 1;
    db.prepare("insert into holdfast_recoveries (id, state, begun_at, recovered_at) values (?, ?, 0, 0)").run(id, state);
    db.prepare("insert into holdfast_recovery_processes values (?, 1, 'dead', 1, 'h', 'p', 0)").run(id);
  }
  const enter = () => store.processes.register({ pid: 1, host: "here", boot: "boot", program: "test" });
  const by = await enter();
  for (let n = 0; n < 4; n++) {
    const id = await enter();
    const begun = await store.recoveries.begin({ dead: [{ id, life: "dead" }], by, opening: false, alone: true });
    assert.ok(begun !== null);
    const dead = { process: id, as: "crashed", reason: "orchestrator_lost", cause: "died" } as const;
    await store.recoveries.reclaimFrom({ report: begun.report, ...dead, limit: 1, spent: 0 });
    await store.recoveries.close({ report: begun.report, by, ending: { jobsPending: 0, ...NO_FINDINGS } });
  }
  const kept = (await store.recoveries.history({ limit: 9_999 })).reports.map(({ id }) => id);
  assert.deepEqual(kept.toReversed(), [2, REPORTS_KEPT, ...[1, 2, 3, 4].map((n) => REPORTS_KEPT + n)]);
  assert.equal(
    (await store.recoveries.history({ limit: 0 })).totals.reports.reports,
    4,
    "sums are of those that are not kept, too",
  );
  const named = db.prepare("select recovery from holdfast_recovery_processes order by 1").all() as { recovery: number }[];
  assert.deepEqual(
    named.map(({ recovery }) => recovery),
    kept.toReversed(),
  );
});
