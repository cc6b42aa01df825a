import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Schema } from "../conformance/postgres-store.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { onPostgres } from "./postgres-place.ts";
import { describe, runSchedule, shorten } from "./schedule.ts";

/** Bounded by time, since a step is a hundred times as slow as in memory. */
const SECONDS = 6;

const skip = noServer;
const given = process.env["HOLDFAST_SEED"];
const wanted = process.env["HOLDFAST_SCHEDULES"];
let server: PostgresServer;
let schema: Schema;

before(async () => {
  if (skip) return;
  server = await startServer();
  schema = await Schema.make(server);
});

after(async () => {
  if (!skip) await server.close();
});

test("whatever workers, crashes, stalls and clocks do, the promises hold on PostgreSQL", { skip }, async (t) => {
  const first = given === undefined ? Date.now() % 2 ** 31 : Number(given);
  const steps = process.env["HOLDFAST_STEPS"]?.split(",").map(Number);
  const most = wanted === undefined ? (given === undefined ? Infinity : 1) : Number(wanted);
  const until = wanted === undefined && given === undefined ? performance.now() + SECONDS * 1_000 : Infinity;
  let ran = 0;
  for (; ran < most && performance.now() < until; ran++) {
    const place = (seed: number) => onPostgres(server.url(), schema, seed % 4 !== 0);
    const run = await runSchedule(first + ran, { steps, place });
    if (run.failure === null) continue;
    const failure = steps === undefined ? await shorten(run.failure, { place }, 60) : run.failure;
    assert.fail(describe(failure).replaceAll("simulation.test.ts", "postgres.test.ts"));
  }
  t.diagnostic(`${ran} schedules, seeds ${first} to ${first + ran - 1}`);
});
