import assert from "node:assert/strict";
import { once } from "node:events";
import { existsSync, readdirSync, readlinkSync } from "node:fs";
import { mkdir, readdir, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { suite, test, type TestContext } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Worker as Thread } from "node:worker_threads";
import { job, type JobContext, open } from "../../src/index.ts";
import { apart, code, collect, folder, memory, see, seeAll, stage, unchecked } from "./parts.ts";

const plain = job({ name: "plain", run: (c: JobContext<unknown>) => c.input });

/** In a folder of its own, as a program that was started there. */
async function startedIn(t: TestContext): Promise<string> {
  const path = await folder(t);
  const before = { cwd: process.cwd(), db: process.env["HOLDFAST_DB"] };
  process.chdir(path);
  delete process.env["HOLDFAST_DB"];
  t.after(() => {
    process.chdir(before.cwd);
    if (before.db === undefined) delete process.env["HOLDFAST_DB"];
    else process.env["HOLDFAST_DB"] = before.db;
  });
  return path;
}

test("a closed handle is freed by the garbage collector", async (t) => {
  setFlagsFromString("--expose-gc");
  const collectGarbage = runInNewContext("gc") as () => void;
  const path = join(await folder(t), "work.db");
  const closed = await (async () => {
    const hf = await open(path);
    const worker = hf.work([plain]);
    await hf.transaction(() => {});
    await worker.stop();
    await hf.close();
    return new WeakRef(hf.engine);
  })();
  // Timers of the closed handle, and what is left of its last turn, go within a few turns.
  for (let turn = 0; turn < 100 && closed.deref() !== undefined; turn++) {
    await new Promise((resume) => setImmediate(resume));
    collectGarbage();
  }
  assert.equal(closed.deref(), undefined);
});

suite("where", () => {
  test("the default path is .holdfast/work.db, and its folder is created", async (t) => {
    const path = await startedIn(t);
    await using hf = await open();
    await hf.enqueue(plain, 1);
    assert.ok(existsSync(join(path, ".holdfast", "work.db")));
  });

  test("HOLDFAST_DB overrides the default, and an argument overrides both", async (t) => {
    const path = await startedIn(t);
    process.env["HOLDFAST_DB"] = join(path, "from-environment.db");
    {
      await using hf = await open();
      await hf.enqueue(plain, 1);
    }
    {
      await using hf = await open(join(path, "given.db"));
      await hf.enqueue(plain, 1);
    }
    assert.deepEqual((await readdir(path)).filter((name) => name.endsWith(".db")).toSorted(), [
      "from-environment.db",
      "given.db",
    ]);
  });

  test("an empty HOLDFAST_DB is ignored", async (t) => {
    const path = await startedIn(t);
    process.env["HOLDFAST_DB"] = "";
    await using hf = await open();
    assert.equal((await hf.jobs.list()).items.length, 0);
    assert.ok(existsSync(join(path, ".holdfast", "work.db")));
  });

  test("a missing folder is rejected with FOLDER_MISSING, and not created", async (t) => {
    const path = join(await folder(t), "missing", "deep", "work.db");
    await assert.rejects(open(path), code("FOLDER_MISSING"));
    assert.equal(existsSync(join(path, "..")), false);
    await mkdir(join(path, ".."), { recursive: true });
    await (await open(path)).close();
  });

  test("a folder and a file that is not a database are rejected and left unchanged", async (t) => {
    const path = await folder(t);
    await assert.rejects(open(path), code("NOT_A_DATABASE"));
    const text = join(path, "text.db");
    await writeFile(text, "this is a text, long enough to be no header of a database at all ".repeat(20));
    await assert.rejects(open(text), code("NOT_A_DATABASE"));
    await assert.rejects(open(text), code("NOT_A_DATABASE"), "and again");
    assert.deepEqual(await readdir(path), ["text.db"]);
  });

  test("unknown options of open are rejected", async (t) => {
    const path = join(await folder(t), "work.db");
    await assert.rejects(open(path, { driver: unchecked<"node:sqlite">("sqlite3") }), code("OPTION_INVALID"));
    await assert.rejects(open(path, { durability: unchecked<"power">("none") }), code("OPTION_INVALID"));
    await assert.rejects(open(path, { schema: "holdfast" }), code("OPTION_INVALID"));
    await assert.rejects(open("postgres://localhost/x", { driver: "node:sqlite" }), code("OPTION_INVALID"));
    await assert.rejects(open("postgres://localhost/x", { schema: "public" }), code("OPTION_INVALID"));
    await assert.rejects(open("postgres://localhost:port/x"), code("ADDRESS_INVALID"));
    assert.equal(existsSync(path), false);
  });

  test("databases in memory are independent", async (t) => {
    const [one, two] = [await memory(t), await memory(t)];
    await one.hf.enqueue(plain, 1, { id: "x" });
    assert.equal(await two.hf.jobs.get("x"), null);
    await one.hf.close();
    assert.deepEqual(await two.hf.enqueue(plain, 1, { id: "x" }), { id: "x", duplicate: false });
  });
});

suite("what is kept", () => {
  test("jobs, outputs, errors and delays survive a reopening", async (t) => {
    const path = join(await folder(t), "work.db");
    const before = await (async () => {
      await using hf = await open(path);
      await hf.enqueue(plain, { a: 1 }, { id: "done", key: "k" });
      await (await hf.claim(plain, { worker: "me" }))?.succeed("output");
      await hf.enqueue(plain, 1, { id: "failed" });
      await (await hf.claim(plain, { worker: "me" }))?.fail(new Error("no"), { retry: false });
      await hf.enqueue(plain, 2, { id: "later", delay: "1h", priority: 3 });
      await hf.enqueue(plain, 3, { id: "big" });
      return seeAll(hf);
    })();
    await using hf = await open(path);
    assert.deepEqual(await seeAll(hf), before);
    assert.deepEqual(await hf.enqueue(plain, 9, { id: "done" }), { id: "done", duplicate: true });
  });

  test("close leaves only the database and the record of its last commit", async (t) => {
    const path = await folder(t);
    await using hf = await open(join(path, "work.db"));
    hf.work([plain]);
    await hf.jobs.wait(await hf.enqueue(plain, 1));
    await hf.close();
    const left = (await readdir(path)).filter((name) => name !== "work.db-alive");
    assert.deepEqual(left, ["work.db", "work.db-witness"]);
    assert.equal((await readdir(join(path, "work.db-witness"))).length, 1);
  });
});

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  for (const durability of ["power", "process"] as const) {
    test(`a worker on ${driver} with durability "${durability}" runs enqueued jobs`, async (t) => {
      const path = join(await folder(t), "work.db");
      await using hf = await open(path, { driver, durability });
      hf.work([plain]);
      assert.equal((await hf.jobs.wait(await hf.enqueue(plain, "x"))).output, "x");
    });
  }
}

suite("a second open of the same file in a process", () => {
  test("a second open shares the first, however the path is spelled, and the last close closes it", async (t) => {
    const path = await folder(t);
    await symlink(path, join(path, "link"));
    const first = await open(join(path, "work.db"));
    const second = await open(join(path, ".", "link", "..", "work.db"));
    const third = await open(join(path, "link", "work.db"));
    assert.equal(second.engine, first.engine);
    assert.equal(third.engine, first.engine);
    await first.close();
    await second.close();
    await second.close();
    const { id } = await third.enqueue(plain, 1);
    await third.close();
    await assert.rejects(third.jobs.get(id), code("CLOSED"));
    await using again = await open(join(path, "work.db"));
    assert.notEqual(again.engine, first.engine);
    assert.equal((await see(again, id)).state, "pending");
  });

  test("concurrent opens share one database, too", async (t) => {
    const path = join(await folder(t), "work.db");
    const handles = await Promise.all([open(path), open(path), open(path)]);
    assert.equal(new Set(handles.map(({ engine }) => engine)).size, 1);
    const [first, ...others] = handles;
    for (const hf of others) await hf.close();
    await first?.enqueue(plain, 1);
    await first?.close();
  });

  test("a closed handle rejects calls although another handle is open", async (t) => {
    const path = join(await folder(t), "work.db");
    const first = await open(path);
    await using second = await open(path);
    const { id } = await second.enqueue(plain, 1);
    const lock = first.lock("x");
    await first.close();
    await assert.rejects(first.enqueue(plain, 1), code("CLOSED"));
    await assert.rejects(first.jobs.get(id), code("CLOSED"));
    await assert.rejects(first.jobs.wait(id), code("CLOSED"));
    await assert.rejects(lock.acquire("me", "1s"), code("CLOSED"));
    assert.equal((await see(second, id)).state, "pending");
  });

  test("closing one handle ends its own waits and no others", async (t) => {
    const path = join(await folder(t), "work.db");
    const first = await open(path);
    await using second = await open(path);
    const { id } = await second.enqueue(plain, 1, { delay: "1h" });
    const mine = [first.jobs.wait(id), first.claim(plain, { worker: "me", wait: "1h" }), collect(first.jobs.watch(id))];
    const theirs = second.jobs.wait(id);
    const ended = Promise.allSettled(mine);
    await first.close();
    for (const one of await ended) {
      assert.equal(one.status, "rejected");
      assert.ok(code("CLOSED")(one.reason));
    }
    await second.jobs.cancel(id);
    assert.equal((await theirs).state, "cancelled");
  });

  test("closing one handle stops its own workers only", async (t) => {
    const path = join(await folder(t), "work.db");
    const first = await open(path);
    await using second = await open(path);
    const slow = stage<JobContext<unknown>>();
    const def = job({ name: "x", run: slow.run });
    second.work([def]);
    const { id } = await first.enqueue(def, 1);
    await slow.called(1);
    await first.close();
    assert.equal(slow.calls[0]?.context.signal.aborted, false);
    slow.calls[0]?.end("done");
    assert.equal((await second.jobs.wait(id)).output, "done");
  });

  test("an open during the last close returns a working handle", async (t) => {
    const path = join(await folder(t), "work.db");
    for (let turns = 0; turns < 6; turns++) {
      const first = await open(path);
      const closing = first.close();
      for (let turn = 0; turn < turns; turn++) await Promise.resolve();
      const second = await open(path);
      assert.equal((await second.enqueue(plain, turns)).duplicate, false, `after ${turns} turns`);
      await closing;
      assert.equal((await second.jobs.counts()).pending, turns + 1);
      await second.close();
    }
  });

  test("a second open with another driver is rejected with DRIVER_DIFFERS", async (t) => {
    const path = join(await folder(t), "work.db");
    {
      await using first = await open(path, { driver: "node:sqlite" });
      await assert.rejects(open(path, { driver: "better-sqlite3" }), code("DRIVER_DIFFERS"));
      await first.enqueue(plain, 1);
    }
    await using hf = await open(path, { driver: "better-sqlite3" });
    assert.equal((await seeAll(hf)).length, 1);
    await using shared = await open(path);
    assert.equal((await seeAll(shared)).length, 1, "who names none gets the one that is there");
  });

  test("a second open with another durability is rejected with DURABILITY_DIFFERS, before and after closing", async (t) => {
    const path = join(await folder(t), "work.db");
    {
      await using first = await open(path, { durability: "process" });
      await assert.rejects(open(path, { durability: "power" }), code("DURABILITY_DIFFERS"));
      await first.enqueue(plain, 1);
      await using same = await open(path);
      assert.equal(same.engine.store.durability, "process");
    }
    await assert.rejects(open(path, { durability: "power" }), code("DURABILITY_DIFFERS"));
    await using hf = await open(path);
    assert.equal(hf.engine.store.durability, "process");
    assert.equal((await seeAll(hf)).length, 1);
  });

  test("a rejected open is not counted as a handle", async (t) => {
    const path = join(await folder(t), "work.db");
    const first = await open(path, { durability: "process" });
    await assert.rejects(open(path, { durability: "power" }), code("DURABILITY_DIFFERS"));
    await first.close();
    await using second = await open(path);
    assert.notEqual(second.engine, first.engine);
  });

  test("a failed open is forgotten, and the next one tries again", async (t) => {
    const path = join(await folder(t), "work.db");
    await writeFile(path, "no database, and long enough to be seen as such ".repeat(50));
    const failed = await Promise.allSettled([open(path), open(path)]);
    assert.deepEqual(
      failed.map(({ status }) => status),
      ["rejected", "rejected"],
    );
    await writeFile(path, "");
    await using hf = await open(path);
    await hf.enqueue(plain, 1);
  });
});

test("another driver in another thread of the process is rejected", async (t) => {
  const path = join(await folder(t), "work.db");
  await using hf = await open(path);
  const { id } = await hf.enqueue(job({ name: "a", run: () => {} }), null);
  assert.equal(await openInThread(path, "better-sqlite3"), "DRIVER_DIFFERS");
  assert.equal((await hf.jobs.get(id))?.state, "pending");
  assert.equal(await openInThread(path, "node:sqlite"), "opened");
});

/** What a thread that opens and closes the file says of it. */
async function openInThread(path: string, driver: string): Promise<string> {
  const thread = new Thread(new URL("./children/open-thread.ts", import.meta.url), { workerData: { path, driver } });
  // Both at once: a thread's last message and its exit may come in one turn.
  const [[answer]] = await Promise.all([once(thread, "message"), once(thread, "exit")]);
  return answer as string;
}

test("processes that open and exit leave no open files in a process that stays", async (t) => {
  if (!existsSync("/proc/self/fd")) return t.skip("there is no /proc to count by");
  const path = join(await folder(t), "work.db");
  await using hf = await open(path);
  for (let i = 0; i < 3; i++) {
    const passing = await apart(path);
    await hf.engine.store.processes.probe();
    await passing.close();
  }
  await hf.engine.store.processes.probe();
  assert.equal(deletedLocks(), 0);
});

/** Open files of this process that prove lives and have been removed. */
function deletedLocks(): number {
  return readdirSync("/proc/self/fd").filter((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`).endsWith(".lock (deleted)");
    } catch {
      return false;
    }
  }).length;
}
