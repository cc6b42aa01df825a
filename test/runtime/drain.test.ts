import assert from "node:assert/strict";
import { join } from "node:path";
import { suite } from "node:test";
import { z } from "zod";
import { job, type JobContext, type JobDef, NonRetryableError, open, RetryAfterError } from "../../src/index.ts";
import { drain } from "../../src/testing/index.ts";
import { apart, code, deferred, file, folder, interruptedChild, memory, see, stage, test, unchecked } from "./parts.ts";
import { DEFINITIONS } from "./children/tasks.ts";

type C<In = unknown> = JobContext<In>;
const plain = job<unknown, unknown>({ name: "plain", run: ({ input }) => input });
const counted: JobDef<number> = job<number>({
  name: "counted",
  run: ({ input, enqueue }) => void (input > 0 && enqueue(counted, input - 1)),
});

const strict = (input: z.ZodType) => job({ name: "strict", input, run: () => null });

suite("drain", () => {
  test("drain runs due jobs until none is left, and returns the number of attempts", async (t) => {
    const { hf } = await memory(t);
    const accepted = await hf.enqueueMany(plain, [1, 2, 3]);
    assert.deepEqual(await drain(hf, [plain]), { ran: 3, failed: [] });
    for (const { id } of accepted) assert.equal((await see(hf, id)).state, "succeeded");
  });

  test("drain returns at once if there is nothing to do, also without definitions", async (t) => {
    const { hf } = await memory(t);
    assert.deepEqual(await drain(hf, [plain]), { ran: 0, failed: [] });
    await hf.enqueue(plain, 1);
    assert.deepEqual(await drain(hf, []), { ran: 0, failed: [] });
    assert.equal((await hf.jobs.counts()).pending, 1);
  });

  test("drain also runs the jobs that handlers enqueue, generation after generation", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(counted, 200);
    assert.deepEqual(await drain(hf, [counted]), { ran: 201, failed: [] });
  });

  test("drain runs jobs that handlers enqueue directly, and jobs that wait for each other", async (t) => {
    const { hf } = await memory(t);
    const parent = job({
      name: "parent",
      run: async ({ input }: C<number>) => (await hf.jobs.wait(await hf.enqueue(plain, input))).output,
    });
    const { id } = await hf.enqueue(parent, 7);
    assert.deepEqual(await drain(hf, [parent, plain]), { ran: 2, failed: [] });
    assert.equal((await see(hf, id)).output, 7);
  });

  test("drain leaves delayed jobs and backoffs alone, because no time passes", async (t) => {
    const { hf, clock } = await memory(t);
    const start = clock.now();
    const flaky = job({
      name: "flaky",
      retry: { attempts: 3, backoff: "fixed", delay: "10s" },
      run: ({ attempt }: C) => {
        if (attempt < 3) throw new Error("not yet");
        return attempt;
      },
    });
    const later = await hf.enqueue(plain, 1, { delay: "1h" });
    const { id } = await hf.enqueue(flaky, 1);
    for (const attempt of [1, 2]) {
      assert.deepEqual(await drain(hf, [plain, flaky]), { ran: 1, failed: [] });
      assert.deepEqual([(await see(hf, id)).state, (await see(hf, id)).attempt], ["pending", attempt]);
      assert.deepEqual(await drain(hf, [plain, flaky]), { ran: 0, failed: [] });
      await clock.advance("10s");
    }
    assert.deepEqual(await drain(hf, [plain, flaky]), { ran: 1, failed: [] });
    assert.equal((await see(hf, id)).output, 3);
    assert.equal((await see(hf, later.id)).state, "pending");
    assert.equal(clock.now() - start, 20_000);
    await clock.advance("1h");
    assert.deepEqual(await drain(hf, [plain, flaky]), { ran: 1, failed: [] });
  });

  test("a retry without a backoff is due at once, and each attempt counts", async (t) => {
    const { hf } = await memory(t);
    const at = job({
      name: "at-once",
      retry: { attempts: 4, backoff: "fixed", delay: 0 },
      run: () => {
        throw new Error("never");
      },
    });
    const { id } = await hf.enqueue(at, 1);
    const { ran, failed } = await drain(hf, [at]);
    assert.equal(ran, 4);
    assert.deepEqual(failed, [await see(hf, id)]);
  });

  test("drain returns the jobs that failed or were quarantined, in order, and none of an earlier drain", async (t) => {
    const { hf } = await memory(t);
    const ends = job({
      name: "ends",
      run: ({ input }: C<string>) => {
        if (input === "no") throw new NonRetryableError("no");
        if (input === "later") throw new RetryAfterError("1h");
        if (input === "again") throw new Error("again");
      },
    });
    await hf.enqueueMany(ends, ["no", "yes", "later", "again"], (input) => ({ id: input }));
    await hf.enqueue(strict(z.unknown()), "text", { id: "unreadable" });
    const first = await drain(hf, [ends, strict(z.number())]);
    assert.equal(first.ran, 5);
    assert.deepEqual(first.failed.map(({ id, state }) => `${id} ${state}`).sort(), ["no failed", "unreadable quarantined"]);
    assert.deepEqual([(await see(hf, "later")).state, (await see(hf, "again")).state], ["pending", "pending"]);

    const slow = stage<C<string>>();
    const staged = job({ name: "staged", run: slow.run });
    await hf.enqueueMany(staged, ["a", "b", "c"], (input) => ({ id: input }));
    const second = drain(hf, [staged]);
    await slow.called(3);
    for (const i of [2, 0, 1]) {
      slow.calls[i]?.fail(new NonRetryableError("no"));
      await hf.jobs.wait("abc"[i] as string);
    }
    assert.deepEqual(
      (await second).failed.map(({ id }) => id),
      ["c", "a", "b"],
    );
  });

  test("a job past its timeout counts once, as it is recorded after its handler has ended", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "slow", timeout: "1m", retry: { attempts: 1 }, run: slow.run });
    const { id } = await hf.enqueue(def, 1);
    const drained = drain(hf, [def]);
    await slow.called(1);
    slow.calls[0]?.context.signal.addEventListener("abort", () => slow.calls[0]?.end());
    await clock.advance("1m");
    const { ran, failed } = await drained;
    assert.deepEqual([ran, failed.map(({ error }) => error?.code)], [1, ["TIMEOUT"]]);
    assert.equal((await see(hf, id)).state, "failed");
  });

  test("drain waits for running handlers while the clock stands still", async (t) => {
    const { hf } = await memory(t);
    const gate = deferred();
    const def = job({ name: "gated", run: () => gate.promise });
    const { id } = await hf.enqueue(def, 1);
    let isOver = false;
    const drained = drain(hf, [def]).finally(() => (isOver = true));
    while ((await see(hf, id)).state !== "running") await new Promise((resolve) => setImmediate(resolve));
    assert.equal(isOver, false);
    gate.resolve();
    assert.deepEqual(await drained, { ran: 1, failed: [] });
  });

  test("drain runs only the names and versions of its definitions", async (t) => {
    const { hf } = await memory(t);
    const [v1, v2] = [1, 2].map((version) => job({ name: "render", version, run: () => version }));
    assert.ok(v1 && v2);
    await hf.enqueue(v1, 1);
    const newer = await hf.enqueue(v2, 1);
    await hf.enqueue(plain, 1);
    assert.deepEqual(await drain(hf, [v1]), { ran: 1, failed: [] });
    assert.equal((await see(hf, newer.id)).state, "pending");
    assert.deepEqual(await drain(hf, [v1, v2, plain]), { ran: 2, failed: [] });
  });

  test("drain beside a worker does not wait for that worker's jobs, and runs nothing twice", async (t) => {
    const { hf } = await memory(t);
    const slow = stage<C>();
    const other = job({ name: "other", run: slow.run });
    hf.work([other]);
    const { id } = await hf.enqueue(other, 1);
    await slow.called(1);
    await hf.enqueueMany(counted, [3, 3]);
    assert.deepEqual(await drain(hf, [other, counted]), { ran: 8, failed: [] });
    assert.equal((await see(hf, id)).state, "running");
    slow.calls[0]?.end("done");
    assert.equal((await hf.jobs.wait(id)).output, "done");

    let runs = 0;
    const both = job({ name: "both", run: () => void runs++ });
    const worker = hf.work([both]);
    const accepted = await hf.enqueueMany(both, Array(500).fill(0));
    const [one, two] = await Promise.all([drain(hf, [both]), drain(hf, [both])]);
    for (const job of accepted) await hf.jobs.wait(job);
    assert.ok(one.ran + two.ran <= 500);
    assert.equal(runs, 500);
    await worker.stop();
  });

  test("drain works beside another process on the same file", async (t) => {
    const { another } = await file(t);
    const [mine, theirs] = [await another(), await another()];
    const slow = stage<C>();
    const held = job({ name: "held", run: slow.run });
    theirs.work([held]);
    const { id } = await mine.enqueue(held, 1);
    await slow.called(1);
    await mine.enqueue(counted, 5);
    assert.deepEqual(await drain(mine, [held, counted]), { ran: 6, failed: [] });
    assert.equal((await see(mine, id)).state, "running");
    slow.calls[0]?.end();
    await mine.jobs.wait(id);
  });

  test("drain works on a file and in real time", async (t) => {
    const path = join(await folder(t), "work.db");
    await using hf = await open(path);
    const quick = job({ name: "quick", timeout: 20, retry: { attempts: 1 }, run: ({ signal }: C) => aborted(signal) });
    await hf.enqueue(counted, 20);
    await hf.enqueue(quick, 1);
    await hf.enqueue(plain, 1, { delay: "1h" });
    const { ran, failed } = await drain(hf, [counted, quick, plain]);
    assert.deepEqual([ran, failed.map(({ name, error }) => `${name} ${error?.code}`)], [22, ["quick TIMEOUT"]]);
    for (let i = 0; i < 5; i++) {
      await hf.enqueue(counted, 1);
      assert.deepEqual(await drain(hf, [counted, plain]), { ran: 2, failed: [] });
    }
  });

  test("drain runs the jobs of a killed process", async (t) => {
    const { hf, kill } = await interruptedChild(t);
    assert.deepEqual(await drain(hf, DEFINITIONS), { ran: 0, failed: [] }, "it lives");
    await kill();
    await hf.recovery.recoverStale();
    const { ran, failed } = await drain(hf, DEFINITIONS);
    // The third is failed by its own definition when it is found.
    assert.deepEqual([ran, failed], [2, []]);
    assert.equal((await see(hf, "resume")).state, "succeeded");
    assert.equal((await see(hf, "fail")).state, "failed");
    await hf.close();
  });

  test("drain runs crashed jobs one at a time, and waits while another worker here holds one", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const left = (name: string) => job({ name, run: slow.run });
    await hf.enqueueMany(left("theirs"), [1]);
    await hf.enqueueMany(left("mine"), [2, 3]);
    // Claimed by hand and left: leases that expire are crashes.
    for (const name of ["theirs", "mine", "mine"]) assert.ok(await hf.claim(name, { worker: "gone", lease: "1s" }));
    await clock.advance("1s");
    hf.work([left("theirs")]);
    await slow.called(1);
    const drained = drain(hf, [left("mine")]);
    for (const run of [1, 2]) {
      slow.calls[run - 1]?.end();
      await slow.called(run + 1);
      assert.equal(slow.calls.length, run + 1);
    }
    slow.calls[2]?.end();
    assert.deepEqual(await drained, { ran: 2, failed: [] });
  });

  test("drain leaves no worker behind", async (t) => {
    const { hf, clock } = await memory(t);
    await drain(hf, [plain]);
    const { id } = await hf.enqueue(plain, 1);
    await clock.advance("1m");
    assert.equal((await see(hf, id)).state, "pending");
  });

  test("drain rejects what a worker rejects, and reports a failing claim", async (t) => {
    const { hf, logged } = await memory(t);
    await assert.rejects(drain(hf, [job({ name: "bare", input: z.string() })]), code("NO_HANDLER"));
    await assert.rejects(drain(hf, [plain, plain]), code("JOB_TWICE"));
    await assert.rejects(drain(hf, unchecked<JobDef[]>([{ name: "x" }])), code("NOT_A_JOB"));

    const { id } = await hf.enqueue(plain, 1);
    const { store } = hf.engine;
    const claim = store.claim.bind(store);
    store.claim = () => Promise.reject(new Error("the disk is on fire"));
    await assert.rejects(drain(hf, [plain]), /the disk is on fire/);
    assert.match(logged[0]?.message ?? "", /claiming failed/);
    store.claim = claim;
    assert.deepEqual(await drain(hf, [plain]), { ran: 1, failed: [] });
    assert.equal((await see(hf, id)).state, "succeeded");
  });

  test("drain rejects with CLOSED when the database is closed meanwhile", async (t) => {
    const hf = await apart(join(await folder(t), "work.db"));
    const slow = stage<C>();
    const def = job({ name: "slow", run: slow.run });
    await hf.enqueue(def, 1);
    const drained = assert.rejects(drain(hf, [def]), code("CLOSED"));
    await slow.called(1);
    const closing = hf.close();
    slow.calls[0]?.end();
    await closing;
    await drained;
    await assert.rejects(drain(hf, [def]), code("CLOSED"));
  });
});

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
}
