import assert from "node:assert/strict";
import { mintToken, TOKEN_BYTES } from "../../src/core/pipelines/budget.ts";
import { listingJobName } from "../../src/core/pipelines/work.ts";
import { abandonment, buildById, type BuildRow, leadOf, newestBuild } from "../../src/store/builds.ts";
import type { Store } from "../../src/store/store.ts";
import { listing, made, newBuild, newLead, PAUSED, resuming, started, STOPPED, toldOf } from "../conformance/build-parts.ts";
import { register } from "../conformance/parts.ts";
import { operation, idsOf, type Prepare } from "./operations.ts";

/** What is done to builds: a second build, a second transition or a token that is lost would be found out. */
export const BUILD_OPERATIONS: Readonly<Record<string, Prepare>> = {
  "start of a build, where another one has crashed": async (direct, n) => {
    const pipeline = "started";
    await endLast(direct, pipeline);
    const crashed = await started(direct, { pipeline, token: `before ${n}` });
    await direct.builds.move(crashed.build.id, STOPPED, crashed.lock);
    const before = await idsOf(direct, listingJobName(pipeline));
    const lead = newLead(await register(direct), `lead ${n}`);
    return operation(
      (store) => store.builds.start(newBuild(lead, { pipeline })),
      async (answer: object) => {
        const build = await isTrue(direct, answer);
        assert.equal((await leadOf(direct.builds, pipeline))?.build, build.id);
        assert.equal(await direct.builds.beat({ pipeline, token: lead.token }), true);
        await hasTold(direct, crashed.build, ["build.started", "build.crashed", "build.abandoned"]);
        await hasTold(direct, build, ["build.started"]);
        assert.equal((await idsOf(direct, listingJobName(pipeline))).length, before.length + 1, "it is listed once");
      },
    );
  },

  "pause of a build, with a token for it": async (direct, n) => {
    const pipeline = "paused";
    await endLast(direct, pipeline);
    const led = await started(direct, { pipeline, token: `lead ${n}` });
    return operation(
      (store) => store.builds.move(led.build.id, PAUSED, led.lock, { bytes: bytesOf(n) }),
      async (answer: object | null) => {
        const build = await isTrue(direct, answer);
        assert.deepEqual([build.state, build.seq], ["BUDGET_PAUSE", 2]);
        assert.equal(await leadOf(direct.builds, pipeline), null);
        await hasTold(direct, build, ["build.started", "build.paused"]);
        const resumed = await direct.builds.start(resuming(led, { approval: approvalOf(n) }));
        assert.equal(made(resumed).seq, 3, "the token is good");
      },
    );
  },

  "resume of a build by a token, and its next round": async (direct, n) => {
    const pipeline = "resumed";
    await endLast(direct, pipeline);
    const led = await started(direct, { pipeline, token: `lead ${n}` });
    await direct.builds.move(led.build.id, PAUSED, led.lock, { bytes: bytesOf(n) });
    const before = await idsOf(direct, listingJobName(pipeline));
    const lock = { pipeline, token: `again ${n}` };
    return operation(
      (store) =>
        Promise.all([
          store.builds.start(resuming(led, { approval: approvalOf(n), token: lock.token })),
          store.builds.advance(led.build.id, lock, { round: 1, listing: listing(pipeline, 1) }),
          store.builds.beat(lock),
        ]),
      async ([answer, next, beats]: [object, boolean, boolean]) => {
        const { state, seq, budget } = made(answer);
        assert.deepEqual([state, seq, budget.micros, next, beats], ["ACTIVE", 3, 9_000_000, true, true]);
        assert.equal((await buildById(direct.builds, led.build.id))?.round, 1);
        await hasTold(direct, led.build, ["build.started", "build.paused", "build.resumed"]);
        assert.equal((await idsOf(direct, listingJobName(pipeline))).length, before.length + 1, "the round is listed once");
      },
    );
  },
};

async function endLast(direct: Store, pipeline: string): Promise<void> {
  const last = await newestBuild(direct.builds, pipeline);
  if (last !== null && last.finishedAt === null) await direct.builds.move(last.id, abandonment("the next one"), { by: "test" });
}

async function isTrue(direct: Store, answer: object | null): Promise<BuildRow> {
  const build = made(answer);
  assert.partialDeepStrictEqual(build, await buildById(direct.builds, build.id));
  return build;
}

/** Each once, in this order; and so it is in the audit. */
async function hasTold(direct: Store, build: BuildRow, types: string[]): Promise<void> {
  assert.deepEqual(
    (await toldOf(direct, build)).map(({ type }) => type),
    types,
  );
  const entries = await direct.audit.page({ after: 0, limit: 10, subject: build.id });
  assert.deepEqual(
    entries.map(({ action }) => action),
    types,
  );
}

/** Others for each. */
function bytesOf(n: number): Uint8Array {
  const bytes = new Uint8Array(TOKEN_BYTES);
  new DataView(bytes.buffer).setUint32(0, n);
  return bytes;
}

function approvalOf(n: number): { token: string; budget: { usd: number } } {
  const { token } = mintToken(bytesOf(n), { id: "any", state: "BUDGET_PAUSE", seq: 0 }, 0);
  return { token, budget: { usd: 9 } };
}
