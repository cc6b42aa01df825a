import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { job, open } from "../../src/index.ts";
import { alarmsOf, overviewOf } from "../../src/operator/overview.ts";
import { LONG_WAL_BYTES } from "../../src/core/recovery/loss.ts";
import { silent } from "../damage/place.ts";
import { Scene } from "../crash/scene.ts";

const note = job({ name: "note", run: () => {} });

test(
  "a long-running reader is named, with the amount written since it started",
  { skip: process.platform !== "linux" },
  async (t) => {
    const scene = new Scene(t);
    const hf = await scene.open({});
    await hf.enqueue(note, {});
    const { maintenance } = hf.engine.store;
    const reader = scene.start("stranger", { reads: true });
    await reader.next("ready");
    for (let i = 0; i < 20; i++) await hf.enqueue(note, { i });
    const { wal } = await maintenance.gauge({ readers: true });
    assert.deepEqual(
      wal?.readers.map(({ pid }) => pid),
      [reader.pid],
      JSON.stringify(wal),
    );
    assert.match(wal?.readers[0]?.program ?? "", /stranger/);
    assert.ok((wal?.readers[0]?.behind ?? 0) >= 20 * 4_096);
    reader.kill();
    await reader.ended;
    assert.deepEqual((await maintenance.gauge({ readers: true })).wal?.readers, []);
  },
);

test("a worker reports a WAL that has grown because a reader pins it", async (t) => {
  const scene = new Scene(t);
  const told = Promise.withResolvers<{ bytes: number; readers: string }>();
  const warn = (message: string, data?: object) => {
    if (message.startsWith("the write-ahead log is long")) told.resolve(data as { bytes: number; readers: string });
  };
  const hf = await scene.open({ log: { ...silent, warn } });
  hf.work([note]);
  await hf.transaction(({ db }) => db.exec("create table big (bytes blob)"));
  const reader = scene.start("stranger", { reads: true });
  await reader.next("ready");
  for (let i = 0; i < 17; i++) await hf.transaction(({ db }) => db.exec("insert into big values (zeroblob(4000000))"));
  const { bytes, readers } = await told.promise;
  assert.ok(bytes >= LONG_WAL_BYTES, String(bytes));
  if (process.platform === "linux") assert.match(readers, new RegExp(`^pid ${reader.pid} \\(.*stranger`));
});

test("a long WAL is an alarm of status and health, and a very long one is critical", async () => {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-wal-"));
  try {
    await using hf = await open(join(folder, "work.db"));
    const overview = await overviewOf(hf);
    const alarm = (bytes: number) => {
      const wal = { bytes, copied: 0, readers: [{ pid: 7, program: "report.ts", behind: bytes }] };
      return alarmsOf({ ...overview, wal }).filter(({ code }) => code === "WAL_LONG");
    };
    assert.deepEqual(alarm(1_000_000), []);
    assert.deepEqual(
      alarm(100_000_000).map(({ grave }) => grave),
      [false],
    );
    assert.deepEqual(
      alarm(5_000_000_000).map(({ grave }) => grave),
      [true],
    );
    assert.match(alarm(100_000_000)[0]?.message ?? "", /pid 7 \(report\.ts\) reads an earlier state/);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
