import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { type Build, type BuildHandle, files, type Holdfast, open, pipeline } from "../../src/index.ts";
import { testClock } from "../../src/testing/index.ts";

const QUIET = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

interface Desk {
  hf: Holdfast;
  clock: ReturnType<typeof testClock>;
  root: string;
  /** Other bytes than ever before. */
  rewrite(): void;
  /** The build as it ends, while the clock advances by a quarter of a second at a time. */
  end(build: BuildHandle): Promise<Build>;
}

/** A file that changes, and a clock. */
async function desk(t: TestContext): Promise<Desk> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-unrest-"));
  const root = join(folder, "docs");
  mkdirSync(root);
  const clock = testClock(Date.now());
  const hf = await open(":memory:", { clock, log: QUIET, artifacts: join(folder, "artifacts") });
  t.after(async () => {
    await hf.close();
    rmSync(folder, { recursive: true, force: true });
  });
  let written = 0;
  const rewrite = (): void => writeFileSync(join(root, "a.log"), `line ${++written}`);
  rewrite();
  const end = async (build: BuildHandle): Promise<Build> => {
    const ended: Build[] = [];
    void build.done().then((last) => ended.push(last));
    while (ended.length === 0) await clock.advance("250ms");
    return ended[0] as Build;
  };
  return { hf, clock, root, rewrite, end };
}

test("a file that keeps changing is retried after growing delays, then fails, and the next build processes it", async (t) => {
  const { hf, clock, root, rewrite, end } = await desk(t);
  const ran: number[] = [];
  let restless = true;
  const docs = pipeline("docs")
    .source(files("*", { root }))
    .stage("pay", {}, async ({ target, cost }) => {
      ran.push(clock.now());
      cost({ usd: 1 });
      const { length } = await target.bytes();
      if (restless) rewrite();
      return length;
    });
  const failed = await end(await hf.builds.start(docs));
  assert.deepEqual([failed.state, failed.reason, failed.spent.usd], ["FAILED", "targets_failed", 5]);
  const waits = ran.slice(1).map((at, i) => at - (ran[i] as number));
  for (const [i, least] of [250, 1_000, 4_000, 16_000].entries()) {
    const wait = waits[i] as number;
    assert.ok(wait >= least && wait < least + 2_000, `${wait} ms after change ${i + 1}`);
  }
  assert.deepEqual(failed.errors, [
    {
      stage: "pay",
      target: "a.log",
      message: "a.log changed during processing 5 times; the next build processes it again.",
    },
  ]);
  const { items } = await hf.jobs.list({ state: "failed" });
  assert.deepEqual(
    items.map(({ error }) => error?.code),
    ["BYTES_CHANGED"],
  );
  restless = false;
  const mended = await end(await hf.builds.start(docs));
  assert.deepEqual([mended.state, mended.stages["pay"]], ["SUCCESS", { ran: 1, cached: 0, failed: 0, left: 0 }]);
});

test("a file that changes again during the delay is processed with its last bytes only", async (t) => {
  const { hf, clock, root, rewrite, end } = await desk(t);
  const read: string[] = [];
  const changed = Promise.withResolvers<void>();
  const docs = pipeline("docs")
    .source(files("*", { root }))
    .stage("read", {}, async ({ target }) => {
      const text = new TextDecoder().decode(await target.bytes());
      if (read.push(text) === 1) {
        rewrite();
        changed.resolve();
      }
      return text;
    });
  const build = await hf.builds.start(docs);
  await changed.promise;
  // Its work waits from the moment when it is settled.
  for (;;) {
    const { items } = await hf.jobs.list({ state: "pending" });
    if (items.some(({ runAt }) => runAt > clock.now())) break;
    await new Promise((resolve) => setImmediate(resolve));
  }
  rewrite();
  const { state } = await end(build);
  assert.equal(state, "SUCCESS");
  assert.deepEqual(read, ["line 1", "line 3"]);
  assert.equal(await build.output("read"), "line 3");
});

test("changes are counted over all stages of a target, and a successful stage does not reset the count", async (t) => {
  const { hf, root, rewrite, end } = await desk(t);
  const ran: string[] = [];
  const docs = pipeline("docs")
    .source(files("*", { root }))
    .stage("first", {}, () => (ran.push("first"), "the same"))
    .stage("second", {}, () => {
      ran.push("second");
      rewrite();
    });
  const { state, errors } = await end(await hf.builds.start(docs));
  assert.deepEqual([state, errors[0]?.stage], ["FAILED", "second"]);
  assert.deepEqual([ran.filter((one) => one === "first").length, ran.filter((one) => one === "second").length], [5, 5]);
});
