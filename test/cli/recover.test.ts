import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { type CrashRecoveryReport, job, open, type RecoveryStats } from "../../src/index.ts";
import { JOBS, type JsonError, Place } from "./holdfast.ts";

let place: Place;
before(async () => (place = await Place.make()));
after(() => place.remove());

interface Recovered {
  recovered: RecoveryStats;
  left: number;
  totals: { entriesReclaimed: number };
  history: { cause: string; entries: number }[];
}

test("recover gives back the jobs of a killed worker, and tells what was recovered so far", async () => {
  const worker = place.start(["work", JOBS]);
  await worker.said("Working on");
  {
    await using hf = await open(place.db);
    await hf.enqueue(job({ name: "hang", run: () => {} }), 1);
    await worker.said("hanging");
    worker.child.kill("SIGKILL");
    await worker.ended;
  }
  interface Waiting {
    report: unknown;
    waiting: { jobs: number; crashed: { pid: number }[] };
  }
  const { report, waiting } = await place.json<Waiting>(["recover", "--last"]);
  assert.deepEqual([report, waiting.jobs, waiting.crashed.map(({ pid }) => pid)], [null, 1, [worker.child.pid]]);
  for (const look of ["--last", "--history"]) {
    const { stdout } = await place.run(["recover", look]);
    assert.match(
      stdout,
      /^A crash has not been recovered from yet\.\nThis would be done:\n {2}unregister pid \d+ on .*\n {2}reclaim 1 job of dead processes\n/,
    );
    assert.match(stdout, /\nA worker that starts does it by itself\. To do it now:\n {2}holdfast recover\n$/);
  }
  const { recovered, left, totals, history } = await place.json<Recovered>(["recover"]);
  assert.deepEqual([recovered.entriesReclaimed, left, totals.entriesReclaimed], [1, 0, 1]);
  assert.equal(history.length, 1);
  assert.match(history[0]?.cause ?? "", new RegExp(`^process ${worker.child.pid} on .* died \\(holdfast work `));

  const again = await place.run(["recover"]);
  assert.equal(again.code, 0);
  assert.match(
    again.stdout,
    /^Nothing to recover\.\n\nAGO +JOBS +QUARANTINED +FAILED +LOCKS +WHY\n +\d+s +1 +0 +0 +0 +process \d+ /,
  );
});

test("every crash has a report: --last shows it, --history lists it, health and status know of it", async () => {
  const { report, waiting } = await place.json<{ report: CrashRecoveryReport; waiting: null }>(["recover", "--last"]);
  assert.equal(waiting, null);
  assert.deepEqual([report.jobsRecovered, report.jobsResetToPending, report.errors, report.wasSuccessful], [1, 1, [], true]);
  assert.match(report.crashed[0]?.program ?? "", /^holdfast work /);
  const last = await place.run(["recover", "--last"]);
  assert.match(
    last.stdout,
    /^Recovered\.\n {2}recovered +\d{4}-.* ms\n {2}jobs +1 of 1 reclaimed: 1 pending again, 0 quarantined\n/,
  );
  assert.match(last.stdout, new RegExp(`\n {2}crashed +pid ${report.crashed[0]?.pid} on .*, holdfast work .*, since `));
  const { reports } = await place.json<{ reports: CrashRecoveryReport[] }>(["recover", "--history"]);
  assert.deepEqual(reports, [report]);
  const listed = await place.run(["recover", "--history"]);
  assert.match(
    listed.stdout,
    /^AGO +PROCESSES +JOBS +QUARANTINED +BUILDS +LOCKS +TOOK +ERRORS\n *\d+[sm] +1 +1 +0 +0 +0 +\d+ ms +–\n$/,
  );
  const { stdout } = await place.run(["status"]);
  assert.match(stdout, /\nLast crash: \d+[sm] ago, 1 process: 1 job reclaimed in \d+ ms\n/);
  assert.deepEqual(await place.json<object>(["recover", "--acknowledge"]), { acknowledged: [] }, "nothing was wrong");
  const { error } = await place.json<JsonError>(["recover", "--last", "--apply"], 2);
  assert.equal(error.code, "USAGE");
});

test("a report with errors makes health say so until an operator acknowledges it, by name in the audit", async () => {
  const found = "3 commits that were acknowledged are not in the database";
  {
    await using hf = await open(place.db);
    const { store, self: by } = hf.engine;
    const findings = { errors: [found], commitsMissing: 3, walFramesReplayed: 0 };
    const begun = await store.recoveries.begin({ dead: [], by, opening: true, alone: true, findings });
    await store.recoveries.close({ report: begun?.report as number, by, ending: { jobsPending: 0, ...findings } });
  }
  interface Health {
    ok: boolean;
    reasons: { code: string; message: string }[];
  }
  const unwell = await place.json<Health>(["health"], 1);
  const reason = unwell.reasons.find(({ code }) => code === "RECOVERY_FAILED");
  assert.equal(reason?.message, `after a crash something was found to be wrong: ${found}`);
  assert.equal((await place.run(["recover"])).code, 1, "nor is `recover` content");
  const { stdout } = await place.run(["recover", "--last"]);
  assert.match(stdout, /^Recovered, and something is wrong\.\n(.*\n)* {2}commits missing +3\n {2}error +3 commits that were/);
  const worker = place.start(["work", JOBS]);
  await worker.said("Working");
  worker.child.kill("SIGKILL");
  await worker.ended;
  await place.run(["recover"]);
  const later = await place.run(["recover", "--last"]);
  assert.match(later.stdout, /^Recovered\.\n[\s\S]*Recovered, and something is wrong\.\n/, "the open report is shown, too");
  const said = await place.run(["recover", "--acknowledge"]);
  assert.equal(said.stdout, "Acknowledged 1 report with errors.\n");
  const well = JSON.parse((await place.run(["health", "--json"])).stdout) as Health;
  assert.ok(well.reasons.every(({ code }) => code !== "RECOVERY_FAILED"));
  const { stdout: audit } = await place.run(["audit", "--json"]);
  const entries = audit
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as { action: string; by: string });
  const { by } = entries.find(({ action }) => action === "recovery.acknowledged") as { by: string };
  assert.match(by, /^holdfast recover \(pid \d+ on /);
});

test("where the config says so, nothing is recovered before an operator has seen what that would do", async (t) => {
  const place = await Place.make();
  t.after(() => place.remove());
  const worker = place.start(["work", JOBS]);
  await worker.said("Working on");
  {
    await using hf = await open(place.db);
    await hf.enqueue(job({ name: "hang", run: () => {} }), 2);
    await worker.said("hanging");
    worker.child.kill("SIGKILL");
    await worker.ended;
  }
  await writeFile(join(place.folder, "holdfast.config.ts"), 'export default { modules: [], recovery: "manual" };\n');
  const { plan } = await place.json<{ plan: { jobs: number; crashed: { pid: number }[] } }>(["recover"]);
  assert.deepEqual([plan.jobs, plan.crashed.map(({ pid }) => pid)], [1, [worker.child.pid]]);
  const shown = await place.run(["recover"]);
  assert.match(
    shown.stdout,
    /^This would be done:\n {2}unregister pid \d+ on .*\n {2}reclaim 1 job of dead processes\n\nTo do it now:\n {2}holdfast recover --apply\n$/,
  );
  const last = await place.run(["recover", "--last"]);
  assert.match(last.stdout, /^A crash has not been recovered from yet\.\n(.*\n)*To do it now:\n {2}holdfast recover --apply\n$/);
  const { processes } = await place.json<{ processes: { pid: number; life: string }[] }>(["status"]);
  assert.deepEqual(
    processes.map(({ pid, life }) => [pid, life]),
    [[worker.child.pid, "dead"]],
    "who only looks tells a crash from a reboot",
  );
  const { error } = await place.json<JsonError>(["queues", "pause", "hang"], 1);
  assert.deepEqual([error.code, /--apply/.test(error.hint)], ["RECOVERY_PENDING", true]);
  const unwell = await place.json<{ reasons: { code: string }[] }>(["health"], 1);
  assert.ok(unwell.reasons.some(({ code }) => code === "RECOVERY_PENDING"));
  const { recovered } = await place.json<Recovered>(["recover", "--apply"]);
  assert.equal(recovered.entriesReclaimed, 1);
  const { stdout: audit } = await place.run(["audit", "--json"]);
  const { action, by } = JSON.parse(audit.trimEnd().split("\n").at(-1) ?? "") as { action: string; by: string };
  assert.equal(action, "recovery.completed");
  assert.match(by, /^holdfast recover \(pid \d+ on .*, by /, "who has said so");
  assert.deepEqual(await place.json<object>(["recover", "--dry-run"]), { plan: null, lost: [] });
  assert.equal((await place.run(["queues", "pause", "hang"])).code, 0);
});

test("recover --dry-run shows expired leases and locks, and recover then does exactly that", async () => {
  const review = job({ name: "review", run: () => {} });
  {
    await using hf = await open(place.db);
    await hf.enqueue(review, 1);
    await hf.claim(review, { worker: "gone", lease: 1 });
    await hf.lock("gone").acquire("gone", 1);
  }
  const { plan } = await place.json<{ plan: { crashed: object[]; expired: object } }>(["recover", "--dry-run"]);
  assert.deepEqual([plan.crashed, plan.expired], [[], { jobs: 1, locks: ["gone"] }]);
  const { stdout } = await place.run(["recover", "--dry-run"]);
  assert.match(stdout, /would be done:\n {2}reclaim 1 job whose lease has expired\n {2}remove the expired lock gone\n/);
  const { stdout: last } = await place.run(["recover", "--last"]);
  assert.doesNotMatch(last, /A crash has not been recovered/);
  const { stdout: metrics } = await place.run(["metrics"]);
  assert.match(metrics, /^holdfast_stale_entries 1$/m);
  assert.match(metrics, /^holdfast_stale_locks 1$/m);
  assert.match(metrics, /^holdfast_recoveries_failed \d+$/m);
  const { recovered } = await place.json<Recovered>(["recover"]);
  assert.deepEqual([recovered.entriesReclaimed, recovered.locksCleaned], [1, 1]);
  assert.deepEqual(await place.json<object>(["recover", "--dry-run"]), { plan: null, lost: [] });
});

test("recover --expired-for takes back leases that expired that long ago", async () => {
  {
    // Claimed by a process whose clock is an hour behind, so its lease is long over.
    await using hf = await open(place.db, { clock: { now: () => Date.now() - 3_600_000 } });
    await hf.enqueue(job({ name: "by-hand", run: () => {} }), 1);
    assert.ok(await hf.claim("by-hand", { worker: "anna", lease: "1m" }));
  }
  const tooEarly = await place.json<Recovered>(["recover", "--expired-for", "2h"]);
  assert.deepEqual([tooEarly.recovered.entriesReclaimed, tooEarly.left], [0, 1]);
  const { stdout } = await place.run(["recover", "--expired-for", "5m"]);
  assert.match(stdout, /^This was done:\n {2}reclaimed 1 job whose lease has expired\n\nAGO/);
});

test("unlock refuses a held lock with exit 4 and names the holder; --force and stale locks are removed", async () => {
  {
    await using hf = await open(place.db);
    assert.ok(await hf.lock("nightly").acquire("anna on vm-3", "10m"));
  }
  const { code, stderr } = await place.run(["unlock", "nightly"]);
  assert.equal(code, 4);
  assert.match(stderr, /error: The lock nightly is held by anna on vm-3, since \d+s, .*\nhint: {2}.*--force/);
  const forced = await place.json<object>(["unlock", "nightly", "--force"]);
  assert.deepEqual(forced, { name: "nightly", holder: "anna on vm-3", forced: true });
  const { error } = await place.json<JsonError>(["unlock", "nightly"], 1);
  assert.equal(error.code, "NO_SUCH_LOCK");

  {
    await using hf = await open(place.db, { clock: { now: () => Date.now() - 3_600_000 } });
    assert.ok(await hf.lock("nightly").acquire("bert", "1m"));
  }
  const stale = await place.run(["unlock", "nightly"]);
  assert.deepEqual([stale.code, stale.stdout], [0, "Unlocked nightly: it was held by bert.\n"]);
});
