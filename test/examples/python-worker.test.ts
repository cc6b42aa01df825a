import assert from "node:assert/strict";
import { execFile, spawnSync } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { job } from "../../src/index.ts";
import { site, TOKEN } from "../server/parts.ts";

const WORKER = fileURLToPath(new URL("../../examples/python-worker/worker.py", import.meta.url));
const skip = spawnSync("python3", ["--version"]).status === 0 ? false : "there is no python3 here";
const shout = job<{ text: unknown }>({ name: "shout", retry: { attempts: 1 }, run: () => null });

test("a worker in Python runs the jobs of a queue over HTTP, and reports what failed", { skip }, async (t) => {
  const { hf, address } = await site(t);
  const enqueued = await hf.enqueueMany(shout, [...Array.from({ length: 20 }, (_, i) => ({ text: `job ${i}` })), { text: 7 }]);
  const env = { ...process.env, HOLDFAST_URL: address, HOLDFAST_TOKEN: TOKEN };
  const { stdout, stderr } = await promisify(execFile)("python3", [WORKER, "shout", "--once"], { env });
  assert.deepEqual([stdout, stderr], ["20 jobs succeeded\n", ""]);
  assert.deepEqual((await hf.jobs.get(enqueued[3]?.id as string))?.output, { text: "JOB 3" });
  const failed = await hf.jobs.get(enqueued[20]?.id as string);
  assert.deepEqual(
    [failed?.state, failed?.error?.name, failed?.error?.message],
    ["failed", "ValueError", "the text is not a string"],
  );
});
