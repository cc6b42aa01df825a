import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { connect } from "../../src/store/sqlite/driver.ts";
import { lockPatience } from "../../src/store/sqlite/lock-patience.ts";

function scene(t: TestContext) {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-patience-"));
  const path = join(folder, "work.db");
  const [own, other] = [0, 1].map(() => connect("node:sqlite", path, { busyTimeout: 0 })) as [
    ReturnType<typeof connect>,
    ReturnType<typeof connect>,
  ];
  t.after(() => {
    own.close();
    other.close();
    rmSync(folder, { recursive: true });
  });
  other.exec("pragma journal_mode = wal; create table t (x)");
  let now = 0;
  t.mock.method(performance, "now", () => now);
  const isOver = lockPatience(own);
  assert.equal(isOver(), false);
  return { other, isOver, pass: (ms: number) => (now += ms) };
}

test("opening waits for a locked file as long as other processes commit, up to two minutes", (t) => {
  const { other, isOver, pass } = scene(t);
  for (let waited = 4_000; waited < 120_000; waited += 4_000) {
    pass(4_000);
    other.exec("insert into t values (1)");
    assert.equal(isOver(), false, `after ${waited} ms`);
  }
  pass(4_000);
  other.exec("insert into t values (1)");
  assert.equal(isOver(), true);
});

test("opening waits five seconds for a file that one process keeps locked", (t) => {
  const { other, isOver, pass } = scene(t);
  other.exec("begin immediate");
  for (let looks = 1; looks < 25; looks++) {
    pass(204);
    assert.equal(isOver(), false, `look ${looks}`);
  }
  pass(204);
  assert.equal(isOver(), true);
});
