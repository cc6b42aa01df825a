import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Schema } from "../conformance/postgres-store.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { LONG } from "../selection.ts";
import { onPostgres } from "./postgres-place.ts";
import { rangesOf, sayRanges } from "./ranges.ts";
import { describe, runSchedule, shorten } from "./schedule.ts";

/** Few: a step takes a hundred times as long as in memory. */
const [FIXED, FRESH] = LONG ? [100, 50] : [4, 2];

const skip = noServer;
let server: PostgresServer;
let schema: Schema;
const place = (seed: number) => onPostgres(server.url(), schema, seed % 4 !== 0);

before(async () => {
  if (skip) return;
  server = await startServer();
  schema = await Schema.make(server);
});

after(async () => {
  if (!skip) await server.close();
});

test("whatever workers, crashes, stalls and clocks do, the promises hold on PostgreSQL", { skip }, async (t) => {
  const steps = process.env["HOLDFAST_STEPS"]?.split(",").map(Number);
  const ranges = rangesOf(process.env, FIXED, FRESH);
  for (const { first, count } of ranges) {
    for (let seed = first; seed < first + count; seed++) {
      const run = await runSchedule(seed, { steps, place });
      if (run.failure === null) continue;
      const failure = steps === undefined ? await shorten(run.failure, { place }, 60) : run.failure;
      assert.fail(describe(failure).replaceAll("simulation.test.ts", "postgres.test.ts"));
    }
  }
  t.diagnostic(sayRanges(ranges));
});
