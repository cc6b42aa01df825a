import assert from "node:assert/strict";
import { suite } from "node:test";
import { addMinutes, type MinuteCounts, noMinute } from "../../src/core/jobs/minutes.ts";
import { type Holdfast, job } from "../../src/index.ts";
import { Operator } from "../../src/operator/operator.ts";
import { drain } from "../../src/testing/index.ts";
import { memory, test } from "./parts.ts";

const plain = job({ name: "plain", queue: "lane", retry: { attempts: 3 }, run: () => null });

async function countsOf(hf: Holdfast, queue: string): Promise<MinuteCounts> {
  await hf.engine.minutes.flush();
  const sum = noMinute();
  for (const minute of await hf.engine.store.queues.minutes({ from: 0, queue })) addMinutes(sum, minute);
  return sum;
}

suite("the counts by minute", () => {
  test("the counts by minute include jobs settled by claims, with the time from claim to settle", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueueMany(plain, [1, 2, 3]);
    await clock.advance(700);
    for (const settle of ["succeed", "fail", "release"] as const) {
      const claim = await hf.claim(plain, { worker: "me" });
      await clock.advance(200);
      await claim?.[settle](settle === "fail" ? new Error("no") : undefined);
    }
    const { succeeded, failed, retried, waitMs, runMs } = await countsOf(hf, "lane");
    assert.deepEqual(
      { succeeded, failed, retried, waitMs, runMs },
      { succeeded: 1, failed: 0, retried: 1, waitMs: 700 + 900, runMs: 400 },
    );
  });

  test("the counts by minute include jobs settled by a claim's token", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueueMany(plain, [1, 2]);
    const operator = new Operator(hf);
    const taken = async () => {
      const claim = await operator.claim("lane", { worker: "me" }, AbortSignal.timeout(60_000));
      await clock.advance(300);
      return operator.claimOf(claim?.token as string);
    };
    await (await taken()).succeed();
    await (await taken()).fail(new Error("no"), { retry: false });
    const { succeeded, failed, runMs } = await countsOf(hf, "lane");
    assert.deepEqual({ succeeded, failed, runMs }, { succeeded: 1, failed: 1, runMs: 600 });
  });

  test("the counts by minute say of a timeout what was decided, not what its attempt's number suggests", async (t) => {
    const slow = job({ name: "slow", queue: "slow", retry: { attempts: 2 }, timeout: "1s", run: () => new Promise(() => {}) });
    const { hf, clock } = await memory(t);
    await hf.enqueue(slow, null);
    // The first attempt is lost to a crash, which is no error.
    await hf.claim(slow, { worker: "gone", lease: "1s" });
    await clock.advance("1m");
    hf.work([slow]);
    await clock.advance("1m");
    const { failed, retried } = await countsOf(hf, "slow");
    assert.ok(retried >= 1, `${retried} retried, ${failed} failed`);
  });

  test("the wait in the counts by minute excludes delays and upstream jobs", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, 1, { delay: "1h" });
    await hf.enqueue(plain, 2, { after: [id] });
    await clock.advance(3_600_040);
    await drain(hf, [plain]);
    const { succeeded, waitMs } = await countsOf(hf, "lane");
    assert.deepEqual({ succeeded, waitMs }, { succeeded: 2, waitMs: 40 });
  });
});
