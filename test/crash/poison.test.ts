import assert from "node:assert/strict";
import { hostname } from "node:os";
import { test } from "node:test";
import { everyJob, untilDone } from "./invariants.ts";
import { workJob } from "./jobs.ts";
import { inFile, wherever } from "./wherever.ts";

const INNOCENTS = 15;

wherever((stage, place) => {
  test("of one poison job among 15 long jobs, only the poison job is quarantined", inFile(place), async (t) => {
    const scene = await stage(t);
    const hf = await scene.open();
    const work = workJob(scene.effects, { crashes: 3 });
    await hf.enqueueMany(work, [
      // Not at once: its neighbours are in the middle of their work by then.
      { poison: true, lasts: 90 },
      ...Array.from({ length: INNOCENTS }, () => ({ lasts: 300 })),
    ]);

    const all = { over: false };
    let died = 0;
    /** A supervisor's slot: a process that dies in it is replaced. */
    const supervise = async () => {
      while (!all.over) {
        const worker = scene.start("holder", { concurrency: 16 });
        worker.ended.then(({ signal }) => (died += !all.over && signal === "SIGKILL" ? 1 : 0)).catch(() => {});
        await worker.next("ready");
        worker.send({ type: "work" });
        await Promise.race([worker.ended, done]);
        if (all.over) worker.kill();
        await worker.ended;
      }
    };
    const done = untilDone(hf).finally(() => (all.over = true));
    await Promise.all([done, supervise(), supervise()]);

    assert.equal(died, 3, "it took three workers down");
    for (const { id, input, name, state, crashes } of await everyJob(hf)) {
      const poison = name === "work" && (input as { poison?: boolean }).poison === true;
      assert.equal(state, poison ? "quarantined" : "succeeded");
      if (poison) {
        assert.equal(crashes, 3);
        const attempts = (await hf.jobs.attempts(id)).map(({ outcome, host, pid }) => ({ outcome, host, pid }));
        const killed = scene.ran().filter((effect) => effect.id === id);
        const expected = killed.map(({ pid }) => ({ outcome: "crashed", host: hostname(), pid }));
        assert.deepEqual(attempts, expected, "each attempt names the process that it took down");
      } else assert.ok(crashes <= 1, `a neighbour was charged ${crashes} crashes`);
    }
  });
});
