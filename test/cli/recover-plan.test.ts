import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type Build, type CrashRecoveryReport, job, open, type RecoveryStats } from "../../src/index.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { DOCS, placeWith, writeDoc } from "./build-place.ts";
import { firstOf, testAllOnly } from "../selection.ts";
import { fixture, JOBS, type Place } from "./holdfast.ts";

const BIN = fileURLToPath(new URL("../../bin/holdfast.js", import.meta.url));

interface Plan {
  continues: boolean;
  crashed: { pid: number }[];
  jobs: number;
  builds: string[];
  locks: string[];
  orchestratorLocks: string[];
  expired: { jobs: number; locks: string[] };
  overlong: { leases: number; locks: string[] };
  leftoverJobs: number;
}
interface Done {
  done: Plan | null;
  recovered: RecoveryStats;
  report: CrashRecoveryReport | null;
}
interface Status {
  recovery: { entriesReclaimed: number; locksCleaned: number };
  alarms: { code: string; hint: string }[];
}

/** A folder and a database, and the options that name the database. */
interface Scene {
  place: Place;
  db: string;
  where: string[];
}

/** What is killed or left to expire, what --dry-run says of it, and how many jobs and locks are reclaimed. */
interface Crash {
  leave: (scene: Scene) => Promise<void>;
  lines: RegExp[];
  counts: { jobs: number; locks: number };
}

const CRASHES: Record<string, Crash> = {
  "a worker was killed with a job": {
    leave: killedWorker,
    lines: [/^ {2}unregister pid \d+ on .*, holdfast work /, /^ {2}reclaim 1 job of dead processes$/],
    counts: { jobs: 1, locks: 0 },
  },
  "an idle worker was killed": {
    leave: async ({ place, where }) => {
      const worker = place.start(["work", JOBS, ...where]);
      await worker.said("Working on");
      worker.child.kill("SIGKILL");
      await worker.ended;
    },
    lines: [/^ {2}unregister pid \d+ on .*, holdfast work /],
    counts: { jobs: 0, locks: 0 },
  },
  "a process was killed that held locks": {
    leave: ({ db }) => killedHolder(db),
    lines: [
      /^ {2}unregister pid \d+ on .*, /,
      /^ {2}reclaim 1 job of dead processes$/,
      /^ {2}release the lock alone$/,
      /^ {2}release the lock nightly$/,
    ],
    counts: { jobs: 1, locks: 2 },
  },
  "a process was killed with jobs that may not run again": {
    leave: ({ db }) => killedHolder(db, "ending"),
    lines: [
      /^ {2}unregister pid \d+ on .*, /,
      /^ {2}reclaim 4 jobs of dead processes$/,
      /^ {2}quarantine 1 of these, crashed too often$/,
      /^ {2}fail 1 of these, with onInterrupt "fail"$/,
      /^ {2}cancel 1 of these, replaced by a newer job$/,
      /^ {2}release the lock alone$/,
      /^ {2}release the lock nightly$/,
    ],
    counts: { jobs: 4, locks: 2 },
  },
  "the orchestrator of a build was killed": {
    leave: (scene) => killedRun(scene),
    lines: [
      /^ {2}unregister pid \d+ on .*, holdfast run /,
      /^ {2}reclaim 1 job of dead processes$/,
      /^ {2}mark build b\w+ as CRASHED, ready to resume$/,
      /^ {2}release the orchestrator lock docs$/,
    ],
    counts: { jobs: 1, locks: 1 },
  },
  "a lease and a lock expired": {
    leave: ({ db }) => claimedAt(db, () => Date.now() - 3_600_000),
    lines: [/^ {2}reclaim 1 job whose lease has expired$/, /^ {2}remove the expired lock gone$/],
    counts: { jobs: 1, locks: 1 },
  },
  "a build was abandoned, and its command was killed before it had cancelled the jobs": {
    leave: async (scene) => {
      await writeDoc(scene.place, "b", "slow ben");
      await killedRun(scene);
      assert.equal(await killed([fixture("abandon-killed.ts"), scene.db]), "SIGKILL");
    },
    lines: [/^ {2}unregister pid \d+ on .*abandon-killed/, /^ {2}cancel 2 jobs of builds that have ended$/],
    counts: { jobs: 0, locks: 0 },
  },
  "a build was abandoned after its orchestrator was killed with a job": {
    leave: async (scene) => {
      await killedRun(scene);
      const { items } = await scene.place.json<{ items: Build[] }>(["builds", "list", ...scene.where]);
      await scene.place.json(["builds", "abandon", items[0]?.id ?? "", "--reason", "not needed", ...scene.where]);
    },
    lines: [
      /^ {2}unregister pid \d+ on .*, holdfast run /,
      /^ {2}reclaim 1 job of dead processes$/,
      /^ {2}cancel 1 job of builds that have ended$/,
    ],
    counts: { jobs: 1, locks: 0 },
  },
  "the clock was set back by an hour": {
    leave: ({ db }) => claimedAt(db, () => Date.now() + 3_600_000),
    lines: [/^ {2}shorten 1 lease that expires too late$/, /^ {2}shorten the lock gone, which expires too late$/],
    counts: { jobs: 0, locks: 0 },
  },
};

async function killedWorker({ place, db, where }: Scene): Promise<void> {
  const worker = place.start(["work", JOBS, ...where]);
  await worker.said("Working on");
  {
    await using hf = await open(db);
    await hf.enqueue(job({ name: "hang", run: () => {} }), 1);
    await worker.said("hanging");
  }
  worker.child.kill("SIGKILL");
  await worker.ended;
}

async function killedHolder(...args: string[]): Promise<void> {
  const holder = spawn(process.execPath, [fixture("lock-holder.ts"), ...args], { stdio: ["ignore", "pipe", "inherit"] });
  const exited = once(holder, "exit");
  await once(holder.stdout, "data");
  holder.kill("SIGKILL");
  await exited;
}

/** Kills the orchestrator while its only document waits at the gate. */
async function killedRun({ place, where }: Pick<Scene, "place" | "where">, node: string[] = []): Promise<void> {
  const run = place.start(["run", DOCS, "--concurrency", "1", ...where], { node });
  await run.said("holding");
  run.child.kill("SIGKILL");
  await run.ended;
}

/** Leaves a claim and a lock of a process with this clock. */
async function claimedAt(db: string, now: () => number): Promise<void> {
  const review = job({ name: "review", run: () => {} });
  await using hf = await open(db, { clock: { now } });
  await hf.enqueue(review, 1);
  await hf.claim(review, { worker: "gone", lease: "1m" });
  await hf.lock("gone").acquire("gone", "1m");
}

async function killed(args: string[]): Promise<unknown> {
  const [, signal] = (await once(spawn(process.execPath, args, { stdio: "inherit" }), "exit")) as unknown[];
  return signal;
}

for (const store of ["SQLite", "PostgreSQL"] as const) {
  describe(`recover on ${store}`, { skip: store === "PostgreSQL" && noServer }, () => {
    let server: PostgresServer | undefined;
    before(async () => {
      if (store === "PostgreSQL") server = await startServer();
    });
    after(() => server?.close());

    const sceneFor = async (t: TestContext): Promise<Scene> => {
      const place = await placeWith({ a: "slow anna" });
      t.after(() => place.remove());
      const db = server === undefined ? place.db : await server.createDatabase();
      return { place, db, where: ["--db", db, "--artifacts", join(place.folder, "artifacts")] };
    };

    for (const [turn, [what, { leave, lines, counts }]] of Object.entries(CRASHES).entries()) {
      // Words and numbers come from one plan: `npm test` compares the words on SQLite, and some numbers on each.
      const inWords = store === "PostgreSQL" ? testAllOnly : {};
      const inNumbers = firstOf(3, store === "PostgreSQL" ? turn : turn + 1);
      test(`--dry-run names what recover then does, in the same words, after ${what}`, inWords, async (t) => {
        const { place, db, where } = await sceneFor(t);
        await leave({ place, db, where });
        const dry = await place.run(["recover", "--dry-run", ...where]);
        const planned = linesUnder("This would be done:", dry.stdout);
        assert.equal(planned.length, lines.length, dry.stdout);
        for (const [i, line] of lines.entries()) assert.match(planned[i] as string, line);
        const done = await place.run(["recover", ...where]);
        assert.deepEqual(linesUnder("This was done:", done.stdout).map(inPresentTense), planned);
        assert.equal((await place.run(["recover", "--dry-run", ...where])).stdout, "Nothing to recover.\n");
        assert.match((await place.run(["recover", ...where])).stdout, /^Nothing to recover\.\n/);
      });

      test(`recover, its JSON, the report and status give the same numbers after ${what}`, inNumbers, async (t) => {
        const { place, db, where } = await sceneFor(t);
        await leave({ place, db, where });
        const { recovery: earlier } = await place.json<Status>(["status", ...where]);
        const { plan } = await place.json<{ plan: Plan }>(["recover", "--dry-run", ...where]);
        const { done, recovered, report } = await place.json<Done>(["recover", ...where]);
        assert.deepEqual(done, plan);
        const { entriesReclaimed, locksCleaned } = recovered;
        assert.deepEqual({ jobs: entriesReclaimed, locks: locksCleaned }, counts);
        const { recovery } = await place.json<Status>(["status", ...where]);
        const jobs = recovery.entriesReclaimed - earlier.entriesReclaimed;
        assert.deepEqual({ jobs, locks: recovery.locksCleaned - earlier.locksCleaned }, counts);
        // Without a crash there is no report.
        if (plan.crashed.length === 0) return assert.equal(report, null);
        assert.deepEqual({ jobs: report?.jobsRecovered, locks: report?.locksReleased }, counts);
      });
    }

    test("--expired-for with --dry-run shows what --expired-for then does, and nothing of dead processes", async (t) => {
      const { place, db, where } = await sceneFor(t);
      await killedHolder(db, "expired");
      const { plan } = await place.json<{ plan: Plan }>(["recover", "--dry-run", "--expired-for", "1ms", ...where]);
      assert.deepEqual([plan.crashed, plan.jobs, plan.expired], [[], 0, { jobs: 1, locks: ["gone"] }]);
      const { stdout } = await place.run(["recover", "--dry-run", "--expired-for", "1ms", ...where]);
      assert.match(stdout, /\nTo do it now:\n {2}holdfast recover --expired-for 1ms --db /);
      assert.deepEqual((await place.json<Done>(["recover", "--expired-for", "1ms", ...where])).done, plan);
      const { plan: rest } = await place.json<{ plan: Plan }>(["recover", "--dry-run", ...where]);
      assert.deepEqual([rest.crashed.length, rest.jobs, rest.expired], [1, 1, { jobs: 0, locks: [] }]);
    });

    test("status and unlock show the locks whose holder is dead", async (t) => {
      const { place, db, where } = await sceneFor(t);
      await using hf = await open(db, { recovery: "manual" });
      await hf.lock("mine").acquire("me", "10m");
      await killedHolder(db);
      const { locks } = await place.json<{ locks: { name: string; holderDead: boolean }[] }>(["status", ...where]);
      const dead = locks.map(({ name, holderDead }) => [name, holderDead]);
      assert.deepEqual(dead, [...["alone", "nightly"].map((name) => [name, true]), ["mine", false]].sort());
      for (const command of ["status", "unlock"]) {
        const { stdout } = await place.run([command, ...where]);
        assert.match(stdout, /\nnightly +anna .* holder is dead\n/, command);
        assert.doesNotMatch(stdout, /\nmine .*dead/, command);
      }
    });

    test("one build whose orchestrator is killed again and again is one build in the report and in status", async (t) => {
      const { place, where } = await sceneFor(t);
      // Killed before it has ended the report of the crash before, which the next run continues.
      const node = ["--import", fixture("slow-checks.ts")];
      for (let kills = 0; kills < 3; kills++) await killedRun({ place, where }, node);
      const { plan } = await place.json<{ plan: Plan }>(["recover", "--dry-run", ...where]);
      const { done, report } = await place.json<Done>(["recover", ...where]);
      assert.deepEqual(done, plan);
      assert.deepEqual([plan.continues, plan.crashed.length, plan.builds.length], [true, 1, 1]);
      assert.deepEqual([report?.crashed.length, report?.buildsCrashed, report?.locksReleased], [3, 1, 3]);
      const { stdout } = await place.run(["status", ...where]);
      assert.match(stdout, /\nLast crash: \d+s ago, 3 processes: 3 attempts, 1 build, 3 locks reclaimed in /);
    });

    test("every advice to recover is the same command; pasted into a shell, it recovers", async (t) => {
      const { place, db, where } = await sceneFor(t);
      await killedWorker({ place, db, where });
      const { alarms } = await place.json<Status>(["status", ...where]);
      const advice = alarms.find(({ code }) => code === "LEFT_BEHIND")?.hint as string;
      assert.match(advice, /^holdfast recover --db /);
      for (const look of [["--dry-run"], ["--last"], ["--history"]]) {
        const { stdout } = await place.run(["recover", ...look, ...where]);
        assert.equal(stdout.trimEnd().split("\n").at(-1)?.trim(), advice, look[0]);
      }
      const { found } = JSON.parse((await place.run(["doctor", "--json", ...where])).stdout) as {
        found: { area: string; mend: string }[];
      };
      assert.equal(found.find(({ area }) => area === "processes")?.mend, advice);
      const { username, password } = server === undefined ? { username: "", password: "" } : new URL(db);
      const pasted = advice.replace(/^holdfast/, `'${process.execPath}' '${BIN}'`);
      const env = { ...process.env, PGUSER: username, PGPASSWORD: password };
      const { status, stdout, stderr } = spawnSync("sh", ["-c", pasted], { cwd: place.folder, env, encoding: "utf8" });
      assert.equal(status, 0, stderr);
      assert.match(stdout, /^This was done:\n(.*\n)* {2}reclaimed 1 job of dead processes\n/);
    });
  });
}

test("--dry-run names a damaged row that recover then reports", async (t) => {
  const place = await placeWith({});
  t.after(() => place.remove());
  await (await open(place.db)).close();
  const what = "Row 3 of holdfast_jobs does not match its checksum.";
  await mkdir(`${place.db}-findings`);
  const finding = { id: "1-a", at: 1, severity: "row", what, commitsMissing: null };
  await writeFile(`${place.db}-findings/1-a.json`, JSON.stringify(finding));
  const { stdout } = await place.run(["recover", "--dry-run"]);
  assert.deepEqual(linesUnder("This will be reported:", stdout), [`  ${what}`]);
  const { report } = await place.json<Done>(["recover"], 1);
  assert.deepEqual(report?.errors, [what]);
});

/** The indented lines under a heading. */
function linesUnder(heading: string, text: string): string[] {
  const [first, ...lines] = text.split("\n");
  assert.equal(first, heading, text);
  const end = lines.findIndex((line) => !line.startsWith("  "));
  // The age of a process grows between two commands.
  return lines.slice(0, end).map((line) => line.replace(/ \(\d+\w ago\)$/, ""));
}

const PRESENT: Record<string, string> = {
  unregistered: "unregister",
  reclaimed: "reclaim",
  quarantined: "quarantine",
  failed: "fail",
  marked: "mark",
  released: "release",
  removed: "remove",
  shortened: "shorten",
  cancelled: "cancel",
};

function inPresentTense(line: string): string {
  return line.replace(/\w+/, (verb) => PRESENT[verb] ?? `no past tense: ${verb}`);
}
