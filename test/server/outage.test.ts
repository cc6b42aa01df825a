import assert from "node:assert/strict";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { handler } from "../../src/server/index.ts";
import { noRestart, startServer } from "../postgres/server.ts";
import { errorOf, site } from "./parts.ts";

const READS = ["api/v1/jobs", "api/v1/overview", "api/v1/events", "api/v1/doctor", "health/ready"];

test("while the PostgreSQL server is down, answers are 503 and the metrics say so", { skip: noRestart }, async (t) => {
  const server = await startServer();
  const hf = await open(await server.createDatabase(), { log: false });
  t.after(async () => {
    await hf.close();
    await server.close();
  });
  const answer = handler(hf, { authorize: () => ({ role: "operate" }) });
  const send = (path: string) => answer(new Request(`http://localhost/${path}`));
  assert.match(await (await send("metrics")).text(), /^holdfast_up 1$/m);
  await server.stop("immediate");
  const answers = READS.map(async (path) => [path, await errorOf(await send(path))] as const);
  const before = performance.now();
  const metrics = await send("metrics");
  assert.ok(performance.now() - before < 10_000, "a scrape of Prometheus waits for ten seconds");
  assert.equal(metrics.status, 200);
  assert.match(await metrics.text(), /^holdfast_up 0$/m);
  for (const [path, { status, code }] of await Promise.all(answers)) assert.deepEqual([status, code], [503, "SERVER_GONE"], path);
  const refused = await errorOf(await send("api/v1/jobs?limit=0"));
  assert.deepEqual([refused.status, refused.code], [400, "REQUEST_INVALID"]);
  await server.start();
});

test("the metrics of a closed handle say that the database is not up", async (t) => {
  const one = await site(t);
  await one.hf.close();
  assert.match(await (await one.fetch("metrics")).text(), /^holdfast_up 0$/m);
  assert.deepEqual((await errorOf(await one.fetch("api/v1/jobs"))).status, 503);
});
