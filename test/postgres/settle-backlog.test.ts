import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Claimed, Settlement } from "../../src/store/store.ts";
import { claim, newJob, see, SUCCEEDED } from "../conformance/parts.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

const MANY = 200;
const WRITERS = "application_name = 'holdfast writes' and datname = current_database()";

const settlementOf = ({ job, fence }: Claimed): Settlement => ({ job, fence, outcome: SUCCEEDED });

describe("a backlog's settlements", { skip: noServer }, () => {
  let server: PostgresServer;
  let store: PostgresStore;
  before(async () => {
    server = await startServer();
    store = await PostgresStore.open(server.url(), { clock: systemClock, injected: false, random: Math.random });
  });
  after(async () => {
    await store.close();
    await server.close();
  });

  async function backlog(name: string): Promise<Claimed[]> {
    await store.enqueue(Array.from({ length: MANY }, () => newJob({ name })));
    return claim(store, { from: [{ queue: name, lease: 60_000 }], max: MANY });
  }

  test("a backlog's settlements are all written, with their effects", async () => {
    const jobs = await backlog("many");
    assert.equal(jobs.length, MANY);
    const behind = await store.enqueue([newJob({ name: "behind", after: [(jobs[7] as Claimed).id] })]);
    const stale = { ...settlementOf(jobs[3] as Claimed), fence: 1 as never };
    const fates = await store.settle([...jobs.map(settlementOf), settlementOf(jobs[0] as Claimed), stale]);
    assert.deepEqual(
      fates.slice(0, MANY),
      jobs.map(() => "held"),
    );
    assert.deepEqual(fates.slice(MANY).includes("held"), false, "a second settle of a job is refused");
    assert.equal((await countJobs(store.queries, { name: "many" })).succeeded, MANY);
    assert.equal((await see(store, behind[0]?.id as string)).state, "pending");
  });

  test("a backlog's settlements are written once when the connection is lost", async () => {
    const jobs = await backlog("lost");
    await server.query(`select pg_terminate_backend(pid) from pg_stat_activity where ${WRITERS}`);
    const fates = await store.settle(jobs.map(settlementOf));
    assert.deepEqual(new Set(fates), new Set(["held"]));
    assert.equal((await countJobs(store.queries, { name: "lost" })).succeeded, MANY);
  });
});
