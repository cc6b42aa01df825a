import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, beforeEach, describe, test, type TestContext } from "node:test";
import { type Holdfast, open } from "../../src/index.ts";
import { workJob } from "../crash/jobs.ts";
import { bestOfThree, Scene } from "../crash/scene.ts";
import { type Child, type How, whyNoNamespace } from "../crash/spawn.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

/** The promise: killed here, running again there. */
const SECOND = 1_000;
const LEASE = 900;
const HOUR = 3_600_000;
/** A lease, a third of it that is seen to pass, and the looks that notice, on a busy machine. */
const TAKEN_BACK = 2 * LEASE + SECOND;
const noNamespace = whyNoNamespace() ?? false;

describe("who is alive, with workers on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  let url: string;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => void (url = await server.createDatabase()));

  const scene = async (t: TestContext) => {
    const made = new Scene(t);
    const hf = await open(url, { recovery: "manual" });
    t.after(() => hf.close());
    const worker = (options: object = {}, how: How = {}) => made.worker({ path: url, ...options }, how);
    /** A file that says by how much a host's clock is wrong. */
    const clockAt = (offset: number) => {
      const file = join(made.folder, `clock ${offset}`);
      writeFileSync(file, String(offset));
      return file;
    };
    return { hf, worker, work: workJob(made.effects), clockAt };
  };

  test("a killed worker's job runs again in another process within a second, without any call", async (t) => {
    const { hf, worker, work } = await scene(t);
    const took = await bestOfThree(SECOND, async () => {
      const doomed = await worker({ concurrency: 1 });
      const { id } = await hf.enqueue(work, { hold: true });
      await doomed.next("started");
      const other = await worker({ concurrency: 1 });
      const took = await killed(doomed, other);
      const { state, attempt, crashes } = await hf.jobs.wait(id);
      assert.deepEqual({ state, attempt, crashes }, { state: "succeeded", attempt: 2, crashes: 1 });
      await end(other);
      return took;
    });
    t.diagnostic(`it ran again after ${Math.round(took)} ms`);
    assert.ok(took < SECOND, `it ran again after ${Math.round(took)} ms`);
  });

  test(
    "of two workers with pid 1, no live job is reclaimed, and a killed one's job is within a second",
    { skip: noNamespace },
    async (t) => {
      const { hf, worker, work } = await scene(t);
      const took = await bestOfThree(SECOND, async () => {
        const doomed = await worker({ concurrency: 1, lease: LEASE }, { pidNamespace: true });
        const first = await hf.enqueue(work, { hold: true });
        assert.equal((await doomed.next("started"))["pid"], 1);
        const other = await worker({ concurrency: 2, lease: LEASE }, { pidNamespace: true });
        const second = await hf.enqueue(work, { hold: true });
        assert.equal((await other.next("started"))["pid"], 1);
        await renewed(hf, 3, async () => {
          for (const one of [doomed, other]) assert.equal(await recover(one), 0, "no live job is taken back");
        });
        const took = await killed(doomed, other);
        assert.equal((await hf.jobs.wait(first.id)).crashes, 1);
        assert.equal((await hf.jobs.wait(second.id)).crashes, 0);
        await end(other);
        return took;
      });
      assert.ok(took < SECOND, `it ran again after ${Math.round(took)} ms`);
    },
  );

  test(
    "a process on another host is never taken for dead, even if it is: its lease decides",
    { skip: noNamespace },
    async (t) => {
      const { hf, worker, work } = await scene(t);
      const far = await worker({ concurrency: 1, lease: LEASE }, { otherHost: true });
      const { id } = await hf.enqueue(work, { hold: true });
      await far.next("started");
      const lives = async () => {
        const { others: processes } = await hf.engine.store.processes.probe();
        return processes.filter(({ process }) => process.works.length > 0).map(({ life }) => life);
      };
      assert.deepEqual(await lives(), ["alive"], "its connection says so");
      const here = await worker({ concurrency: 1, lease: LEASE });
      await renewed(hf, 3, async () => assert.equal(await recover(here), 0, "it is not taken back"));
      const expiresAt = await expiry();
      far.kill();
      await far.ended;
      await here.next("started");
      const [{ now }] = (await server.query("select holdfast.clock(null)::float8 as now", url)) as [{ now: number }];
      assert.ok(now >= expiresAt, "not before its lease was over");
      here.send({ type: "finish" });
      const { attempt, crashes } = await hf.jobs.wait(id);
      assert.deepEqual([attempt, crashes], [2, 1]);
      await end(here);
    },
  );

  for (const [ahead, behind] of [
    ["the holder's", "the other's"],
    ["the other's", "the holder's"],
  ] as const) {
    test(
      `with clocks of two hosts two hours apart, ${ahead} ahead, a lease holds and ends by the database's clock`,
      { skip: noNamespace },
      async (t) => {
        const { hf, worker, work, clockAt } = await scene(t);
        const clocks = { [ahead]: clockAt(HOUR), [behind]: clockAt(-HOUR) };
        const how = (whose: string) => ({ otherHost: true, clock: clocks[whose] as string });
        const took = await bestOfThree(TAKEN_BACK, async () => {
          const holder = await worker({ concurrency: 1, lease: LEASE }, how("the holder's"));
          const { id } = await hf.enqueue(work, { hold: true });
          await holder.next("started");
          const other = await worker({ concurrency: 1, lease: LEASE }, how("the other's"));
          await renewed(hf, 3, async () => assert.equal(await recover(other), 0, "it is not taken back"));
          const expiresAt = await expiry();
          const took = await killed(holder, other);
          const { attempt, crashes, startedAt } = await hf.jobs.wait(id);
          assert.deepEqual([attempt, crashes], [2, 1]);
          assert.ok((startedAt ?? 0) >= expiresAt, "not before its lease was over");
          await end(other);
          return took;
        });
        t.diagnostic(`it ran again after ${Math.round(took)} ms`);
        assert.ok(took < TAKEN_BACK, `it ran again after ${Math.round(took)} ms`);
      },
    );
  }

  const expiry = async () => {
    const rows = await server.query("select expires_at::float8 as at from holdfast.jobs where state = 'running'", url);
    return Math.max(...rows.map(({ at }) => Number(at)));
  };

  /** Until every lease was renewed so many times, doing something meanwhile. */
  async function renewed(hf: Holdfast, times: number, meanwhile: () => Promise<void>): Promise<void> {
    const seen = new Set<number>();
    const running = (await hf.jobs.counts()).running;
    while (seen.size <= times) {
      await meanwhile();
      seen.add(await expiry());
      assert.equal((await hf.jobs.counts()).running, running);
    }
  }
});

/** How long it took until the other had its job. */
async function killed(doomed: Child, other: Child): Promise<number> {
  const since = performance.now();
  doomed.kill();
  await other.next("started");
  const took = performance.now() - since;
  other.send({ type: "finish" });
  return took;
}

async function recover(child: Child): Promise<unknown> {
  child.send({ type: "recover" });
  return (await child.next("recovered"))["entriesReclaimed"];
}

async function end(child: Child): Promise<void> {
  child.kill();
  await child.ended;
}
