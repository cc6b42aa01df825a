import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { type Holdfast, job, open } from "../../src/index.ts";
import { JOBS, type JsonError, Place } from "./holdfast.ts";

let place: Place;
let hf: Holdfast;
before(async () => {
  place = await Place.make();
  hf = await open(place.db, { program: "my-app" });
});
after(async () => {
  await hf.close();
  await place.remove();
});

interface Stopped {
  asked: { pid: number; program: string }[];
  gone: { pid: number }[];
  left: { pid: number }[];
  deaf: { pid: number; program: string }[];
}

const pids = (processes: readonly { pid?: number | undefined }[]) => processes.map(({ pid }) => pid).toSorted();

test("stop asks every worker without a signal, waits until they are gone, and fails when a process that ignores it works on", async () => {
  const workers = [place.start(["work", JOBS]), place.start(["work", JOBS, "--json"])];
  await Promise.all(workers.map((worker) => worker.said("pid")));
  const { id } = await hf.enqueue(job({ name: "hang", run: () => {} }), 1);
  await Promise.race(workers.map((worker) => worker.said("hanging")));
  const own = hf.work([job({ name: "mine", run: () => {} })]);
  // It is announced with the worker's first commit.
  await hf.jobs.wait(await hf.enqueue(job({ name: "mine", run: () => {} }), 1));

  const stopped = await place.json<Stopped>(["stop", "--drain", "0s"], 1);
  assert.deepEqual(pids(stopped.asked), pids(workers.map(({ child }) => child)));
  assert.deepEqual(pids(stopped.gone), pids(stopped.asked));
  assert.deepEqual(stopped.left, []);
  assert.deepEqual(
    stopped.deaf.map(({ pid, program }) => [pid, program]),
    [[process.pid, "my-app"]],
  );
  const [first, second] = await Promise.all(workers.map(({ ended }) => ended));
  assert.deepEqual([first?.code, second?.code], [0, 0]);
  assert.match(first?.stdout ?? "", /\nStopping, as `holdfast stop` asked: running jobs have 0ms to finish\. .*\nStopped\.\n$/);
  assert.match(second?.stdout ?? "", /\n\{"event":"stopping","asked":true,"drain":0\}\n\{"event":"stopped"\}\n$/);
  assert.equal((await hf.jobs.get(id))?.state, "pending", "what did not finish was given back");
  await hf.jobs.cancel(id);

  const deaf = await place.run(["stop"]);
  assert.equal(deaf.code, 1);
  assert.match(
    deaf.stdout,
    /^still running pid \d+ on .* \(my-app\): it does not heed `holdfast stop`\nNot all of them have stopped\.\n$/,
  );
  await own.stop();
  // It still has the database open, and works no more.
  const nothing = await place.run(["stop"]);
  assert.deepEqual([nothing.code, nothing.stdout], [0, "No process to stop.\n"]);
});

test("stop exits 1 when a process is left, and when a process that was named cannot be asked", async () => {
  const worker = place.start(["work", JOBS]);
  await hf.enqueue(job({ name: "deaf", run: () => {} }), 1);
  await worker.said("deaf runs");
  const pid = String(worker.child.pid);
  const left = await place.run(["stop", pid, "--drain", "10m", "--wait", "0s"]);
  assert.equal(left.code, 1);
  assert.match(left.stdout, /^Asked 1 process to stop; .* 10m .*\nstill there pid \d+ on .*\nNot all of them have stopped\.\n$/);
  await worker.said("Stopping");

  const named = await place.json<Stopped>(["stop", String(process.pid)], 1);
  assert.deepEqual([named.asked, pids(named.deaf)], [[], [process.pid]]);
  const unknown = await place.json<JsonError>(["stop", "1"], 1);
  assert.equal(unknown.error.code, "NO_SUCH_PROCESS");
  assert.match(unknown.error.hint, new RegExp(pid));

  // Asked before, and still waited for; then it dies.
  const again = place.start(["stop", "--wait", "10m"]);
  await again.said("Asked 1 process");
  worker.child.kill("SIGKILL");
  const ended = await again.ended;
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
  assert.match(ended.stdout, /\ngone pid \d+ /);
});
