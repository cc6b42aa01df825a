import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { checkInvariants, untilDone } from "./invariants.ts";
import { after, committingJob } from "./jobs.ts";
import { wherever } from "./wherever.ts";

/** Before the transaction, inside it, and after its commit. */
const DEATHS = ["settle:begun", "inside the callback", "settle:written", "settle:committed"] as const;

wherever((stage) => {
  describe("a process with a `commit` callback is killed", { concurrency: 2 }, () => {
    for (const dies of DEATHS) {
      test(`after a kill at ${dies} the row exists exactly if the success does, and once in the end`, async (t) => {
        const scene = await stage(t);
        await scene.witness.query("create table orders (job text)");
        const child = scene.start("committer", { dies });
        assert.equal((await child.end()).signal, "SIGKILL", child.stderr);

        const orders = async () => (await scene.witness.query("select job from orders")).map(({ job }) => job);
        const hf = await scene.open();
        const [id] = scene.acknowledged();
        const committed = dies === "settle:committed";
        assert.equal((await hf.jobs.get(id as string))?.state, committed ? "succeeded" : "running");
        assert.deepEqual(await orders(), committed ? [id] : []);

        const worker = hf.work([committingJob(scene.effects), after]);
        await untilDone(hf);
        await worker.stop();
        assert.equal((await hf.jobs.get(id as string))?.state, "succeeded");
        assert.deepEqual(await orders(), [id]);
        assert.equal(scene.ran().length, committed ? 1 : 2, "what is committed does not run again");
        await checkInvariants(scene, hf);
      });
    }
  });
});
