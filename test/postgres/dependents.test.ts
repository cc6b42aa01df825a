import assert from "node:assert/strict";
import { test } from "node:test";
import { job, open } from "../../src/index.ts";
import { noServer, startServer } from "./server.ts";

const up = job({ name: "up", run: () => {} });
const down = job({ name: "down", run: () => {} });

test("ten thousand jobs are unblocked within seconds by statements that were planned for one", { skip: noServer }, async (t) => {
  const server = await startServer();
  t.after(() => server.close());
  await using hf = await open(server.url());
  const unblock = async (count: number) => {
    const { id } = await hf.enqueue(up, null);
    const inputs = Array.from({ length: count }, (_, n) => n);
    await hf.enqueueMany(down, inputs, { after: [id] });
    const worker = hf.work([up]);
    const since = performance.now();
    await hf.jobs.wait(id);
    await worker.stop();
    return performance.now() - since;
  };
  await unblock(1);
  await server.query("analyze");
  await unblock(1);
  const spent = await unblock(10_000);
  assert.equal((await hf.jobs.counts()).pending, 10_002);
  assert.ok(spent < 10_000, `${spent} ms`);
});
