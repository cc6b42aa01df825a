import assert from "node:assert/strict";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import { addOne, claim, claimOne, ERROR, pass, running, see, settle, SUCCEEDED, takeBack, saveCheckpoint } from "./parts.ts";
import type { Check } from "./suite.ts";

export function noteCases(check: Check): void {
  // ── checkpoints ──

  check("a checkpoint is loaded as it was last saved", async ({ store }) => {
    const { job, fence } = await running(store);
    assert.equal(await store.loadCheckpoint(job), null);
    assert.equal(await saveCheckpoint(store, { job, fence }, '{"page":1}'), "held");
    assert.equal(await store.loadCheckpoint(job), '{"page":1}');
    const large = JSON.stringify("c".repeat(100_000));
    assert.equal(await saveCheckpoint(store, { job, fence }, large), "held");
    assert.equal(await store.loadCheckpoint(job), large);
    assert.equal(await saveCheckpoint(store, { job, fence }, null), "held");
    assert.equal(await store.loadCheckpoint(job), null);
  });

  check("a checkpoint belongs to its job", async ({ store }) => {
    const [a, b] = [await running(store), await running(store)];
    await saveCheckpoint(store, a, '"a"');
    assert.equal(await store.loadCheckpoint(b.job), null);
    await saveCheckpoint(store, b, '"b"');
    await settle(store, b, SUCCEEDED);
    assert.equal(await store.loadCheckpoint(a.job), '"a"');
  });

  const KEPT: [Outcome, "retry" | "resume" | "fail", boolean][] = [
    [{ kind: "succeeded", output: null }, "resume", false],
    [{ kind: "error", error: ERROR }, "retry", true],
    [{ kind: "error", error: ERROR, retry: false }, "retry", true],
    [{ kind: "later", delay: 1, error: ERROR }, "retry", true],
    [{ kind: "unreadable", error: ERROR }, "retry", true],
    [{ kind: "released" }, "retry", true],
    ...(["interrupted", "stalled", "crashed"] as const).flatMap((kind): [Outcome, "retry" | "resume" | "fail", boolean][] => [
      [{ kind }, "retry", false],
      [{ kind }, "resume", true],
      [{ kind }, "fail", true],
    ]),
  ];
  for (const [outcome, onInterrupt, kept] of KEPT) {
    const which = outcome.kind === "error" && outcome.retry === false ? "a last error" : outcome.kind;
    check(
      `a checkpoint is ${kept ? "kept" : "dropped"} when its job ends as ${which} and onInterrupt is "${onInterrupt}"`,
      async (ground) => {
        const { store } = ground;
        const claimed = await running(store, { policy: { onInterrupt } });
        const bystander = await running(store);
        await saveCheckpoint(store, claimed, '"half"');
        await saveCheckpoint(store, bystander, '"other"');
        await settle(store, claimed, outcome);
        assert.equal(await store.loadCheckpoint(claimed.job), kept ? '"half"' : null);
        assert.equal(await store.loadCheckpoint(bystander.job), '"other"');
      },
    );
  }

  for (const onInterrupt of ["retry", "resume"] as const) {
    check(
      `a reclaim ${onInterrupt === "retry" ? "drops" : "keeps"} the checkpoint when onInterrupt is "${onInterrupt}"`,
      async (ground) => {
        const { store } = ground;
        const claimed = await running(store, { policy: { onInterrupt } });
        await saveCheckpoint(store, claimed, '"half"');
        await takeBack(store, "crashed", claimed);
        const again = await claimOne(store);
        assert.equal(await store.loadCheckpoint(again.job), onInterrupt === "retry" ? null : '"half"');
        assert.equal(await saveCheckpoint(store, claimed, '"zombie"'), "lost");
        assert.equal(await saveCheckpoint(store, again, '"more"'), "held");
        assert.equal(await store.loadCheckpoint(again.job), '"more"');
      },
    );
  }

  check("a pruned job has no checkpoint", async ({ store }) => {
    const claimed = await running(store);
    await saveCheckpoint(store, claimed, '"half"');
    await store.cancel(claimed.id);
    await store.prune({ state: "cancelled", limit: 1 });
    assert.equal(await store.loadCheckpoint(claimed.job), null);
  });

  check.shared("a checkpoint survives a reopening", async ({ store, reopen }) => {
    const claimed = await running(store);
    await saveCheckpoint(store, claimed, '"half"');
    assert.equal(await (await reopen()).loadCheckpoint(claimed.job), '"half"');
  });

  // ── progress ──

  check("a job shows its latest progress report", async ({ store }) => {
    const { job, fence, id } = await running(store);
    assert.equal((await see(store, id)).progress, undefined);
    assert.deepEqual(await store.saveProgress([{ job, fence, fraction: 0.25, message: "reading" }]), ["held"]);
    assert.deepEqual((await see(store, id)).progress, { fraction: 0.25, message: "reading" });
    await store.saveProgress([{ job, fence, fraction: 0.5, message: null }]);
    assert.deepEqual((await see(store, id)).progress, { fraction: 0.5 });
    await store.saveProgress([{ job, fence, fraction: 0, message: "" }]);
    assert.deepEqual((await store.queries.list({ limit: 1 })).items[0]?.progress, { fraction: 0, message: "" });
  });

  check("reports of several jobs are answered one by one", async ({ store }) => {
    const [a, b, c] = [await running(store), await running(store), await running(store)];
    await store.cancel(b.id);
    const fates = await store.saveProgress([a, b, c].map(({ job, fence }) => ({ job, fence, fraction: 0.5, message: null })));
    assert.deepEqual(fates, ["held", "cancelled", "held"]);
    assert.equal((await see(store, b.id)).progress, undefined);
    assert.equal((await see(store, c.id)).progress?.fraction, 0.5);
    assert.deepEqual(await store.saveProgress([]), []);
  });

  check("of two reports of one job in one call, the later wins", async ({ store }) => {
    const [{ job, fence, id }, other] = [await running(store), await running(store)];
    const reports = [0.25, 0.5].map((fraction) => ({ job, fence, fraction, message: null }));
    const third = { job: other.job, fence: other.fence, fraction: 0.75, message: null };
    assert.deepEqual(await store.saveProgress([...reports, third]), ["held", "held", "held"]);
    assert.deepEqual((await see(store, id)).progress, { fraction: 0.5 });
    assert.deepEqual((await see(store, other.id)).progress, { fraction: 0.75 });
  });

  check("a report whose message contains NUL is accepted, and so are those beside it", async ({ store }) => {
    const [a, b] = [await running(store), await running(store)];
    const reports = [a, b].map(({ job, fence }, n) => ({ job, fence, fraction: 0.5, message: n === 0 ? "a\0b" : "b" }));
    assert.deepEqual(await store.saveProgress(reports), ["held", "held"]);
    assert.equal((await see(store, a.id)).progress?.fraction, 0.5);
    assert.equal((await see(store, b.id)).progress?.message, "b");
  });

  check("progress and checkpoint do not overwrite each other", async ({ store }) => {
    const claimed = await running(store);
    const { job, fence, id } = claimed;
    await store.saveProgress([{ job, fence, fraction: 0.5, message: "half" }]);
    await saveCheckpoint(store, claimed, '"a"');
    await store.saveProgress([{ job, fence, fraction: 0.75, message: null }]);
    assert.equal(await store.loadCheckpoint(job), '"a"');
    await saveCheckpoint(store, claimed, '"b"');
    assert.deepEqual((await see(store, id)).progress, { fraction: 0.75 });
  });

  check("a pending job accepts no progress and no checkpoint", async ({ store, clock }) => {
    const id = await addOne(store);
    const claimed = await claimOne(store);
    await settle(store, claimed, { kind: "later", delay: 10, error: ERROR });
    const { job, fence } = claimed;
    assert.equal(await saveCheckpoint(store, claimed, '"late"'), "lost");
    assert.deepEqual(await store.saveProgress([{ job, fence, fraction: 1, message: null }]), ["lost"]);
    assert.equal(await store.loadCheckpoint(job), null);
    assert.equal((await see(store, id)).progress, undefined);
    pass(clock, 10);
    assert.equal((await claim(store)).length, 1);
  });
}
