import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { job, open, type RecoveryStats } from "../../src/index.ts";
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

test("recover --expired-for takes back leases that expired that long ago", async () => {
  {
    // Claimed by somebody whose clock is an hour behind, so its lease is long over.
    await using hf = await open(place.db, { clock: { now: () => Date.now() - 3_600_000 } });
    await hf.enqueue(job({ name: "by-hand", run: () => {} }), 1);
    assert.ok(await hf.claim("by-hand", { worker: "anna", lease: "1m" }));
  }
  const tooEarly = await place.json<Recovered>(["recover", "--expired-for", "2h"]);
  assert.deepEqual([tooEarly.recovered.entriesReclaimed, tooEarly.left], [0, 1]);
  const { stdout } = await place.run(["recover", "--expired-for", "5m"]);
  assert.match(stdout, /^Recovered 1 job and 0 locks\.\n\nAGO/);
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
