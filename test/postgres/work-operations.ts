import assert from "node:assert/strict";
import type { Claimed, LeaseState, Store } from "../../src/store/store.ts";
import { type Beginning, resultOf } from "../../src/store/work.ts";
import { claim, ERROR, LEASE, SUCCEEDED } from "../conformance/parts.ts";
import {
  again,
  counts,
  dollars,
  ended,
  list,
  money,
  result,
  type Site,
  site,
  target,
  toEnd,
  toWork,
} from "../conformance/work-parts.ts";
import { operation, type Prepare } from "./operations.ts";

/** What is done to work items: a result that is lost, a second one, or money that is counted twice would be found out. */
export const WORK_OPERATIONS: Readonly<Record<string, Prepare>> = {
  "ends of work items, one well and one badly": async (direct, n) => {
    const { at, leases } = await items(direct, `ended ${n}`, ["a", "b"]);
    const [first, second] = leases as [Claimed, Claimed];
    const [row] = await direct.work.targets({ pipeline: at.build.pipeline, segment: 0, paths: ["a"] });
    assert.ok(row);
    const step = { stage: "parse", result: null, output: result().output.hash };
    const work = ended({ cost: dollars(3), target: again(row, toWork(at.build, "index", "a", { completed: [step] })) });
    return operation(
      (store) =>
        store.settle([
          { job: first.job, fence: first.fence, outcome: SUCCEEDED, work },
          { job: second.job, fence: second.fence, outcome: { kind: "error", error: ERROR, retry: false } },
        ]),
      async (fates: LeaseState[]) => {
        assert.deepEqual(fates, ["held", "held"]);
        assert.deepEqual(await counts(direct, at.build), [1, 1, { parse: [1, 0, 1, 0, 0], index: [0, 0, 0, 0, 1] }]);
        assert.deepEqual(await money(direct, at.build), { spent: dollars(3).micros, reserved: 0 });
        const made = await resultOf(direct.work, at.build.id, "parse", "a");
        const [there] = await direct.work.targets({ pipeline: at.build.pipeline, segment: 0, paths: ["a"] });
        assert.deepEqual([there?.rev, there?.completed[0]?.result], [2, made?.key]);
        assert.equal((await direct.work.results({ build: at.build.id, failed: true, limit: 10 })).length, 1);
      },
    );
  },

  "starts of work items": async (direct, n) => {
    const { at, leases } = await items(direct, `begun ${n}`, ["a", "b"]);
    return operation(
      (store) => store.work.begin(leases.map(({ job, fence }) => ({ job, fence, estimate: dollars(300) }))),
      async (answers: Beginning[]) => {
        assert.deepEqual(answers, ["start", "wait"]);
        assert.deepEqual(await money(direct, at.build), { spent: 0, reserved: dollars(300).micros });
      },
    );
  },

  "a batch of a listing": async (direct, n) => {
    const at = await site(direct, { pipeline: `listed ${n}`, token: `listed ${n}` });
    const { build } = at;
    const targets = [target("a", toWork(build, "parse", "a")), target("b", toEnd("b"))];
    return operation(
      (store) => store.work.listed(at.lister, { build: build.key, pipeline: build.pipeline, segment: 0, targets, cursor: "b" }),
      async (fate: LeaseState) => {
        assert.equal(fate, "held");
        const rows = await direct.work.targets({ pipeline: build.pipeline, segment: 0, limit: 10 });
        assert.deepEqual(
          rows.map(({ path, rev }) => [path, rev]),
          [
            ["a", 1],
            ["b", 1],
          ],
        );
        assert.equal(await direct.loadCheckpoint(at.lister.job), "b");
        assert.deepEqual((await counts(direct, build)).slice(0, 2), [1, 0]);
      },
    );
  },
};

/** Targets of a build of their own that are at the stage "parse", and their leases. */
async function items(store: Store, pipeline: string, paths: string[]): Promise<{ at: Site; leases: Claimed[] }> {
  const at = await site(store, { pipeline, token: pipeline });
  await list(store, at, { targets: paths.map((path) => target(path, toWork(at.build, "parse", path))) });
  const leases = await claim(store, { from: [{ queue: at.build.queue, lease: LEASE }], max: paths.length });
  return { at, leases };
}
