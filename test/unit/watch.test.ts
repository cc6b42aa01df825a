import assert from "node:assert/strict";
import { watch } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { definitionOf, job, newJob } from "../../src/engine/definition.ts";
import type { NewJob } from "../../src/store/store.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import { systemClock } from "../../src/engine/host.ts";

test(
  "a commit of another handle is noticed by its record in the witness alone, once for each commit",
  { timeout: 20_000 },
  async (t) => {
    const path = await newPath(t);
    const listener = await opened(t, path);
    const writer = await opened(t, path);
    // No timer fires from here on: what is noticed is noticed by an event of the file system.
    t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
    let changes = 0;
    let noticed: (() => void) | undefined;
    listener.onChange(() => {
      changes++;
      noticed?.();
    }, {});
    for (let commit = 1; commit <= 20; commit++) {
      const change = new Promise<void>((resolve) => (noticed = resolve));
      await writer.queues.setPaused(`queue ${commit}`, true);
      await change;
      assert.equal(changes, commit);
    }
  },
);

test("the commit of a job that replaces another is noticed by its record, too", { timeout: 20_000 }, async (t) => {
  const path = await newPath(t);
  const listener = await opened(t, path);
  const writer = await opened(t, path);
  const mail = definitionOf(job({ name: "mail", run: () => null }));
  const enqueue = (input: number) =>
    writer.enqueue([newJob(mail, input, { key: "one", delay: "1h", onDuplicate: "replace" }) as NewJob]);
  await enqueue(0);
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  let noticed: (() => void) | undefined;
  listener.onChange(() => noticed?.(), {});
  for (let commit = 1; commit <= 3; commit++) {
    const change = new Promise<void>((resolve) => (noticed = resolve));
    await enqueue(commit);
    await change;
  }
});

test(
  "a listener with a pause is called once, and again at the end of the pause if there was a commit",
  { timeout: 20_000 },
  async (t) => {
    const path = await newPath(t);
    const listener = await opened(t, path);
    const writer = await opened(t, path);
    t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
    let changes = 0;
    let noticed: (() => void) | undefined;
    const count = () => {
      changes++;
      noticed?.();
    };
    const commit = (n: number) => writer.queues.setPaused(`queue ${n}`, true);
    const noticedCommit = async (n: number) => {
      const change = new Promise<void>((resolve) => (noticed = resolve));
      await commit(n);
      await change;
    };
    listener.onChange(count, { pauseMs: 500 });
    await noticedCommit(1);
    for (let n = 2; n <= 5; n++) {
      const written = nextWriteOf(`${path}-wal`);
      await commit(n);
      await written;
    }
    t.mock.timers.tick(499);
    assert.equal(changes, 1, "in the pause");
    t.mock.timers.tick(1);
    assert.equal(changes, 2, "at its end");
    t.mock.timers.tick(500);
    assert.equal(changes, 2, "after a pause without a commit");
    await noticedCommit(6);
    await commit(7);
    const stop = listener.onChange(() => {});
    assert.equal(changes, 4, "a listener without a pause ends that of others");
    await noticedCommit(8);
    stop();
  },
);

test("each write to the WAL without a record in the witness restarts the checks at their shortest interval", async (t) => {
  const path = await newPath(t);
  const listener = await opened(t, path);
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  let changes = 0;
  listener.onChange(() => changes++, {});
  const user = new DatabaseSync(path);
  t.after(() => user.close());
  const commitUnrecorded = async (sql: string) => {
    const written = nextWriteOf(`${path}-wal`);
    user.exec(sql);
    await written;
  };
  await commitUnrecorded("create table orders (id integer)");
  t.mock.timers.tick(2);
  assert.equal(changes, 1, "the first commit");
  // The next look is scheduled 32 ms ahead when the second commit arrives.
  t.mock.timers.tick(4 + 8 + 16);
  await commitUnrecorded("insert into orders values (1)");
  t.mock.timers.tick(2);
  assert.equal(changes, 2, "the second commit");
});

async function newPath(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-watch-"));
  t.after(() => rm(folder, { recursive: true, force: true }));
  return join(folder, "work.db");
}

async function opened(t: TestContext, path: string): Promise<SqliteStore> {
  const options = { driver: "node:sqlite", clock: systemClock, random: Math.random, busyTimeout: 1_000 } as const;
  const store = await SqliteStore.open(path, options);
  t.after(() => store.close());
  await store.processes.register({ pid: process.pid, host: "here", boot: "a boot", program: "a test" });
  return store;
}

/** Resolves when the file system has reported a write to the file to every watcher of this thread. */
async function nextWriteOf(file: string): Promise<void> {
  await new Promise<void>((resolve) => {
    const watcher = watch(dirname(file), (_event, name) => {
      if (name !== basename(file)) return;
      watcher.close();
      resolve();
    });
  });
  await turn();
}
