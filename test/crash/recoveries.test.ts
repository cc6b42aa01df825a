import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, test, type TestContext } from "node:test";
import type { CrashRecoveryReport, Holdfast, OpenOptions } from "../../src/index.ts";
import { openToOperate } from "../../src/open-handle.ts";
import { workJob } from "./jobs.ts";
import { passes, type Scene } from "./scene.ts";
import type { Child } from "./spawn.ts";
import { firstOnServer, variantsAt, wherever } from "./wherever.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

/** What the doomed one has in hand, with the exclusive one; and its locks: by name, of that claim, and of its build. */
const JOBS = 3;
const LEFT = { jobsRunningBeforeCrash: JOBS, jobsRecovered: JOBS, buildsCrashed: 1, locksReleased: 3 };
/** Each is one transaction of a recovery. */
const STEPS = ["recover", "reclaim", "report"] as const;
const MOMENTS = ["begun", "written", "committed"] as const;

const SILENT = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

wherever((stage, place) => {
  describe("after a crash", { concurrency: 2 }, () => {
    let turn = 0;
    const trial = (promise: string, attempt: (t: TestContext) => Promise<void>) => {
      void test(promise, firstOnServer(place, 4, turn++), attempt);
    };

    test("the next process that opens the database reclaims everything, and writes one report", async (t) => {
      const scene = await stage(t);
      const doomed = await leftBehind(scene);
      const hf = await scene.open({});
      const report = await lastReport(hf);
      assert.deepEqual(countsOf(report), LEFT);
      const { crashed, errors, wasSuccessful, jobsResetToPending, jobsQuarantined, jobsPending, commitsMissing } = report;
      assert.deepEqual(
        crashed.map(({ pid }) => pid),
        [doomed.pid],
      );
      assert.match(crashed[0]?.program ?? "", /recoverer\.ts$/);
      assert.deepEqual(
        { errors, wasSuccessful, jobsResetToPending, jobsQuarantined, jobsPending, commitsMissing },
        {
          errors: [],
          wasSuccessful: true,
          jobsResetToPending: JOBS,
          jobsQuarantined: 0,
          jobsPending: JOBS + 1,
          // A server has no witness beside it.
          commitsMissing: place === "file" ? 0 : null,
        },
      );
      assert.ok(report.recoveryDurationMs >= 0 && report.recoveryDurationMs < 5_000);
      assert.ok(report.recoveredAt <= Date.now() && report.recoveredAt > Date.now() - 60_000);
      const { walSizeBeforeRecoveryBytes: bytes, walFramesReplayed: frames } = report;
      if (place === "file") assert.ok(frames > 0 && bytes >= frames * 4_096, `${frames} frames in ${bytes} bytes`);
      else assert.deepEqual([bytes, frames], [0, 0]);
      assert.equal(await hf.lock("nightly").get(), null);
      const { items } = await hf.builds.list();
      assert.deepEqual(
        items.map(({ state, reason }) => [state, reason]),
        [["CRASHED", "orphaned_at_startup"]],
      );
      assert.deepEqual(await told(hf), ["recovery.completed"]);
      assert.deepEqual(await audited(hf), ["recovery.completed"]);
      assert.deepEqual(await hf.recovery.history(), [report]);
      await hf.close();
      const again = await scene.open({});
      assert.deepEqual(await again.recovery.history(), [report], "and no process reports it again");
    });

    for (const [turn, step] of STEPS.entries()) {
      for (const moment of variantsAt(place, MOMENTS, turn)) {
        test(
          `a recovery killed at ${step}:${moment} is continued by the next process: nothing is left, or counted twice`,
          firstOnServer(place, 4, turn),
          async (t) => {
            const scene = await stage(t);
            const doomed = await leftBehind(scene);
            const recoverer = scene.start("recoverer", { point: `${step}:${moment}` });
            await recoverer.next("ready");
            recoverer.send({ type: "open" });
            assert.equal((await recoverer.end()).signal, "SIGKILL");
            const hf = await scene.open({});
            const history = await hf.recovery.history();
            const pids = history.map(({ crashed }) => crashed.map(({ pid }) => pid));
            // Once it is written it is written: the one that was killed then is reported by itself.
            const isOver = step === "report" && moment === "committed";
            assert.deepEqual(pids, isOver ? [[recoverer.pid], [doomed.pid]] : [[doomed.pid, recoverer.pid]]);
            assert.deepEqual(countsOf(history.at(-1)), LEFT);
            assert.ok(history.every(({ wasSuccessful }) => wasSuccessful));
            assert.equal((await told(hf)).length, history.length);
            assert.equal((await audited(hf)).length, history.length);
            await nothingLeft(scene, hf);
          },
        );
      }
    }

    trial("several processes that open at once write one report", async (t) => {
      const scene = await stage(t);
      await leftBehind(scene);
      const openers = Array.from({ length: 3 }, () => scene.start("recoverer"));
      for (const opener of openers) await opener.next("ready");
      for (const opener of openers) opener.send({ type: "open" });
      for (const opener of openers) await opener.next("opened");
      for (const opener of openers) {
        opener.send({ type: "close" });
        await opener.next("closed");
      }
      const hf = await scene.open({});
      const history = await hf.recovery.history();
      assert.equal(history.length, 1);
      assert.deepEqual(countsOf(history[0]), LEFT);
      assert.deepEqual(await told(hf), ["recovery.completed"]);
      await nothingLeft(scene, hf);
    });

    trial("a process that dies beside live ones is reported once, whichever process finds it", async (t) => {
      const scene = await stage(t);
      const doomed = await handsFull(scene);
      const workers = [await scene.worker(), await scene.worker()];
      doomed.kill();
      const hf = await scene.open();
      const report = await until(async () => (await hf.recovery.history())[0]);
      assert.deepEqual(
        report.crashed.map(({ pid }) => pid),
        [doomed.pid],
      );
      assert.deepEqual(countsOf(report), LEFT);
      for (const worker of workers) worker.kill("SIGTERM");
      for (const worker of workers) await worker.end();
      assert.equal((await hf.recovery.history()).length, 1);
    });

    trial("a process that died with its host is reported, and no crash is counted for its jobs", async (t) => {
      const scene = await stage(t);
      await leftBehind(scene);
      await scene.witness.query("update {processes} set boot = 'an earlier one' returning id");
      const hf = await scene.open({});
      assert.deepEqual(countsOf(await lastReport(hf)), LEFT);
      const { items } = await hf.jobs.list();
      assert.deepEqual(new Set(items.map(({ crashes, attempt }) => `${crashes} ${attempt}`)), new Set(["0 0"]));
    });

    test("the database is checked after everything is reclaimed, and findings stay open until they are acknowledged", async (t) => {
      const scene = await stage(t);
      await leftBehind(scene);
      const hash = "a".repeat(64);
      const row = `1, 'parse', 'a.md', 'text', '${hash}', 1`;
      await scene.witness.query(`insert into {artifacts} (build, stage, path, name, hash, size) values (${row}) returning hash`);
      const hf = await scene.open({ log: SILENT, artifacts: artifactsOf(scene) });
      const report = await lastReport(hf);
      assert.deepEqual(countsOf(report), LEFT);
      assert.deepEqual(
        [report.errors, report.wasSuccessful],
        [[`Artifacts that something refers to are missing: ${hash}.`], false],
      );
      assert.deepEqual(await told(hf), ["recovery.failed"]);
      assert.equal((await hf.engine.store.recoveries.history({ limit: 9, which: "open" })).reports.length, 1);
      assert.deepEqual(await hf.recovery.acknowledge(), [report]);
      assert.equal((await hf.engine.store.recoveries.history({ limit: 9, which: "open" })).reports.length, 0);
    });

    for (const finder of ["who opens next", "who has been there all the time"] as const) {
      test(`temporary files of the dead process beside the database are removed by ${finder}`, async (t) => {
        const scene = await stage(t);
        const artifacts = artifactsOf(scene);
        const drafts = () => readdirSync(join(artifacts, "tmp"));
        const beside = finder === "who opens next" ? null : await scene.open({ artifacts });
        await beside?.engine.artifacts();
        const doomed = await opened(scene, { artifacts });
        doomed.send({ type: "draft" });
        await doomed.next("drafted");
        assert.equal(drafts().length, 1);
        doomed.kill();
        await doomed.end();
        const hf = beside ?? (await scene.open({ artifacts }));
        // A server may notice a moment later that the connection of a killed process has ended.
        const report = await until(async () => {
          await hf.recovery.recoverStale();
          return (await hf.recovery.history())[0];
        });
        assert.deepEqual(report.errors, []);
        assert.deepEqual(drafts(), []);
      });
    }

    if (place === "file") {
      test("the WAL of the dead process is checkpointed when the report is written", async (t) => {
        const scene = await stage(t);
        await leftBehind(scene);
        const hf = await scene.open({});
        const { walFramesReplayed } = await lastReport(hf);
        const look = new DatabaseSync(scene.path, { readOnly: true });
        const { log, checkpointed } = look.prepare("pragma wal_checkpoint(noop)").get() as { log: number; checkpointed: number };
        look.close();
        // But for what the end of the report itself has written.
        const left = log - checkpointed;
        assert.ok(left < walFramesReplayed / 2, `${left} of ${walFramesReplayed} are left`);
      });
    }

    test("a recovery by an operator has an audit entry, and finds what an open would find", async (t) => {
      const scene = await stage(t);
      await leftBehind(scene);
      await using operator = await openToOperate(scene.path, { program: "holdfast recover", user: "anna" });
      await operator.recovery.recoverStale();
      const report = await lastReport(operator);
      assert.deepEqual(countsOf(report), LEFT);
      if (place === "file") assert.ok(report.walFramesReplayed > 0 && report.walSizeBeforeRecoveryBytes > 0);
      const entries = await operator.engine.store.audit.page({ after: 0, limit: 100 });
      const { by } = entries.find(({ action }) => action === "recovery.completed") ?? assert.fail();
      assert.equal(by, `holdfast recover (pid ${process.pid} on ${hostname()}, by anna)`);
    });

    test("with manual recovery, a process started beside workers is not rejected for a process that they are about to recover", async (t) => {
      const scene = await stage(t);
      const doomed = await handsFull(scene);
      const worker = await scene.worker();
      await until(async () => (await scene.witness.query("select id from {processes} where works is not null"))[0]);
      doomed.kill();
      await doomed.end();
      const hf = await scene.open({ recovery: "manual" });
      assert.deepEqual([hf.engine.isReadOnly, await hf.recovery.preview()], [false, null]);
      assert.deepEqual(countsOf(await until(async () => (await hf.recovery.history())[0])), LEFT);
      worker.kill("SIGTERM");
      await worker.end();
    });

    trial("with manual recovery, nothing is written until an operator starts it, and the database can be read", async (t) => {
      const scene = await stage(t);
      const doomed = await leftBehind(scene);
      const tables = ["jobs", "processes", "locks", "leads", "builds", "recoveries", "audit"];
      const everything = () => Promise.all(tables.map((table) => scene.witness.query(`select * from {${table}} order by 1`)));
      const before = await everything();
      const hf = await scene.open({ recovery: "manual" });
      assert.equal((await hf.jobs.counts()).running, JOBS);
      const plan = await hf.recovery.preview();
      assert.deepEqual(
        [
          plan?.crashed.map(({ pid }) => pid),
          plan?.jobs,
          plan?.builds.length,
          plan?.locks,
          plan?.orchestratorLocks,
          plan?.continues,
        ],
        [[doomed.pid], JOBS, 1, ["alone", "nightly"], ["docs"], false],
      );
      const work = workJob(scene.effects);
      const refused = { code: "RECOVERY_PENDING", hint: /holdfast recover --apply/ };
      await assert.rejects(hf.enqueue(work, {}), refused);
      await assert.rejects(hf.claim("work", { worker: "me" }), refused);
      await assert.rejects(hf.lock("another").acquire("me", "1m"), refused);
      await assert.rejects(hf.recovery.recoverStale(), refused);
      await assert.rejects(hf.queues.pause("work"), refused);
      assert.throws(() => hf.work([work]), refused);
      await assert.rejects(scene.open({}), refused, "nor by another handle of this process");
      assert.deepEqual(await everything(), before);
      await hf.close();
      assert.deepEqual(await everything(), before);

      const operator = await scene.open();
      await operator.recovery.recoverStale();
      assert.deepEqual(countsOf(await lastReport(operator)), LEFT);
      await operator.close();
      const after = await scene.open({ recovery: "manual" });
      assert.equal(await after.recovery.preview(), null);
      assert.equal((await after.enqueue(work, {})).duplicate, false, "with nothing to recover it is as any other");
    });

    trial("a process that stops, or has nothing left to do, leaves no report", async (t) => {
      const scene = await stage(t);
      const stopped = await opened(scene);
      stopped.send({ type: "close" });
      await stopped.next("closed");
      assert.equal((await stopped.end()).code, 0);
      const finished = await opened(scene);
      // Nothing keeps it any more, and it closes nothing.
      finished.send({ type: "disconnect" });
      assert.equal((await finished.end()).code, 0);
      const hf = await scene.open({});
      assert.deepEqual([await hf.recovery.lastReport(), await hf.recovery.history(), await told(hf)], [null, [], []]);
      assert.equal((await registeredProcesses(hf.engine.store.processes)).length, 1, "and none of them is on the list");
    });
  });
});

/** What a process leaves that is killed with its hands full. */
async function leftBehind(scene: Scene): Promise<Child> {
  const doomed = await handsFull(scene);
  doomed.kill();
  await doomed.end();
  return doomed;
}

async function handsFull(scene: Scene): Promise<Child> {
  const child = await opened(scene);
  child.send({ type: "take", jobs: JOBS - 1 });
  await child.next("taken");
  return child;
}

async function opened(scene: Scene, options: OpenOptions = {}): Promise<Child> {
  const child = scene.start("recoverer", { options });
  await child.next("ready");
  child.send({ type: "open" });
  await child.next("opened");
  return child;
}

function artifactsOf(scene: Scene): string {
  return join(scene.folder, "artifacts");
}

async function nothingLeft(scene: Scene, hf: Holdfast): Promise<void> {
  const { store } = hf.engine;
  assert.deepEqual((await store.queries.overview()).running, new Map());
  assert.equal((await registeredProcesses(store.processes)).length, 1);
  assert.deepEqual(await store.builds.orchestratorLocks(), []);
  assert.deepEqual(await store.locks.list(), []);
  const { items } = await hf.jobs.list({ state: "pending" });
  assert.deepEqual(
    items.map(({ crashes }) => crashes).sort(),
    [0, ...Array(JOBS).fill(1)],
    "one crash is charged once; the build's listing had not begun",
  );
  assert.equal((await scene.witness.query("select id from {recoveries} where state = 'running'")).length, 0);
}

async function lastReport(hf: Holdfast): Promise<CrashRecoveryReport> {
  const report = await hf.recovery.lastReport();
  assert.ok(report !== null, "there is a report");
  return report;
}

function countsOf(report: CrashRecoveryReport | undefined): typeof LEFT | null {
  if (report === undefined) return null;
  const { jobsRunningBeforeCrash, jobsRecovered, buildsCrashed, locksReleased } = report;
  return { jobsRunningBeforeCrash, jobsRecovered, buildsCrashed, locksReleased };
}

async function told(hf: Holdfast): Promise<string[]> {
  const types = ["recovery.completed", "recovery.failed"];
  return (await hf.engine.store.events.page({ after: 0, limit: 100, types })).map(({ type }) => type);
}

async function audited(hf: Holdfast): Promise<string[]> {
  const entries = await hf.engine.store.audit.page({ after: 0, limit: 100 });
  return entries.map(({ action }) => action).filter((action) => action.startsWith("recovery."));
}

/** As soon as there is something. */
async function until<T>(look: () => Promise<T | undefined>): Promise<T> {
  for (;;) {
    const found = await look();
    if (found !== undefined) return found;
    await passes(5);
  }
}
