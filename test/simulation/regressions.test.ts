import assert from "node:assert/strict";
import { test } from "node:test";
import type { LeaseRef } from "../../src/core/jobs/lease.ts";
import type { NewJob } from "../../src/store/store.ts";
import { inMemory, onFile } from "./place.ts";
import { Random } from "./random.ts";
import { World } from "./world.ts";
import { breakLock } from "../conformance/parts.ts";

const HOUR = 3_600_000;

const JOB: NewJob = {
  name: "mail",
  queue: "mail",
  version: 1,
  policy: { attempts: 1, backoff: "fixed", delay: 0, maxDelay: 0, crashes: 1, onInterrupt: "retry", timeout: HOUR },
  input: null,
  priority: 0,
  delay: 0,
};

/** What schedules have found, each as a plain case. */

function world(): World {
  return new World({ place: inMemory(), random: () => 0.5 });
}

test("a clock that was set back extends no lock", async () => {
  const here = world();
  const random = new Random(1);
  const holder = await here.start("local", random);
  const other = await here.start("local", random);
  await other.tick();
  assert.equal(await holder.store.locks.acquire("mail", "anna", "token", 20_000), true);
  here.jump(-HOUR);
  await other.tick();
  await here.pass(20_000);
  assert.equal(await other.store.locks.acquire("mail", "bert", "another token", 20_000), true);
  await here.close();
});

test("a claim beside an enqueue of a new definition sees the definitions of other processes", async () => {
  const here = new World({ place: onFile(), random: () => 0.5 });
  const other = await here.start("byHand", new Random(1));
  const worker = await here.start("local", new Random(1));
  await other.store.enqueue([{ ...JOB, queue: "slow" }]);
  const [, claimed] = await Promise.all([
    worker.store.enqueue([{ ...JOB, delay: HOUR }]),
    worker.store.claim({ from: [{ lease: 1_000 }], max: 1, holder: worker.id, worker: "w" }),
  ]);
  assert.deepEqual(
    claimed.map(({ queue }) => queue),
    ["slow"],
  );
  await here.close();
});

test("jobs held back by limits do not hide jobs behind them in their lane", async () => {
  const here = world();
  const worker = await here.start("local", new Random(1));
  const { store } = worker;
  const limits = [{ of: "job", position: 0, keyed: false, concurrency: 2, rate: null } as const];
  const limited = { ...JOB, declares: { queue: "mail", name: "mail", limits }, limitKeys: [""] };
  const claim = (source: object) => store.claim({ from: [{ lease: 1_000, ...source }], max: 1, holder: worker.id, worker: "w" });
  const [one, two] = [1, 2].map((version): NewJob => Object.assign({}, limited, { version, priority: 5 })) as [NewJob, NewJob];
  await store.enqueue([one, one, two, two]);
  await claim({ version: 2 });
  await claim({ version: 2 });
  const [first] = await store.enqueue([JOB, { ...JOB, version: 2 }]);
  const [claimed] = await claim({});
  assert.equal(claimed?.id, first?.id);
  await here.close();
});

test("the same change twice in one commit has two events", async () => {
  const here = world();
  const { store } = await here.start("local", new Random(1));
  const lockAndBreak = (token: string) => [store.locks.acquire("mail", "anna", token, HOUR), breakLock(store, "mail")];
  await Promise.all([...lockAndBreak("a"), ...lockAndBreak("b")]);
  await here.checkStep(true);
  await here.close();
});

test("a dependent of a duplicate depends on the existing job", async () => {
  const here = world();
  const { store } = await here.start("local", new Random(1));
  const [first] = await store.enqueue([{ ...JOB, key: "one" }]);
  const answers = await store.enqueue(
    [
      { ...JOB, id: "a", key: "one" },
      { ...JOB, after: ["a"] },
    ],
    { whole: true },
  );
  assert.deepEqual(answers[0], { id: first?.id, duplicate: true });
  assert.equal(here.model.jobs.get(answers[1]?.id as string)?.state, "waiting");
  await here.checkStep(true);
  await here.close();
});

test("a follow-up with the key of a job cancelled in the same call is not its duplicate", async () => {
  const here = world();
  const worker = await here.start("local", new Random(1));
  const { store } = worker;
  const [first] = await store.enqueue([JOB, JOB]);
  await store.enqueue([{ ...JOB, key: "one", after: [first?.id as string] }]);
  const claimed = await store.claim({ from: [{ lease: 1_000 }], max: 2, holder: worker.id, worker: "w" });
  const [failed, succeeded] = claimed.map(({ job, fence }) => ({ job, fence })) as [LeaseRef, LeaseRef];
  await store.settle([
    { ...failed, outcome: { kind: "error", error: { name: "Error", message: "no" } } },
    { ...succeeded, outcome: { kind: "succeeded", output: null }, followUps: [{ ...JOB, key: "one", followUpId: "f" }] },
  ]);
  await here.checkStep(true);
  assert.equal(here.model.jobs.get("f")?.state, "pending");
  await here.close();
});
