import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { type Holdfast, type Job, job, open } from "../../src/index.ts";
import { type Crash, type CrashOptions, drain, everyJob, simulateCrash, validateRecovery } from "../../src/testing/index.ts";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { acceptedIn, folderOf, programOf } from "./place.ts";

const SHOP = programOf("shop");
const MANY = /(accepted \S+\n){24}/;
const SOUND = { ok: true, reasons: [] };
const SILENT = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };
const notOnWindows = { skip: process.platform === "win32" && "no SIGSTOP" };

/** Signals that end a process that is refused memory: its allocator aborts, or it faults. Its last words are not reliable. */
const REFUSED = new Set<unknown>(["SIGABRT", "SIGTRAP", "SIGILL", "SIGSEGV", "SIGBUS"]);
const noPrlimit = spawnSync("prlimit", ["--version"]).status === 0 ? false : "there is no prlimit here";

describe("a user's program that is ended", { concurrency: 2 }, () => {
  test("a program ended by SIGKILL loses nothing acknowledged, and its jobs are reclaimed", async (t) => {
    const db = join(await folderOf(t), "work.db");
    let before: Job[] = [];
    const crash = await simulateCrash(SHOP, {
      by: "SIGKILL",
      args: [db],
      when: async ({ pid }) => {
        assert.ok(pid > 0);
        before = await whileItWorks(db, (jobs) => jobs.some(({ state }) => state === "succeeded"));
      },
    });
    assert.deepEqual([crash.code, crash.signal, crash.image], [null, "SIGKILL", undefined]);
    assert.equal(before.find(({ state }) => state === "running")?.attempt, 1, "one is in hand");
    await using hf = await open(db);
    const after = await everyJob(hf);
    assert.deepEqual(validateRecovery(before, after), SOUND);
    assert.deepEqual(validateRecovery(acceptedIn(crash.stdout), after), SOUND);
    assert.ok(((await hf.recovery.lastReport())?.jobsRecovered ?? 0) > 0);
    // Jobs that were running are those that a check would report if no process had reclaimed them.
    const inHand = before.filter(({ state }) => state === "running");
    assert.equal(validateRecovery(inHand, inHand).ok, false);
  });

  test("a program ended by SIGTERM stops cleanly, and leaves nothing to recover", async (t) => {
    const db = join(await folderOf(t), "work.db");
    const crash = await simulateCrash(SHOP, { by: "SIGTERM", args: [db], when: MANY });
    assert.deepEqual([crash.code, crash.signal], [0, null], crash.stderr);
    await using hf = await open(db);
    assert.equal(await hf.recovery.lastReport(), null);
    const after = await everyJob(hf);
    assert.deepEqual(validateRecovery(acceptedIn(crash.stdout), after), SOUND);
    assert.equal((await hf.jobs.counts()).running, 0);
  });

  test("a program that runs out of heap is ended by V8, and loses nothing", async (t) => {
    const db = join(await folderOf(t), "work.db");
    const crash = await simulateCrash(SHOP, { by: "out-of-memory", memory: 64, args: [db], when: "accepted" });
    assert.ok(REFUSED.has(crash.signal), `${crash.signal}, code ${crash.code}: ${crash.stderr}`);
    await using hf = await open(db);
    assert.deepEqual(validateRecovery(acceptedIn(crash.stdout), await everyJob(hf)), SOUND);
    assert.deepEqual((await hf.recovery.lastReport())?.errors, []);
  });

  test("a program that the kernel gives no more memory loses nothing", { skip: noPrlimit }, async (t) => {
    const db = join(await folderOf(t), "work.db");
    const options = { by: "out-of-memory", limit: "kernel", memory: 48 } as const;
    const crash = await simulateCrash(SHOP, { ...options, args: [db], when: "accepted" });
    assert.ok(REFUSED.has(crash.signal), `${crash.signal}, code ${crash.code}: ${crash.stderr}`);
    await using hf = await open(db);
    assert.deepEqual(validateRecovery(acceptedIn(crash.stdout), await everyJob(hf)), SOUND);
    const report = await hf.recovery.lastReport();
    assert.deepEqual([report?.crashed.length, report?.errors], [1, []]);
    assert.deepEqual(await hf.check(), { ok: true, findings: [] });
  });

  test("a program whose own handler takes all memory is charged a crash", async (t) => {
    const db = join(await folderOf(t), "work.db");
    const crash = await simulateCrash(programOf("hungry"), { by: "out-of-memory", memory: 64, args: [db] });
    assert.ok(REFUSED.has(crash.signal), `${crash.signal}, code ${crash.code}: ${crash.stderr}`);
    await using hf = await open(db);
    const [feast] = await everyJob(hf);
    assert.deepEqual([feast?.state, feast?.attempt, feast?.crashes], ["pending", 1, 1]);
  });
});

describe("a power cut", { concurrency: 2, ...notOnWindows }, () => {
  for (const torn of [undefined, ...SEEDS, ...(LONG ? [2, 3, 4, 5, 6, 7] : [])]) {
    const name = torn === undefined ? "is lost" : `is torn (HOLDFAST_SEED=${torn})`;
    test(`a power cut leaves everything acknowledged, if unsynced data ${name}`, async (t) => {
      const folder = await folderOf(t);
      const db = join(folder, "work.db");
      const { image, crash } = await cut(db, join(folder, "after", "work.db"), {
        torn,
      });
      assert.equal(image.durability, "power");
      assert.ok(image.framesKept > 0);
      assert.ok(existsSync(`${db}-wal`), "no process has closed it");
      await using hf = await open(image.path);
      assert.deepEqual(validateRecovery(acceptedIn(crash.stdout), await everyJob(hf)), SOUND);
      const report = await hf.recovery.lastReport();
      assert.deepEqual([report?.errors, (report?.jobsRecovered ?? 0) > 0], [[], true]);
      const charged = (await everyJob(hf)).filter(({ crashes }) => crashes > 0);
      assert.deepEqual(charged, [], "the host went down, so no crash is charged");
      assert.deepEqual(await hf.check(), { ok: true, findings: [] });
      assert.deepEqual((await drain(hf, [sold])).failed, []);
    });
  }

  test('a power cut may lose what was acknowledged with durability "process", and leaves an intact database', async (t) => {
    const folder = await folderOf(t);
    const db = join(folder, "work.db");
    const earlier = await open(db, { durability: "process" });
    const { id } = await earlier.enqueue(sold, { item: 7 });
    await earlier.close();
    // Where all of it had just been copied into the database, nothing is missing: then the next cut tells.
    let missing: string[] = [];
    let image = db;
    for (let turn = 1; missing.length === 0; turn++) {
      assert.ok(turn < 10, "something is lost");
      const { image: made, crash } = await cut(db, join(folder, `after-${turn}.db`), { args: [db, "process"] });
      assert.equal(made.durability, "process");
      image = made.path;
      await using looked = await open(image, { log: SILENT });
      const after = await everyJob(looked);
      assert.ok(
        after.some((one) => one.id === id),
        "what was copied into the database and synced is there",
      );
      missing = validateRecovery(acceptedIn(crash.stdout), after).reasons;
    }
    assert.ok(
      missing.every((reason) => reason.endsWith(" is missing")),
      missing.join("\n"),
    );
    await using hf = await open(image, { log: SILENT });
    const report = await hf.recovery.lastReport();
    assert.ok((report?.commitsMissing ?? 0) > 0, "and it is said that something is missing");
    assert.deepEqual(report?.errors, [], "which a power cut may take, and no error");
    assert.deepEqual(await hf.check(), { ok: true, findings: [] });
  });

  test("a power cut during a checkpoint leaves unreliable pages, and no process relies on them", async (t) => {
    const folder = await folderOf(t);
    const db = join(folder, "work.db");
    const { image, crash } = await cut(db, join(folder, "after.db"), { program: "half-copied", when: /copied (\d+) of (\d+)/ });
    const [, copied, all] = /copied (\d+) of (\d+)/.exec(crash.stdout) as RegExpExecArray;
    assert.ok(Number(copied) > 0 && Number(copied) < Number(all), crash.stdout);
    assert.ok(blankPages(image.path) > blankPages(db), "what may be half copied is not there");
    await using hf = await open(image.path);
    assert.deepEqual(validateRecovery(acceptedIn(crash.stdout), await everyJob(hf)), SOUND);
    assert.deepEqual(await hf.check(), { ok: true, findings: [] });
  });

  test("a power cut is rejected without a database, and if a file is in the way of the image", async (t) => {
    const folder = await folderOf(t);
    const db = join(folder, "work.db");
    const wrong = { by: "power-cut", when: "ready" } as const;
    await assert.rejects(simulateCrash(programOf("deaf"), { ...wrong, image: { from: db, to: join(folder, "a.db") } }), {
      code: "NO_DATABASE",
    });
    await (await open(db)).close();
    await assert.rejects(simulateCrash(programOf("deaf"), { ...wrong, image: { from: db, to: db } }), { code: "IMAGE_EXISTS" });
  });
});

describe("a crash that does not come about", () => {
  test("a crash that does not happen is reported: the program ended before, or ignored it", async () => {
    await assert.rejects(simulateCrash(SHOP, { by: "SIGKILL", args: ["/no/such/folder/work.db"], when: "accepted" }), {
      code: "ENDED_EARLY",
      message: /ended \(code 1\).*does not exist/is,
    });
    // It says nothing more, so only its time ends it.
    await assert.rejects(simulateCrash(programOf("deaf"), { by: "SIGTERM", when: "ready", timeout: "1s" }), {
      code: "NOT_ENDED",
    });
  });

  test("a crash without `by` or `when` is rejected", async () => {
    const invalid: [object, RegExp][] = [
      [{ by: "SIGHUP", when: "ready" }, /`by` of simulateCrash must be one of .*, got "SIGHUP"/],
      [{ by: "SIGKILL" }, /`when` is missing/],
      [{ by: "power-cut", when: "ready" }, /image/],
      [{ by: "SIGKILL", when: "ready", image: { from: "a", to: "b" } }, /image/],
      [{ by: "out-of-memory", limit: "kernel" }, /running program/],
      [{ by: "SIGKILL", when: "ready", limit: "kernel" }, /running program/],
      [{ by: "SIGKILL", when: "ready", tiemout: "5s" }, /no option "tiemout"/],
      [{ by: "power-cut", when: "ready", image: { from: "a", to: "b", tron: 1 } }, /no option "tron"/],
      [{ by: "out-of-memory", when: "ready", limit: "cgroup" }, /`limit` of simulateCrash must be one of .*, got "cgroup"/],
    ];
    for (const [options, message] of invalid) {
      await assert.rejects(simulateCrash(SHOP, options as CrashOptions), { code: "OPTION_INVALID", message });
    }
  });
});

const sold = job<{ item: number }>({ name: "order", run: ({ input }) => ({ sold: input.item }) });

async function cut(
  from: string,
  to: string,
  options: { torn?: number | undefined; args?: string[]; program?: string; when?: RegExp },
): Promise<{ crash: Crash; image: NonNullable<Crash["image"]> }> {
  const { torn, args = [from], program = "shop", when = MANY } = options;
  const crash = await simulateCrash(programOf(program), {
    by: "power-cut",
    args,
    when,
    image: { from, to, ...(torn === undefined ? {} : { torn }) },
  });
  assert.ok(crash.image !== undefined);
  assert.equal(crash.signal, "SIGKILL");
  return { crash, image: crash.image };
}

/** Beside the program, until they are as they should be. */
async function whileItWorks(db: string, enough: (jobs: Job[]) => boolean): Promise<Job[]> {
  let hf: Holdfast | undefined;
  try {
    for (;;) {
      // Who opens first makes it.
      hf ??= await open(db);
      const jobs = await everyJob(hf);
      if (enough(jobs)) return jobs;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  } finally {
    await hf?.close();
  }
}

function blankPages(path: string): number {
  const bytes = readFileSync(path);
  const pages = Array.from({ length: bytes.length / 4_096 }, (_, page) => bytes.subarray(page * 4_096, (page + 1) * 4_096));
  return pages.filter((page) => page.every((byte) => byte === 0)).length;
}
