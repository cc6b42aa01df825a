import { resultOf } from "../../src/store/work.ts";
import assert from "node:assert/strict";
import { UNLIMITED, type Amount } from "../../src/core/pipelines/budget.ts";
import type { Judgement } from "../../src/store/recoveries.ts";
import type { Claimed, Store } from "../../src/store/store.ts";
import { SEEDS } from "../seeds.ts";
import { isQueuePaused, seeBuild } from "./build-parts.ts";
import { changesDuring, ERROR, pass, SUCCEEDED, takeBack } from "./parts.ts";
import type { Check } from "./suite.ts";
import {
  claimOf,
  dollars,
  ended,
  everyWork,
  money,
  next,
  parsing,
  parsingOne,
  result,
  settleItem,
  site,
  type Site,
} from "./work-parts.ts";
import { abandonment } from "../../src/store/builds.ts";
import { countJobs } from "../../src/store/queries.ts";

/** Five dollars, as the builds of these cases have. */
const FIVE = { micros: 5_000_000, tokens: null };

export function budgetCases(check: Check): void {
  check("estimates are reserved in order while the budget allows it", async ({ store }) => {
    const at = await site(store, { budget: FIVE });
    const leases = await parsing(store, at, ["a", "b", "c", "d"]);
    const estimates = [200, 250, 100, 10].map(dollars);
    const starts = leases.map((lease, i) => ({ ...lease, estimate: estimates[i] as Amount }));
    assert.deepEqual(await store.work.begin(starts), ["start", "start", "wait", "wait"]);
    assert.deepEqual(await money(store, at.build), { spent: 0, reserved: 4_500_000 });
    await settleItem(store, leases[0] as Claimed, ended({ cost: dollars(150) }));
    assert.deepEqual(await money(store, at.build), { spent: 1_500_000, reserved: 2_500_000 });
    assert.deepEqual(await store.work.begin(starts.slice(2)), ["start", "wait"], "what has cost less leaves room for others");
    assert.deepEqual((await seeBuild(store, at.build)).blocked, null);
    assert.equal(await isQueuePaused(store, at.build), false);
  });

  check("tokens are a limit, too", async ({ store }) => {
    const at = await site(store, { budget: { micros: null, tokens: 100 } });
    const [a, b] = (await parsing(store, at, ["a", "b"])) as [Claimed, Claimed];
    const estimate = { micros: 9_000_000_000, tokens: 60 };
    assert.deepEqual(await store.work.begin([{ ...a, estimate }]), ["start"]);
    assert.deepEqual(await store.work.begin([{ ...b, estimate }]), ["wait"]);
    assert.deepEqual((await seeBuild(store, at.build)).reserved, estimate);
  });

  check(
    "an estimate that never fits stops its queue and is recorded in its build, and no process is notified",
    async ({ store }) => {
      const at = await site(store, { budget: FIVE });
      const [a, b, c] = (await parsing(store, at, ["a", "b", "c"])) as [Claimed, Claimed, Claimed];
      const events = await store.events.position();
      const starts = [
        { ...a, estimate: dollars(100) },
        { ...b, estimate: dollars(600) },
        { ...c, estimate: dollars(1) },
      ];
      assert.deepEqual(await store.work.begin(starts), ["start", "pause", "pause"]);
      const build = await seeBuild(store, at.build);
      assert.deepEqual([build.state, build.blocked, build.refused], ["ACTIVE", "budget_precheck_block", dollars(600)]);
      assert.deepEqual(build.reserved, dollars(100));
      assert.equal(await isQueuePaused(store, at.build), true);
      assert.equal(await store.events.position(), events);
      await settleItem(store, a, ended({ cost: dollars(501) }));
      assert.deepEqual(await store.work.begin(starts.slice(2)), ["pause"]);
      assert.equal((await seeBuild(store, at.build)).blocked, "budget_exceeded");
    },
  );

  check("nothing starts in a build that is not ACTIVE, and running attempts may end", async ({ store }) => {
    const at = await site(store, { budget: FIVE });
    const [a, b] = (await parsing(store, at, ["a", "b"])) as [Claimed, Claimed];
    await store.work.begin([{ ...a, estimate: dollars(10) }]);
    await store.builds.move(at.build.id, { move: "crash", reason: "stopped" }, at.lock);
    const before = await everyWork(store, at.build);
    assert.deepEqual(await store.work.begin([{ ...b, estimate: dollars(1) }]), ["pause"]);
    assert.deepEqual(await everyWork(store, at.build), before);
    await settleItem(store, a, ended({ cost: dollars(4) }));
    assert.deepEqual(await money(store, at.build), { spent: 40_000, reserved: 0 });
  });

  check("an attempt that lost its lease starts nothing, and its reported cost is rejected", async ({ store }) => {
    const at = await site(store, { budget: FIVE });
    const [a, b] = (await parsing(store, at, ["a", "b"])) as [Claimed, Claimed];
    await takeBack(store, "stalled", a);
    await store.cancel(b.id);
    const before = await everyWork(store, at.build);
    const plain = { ...a, job: 9_999 as typeof a.job };
    const said = [a, b, plain].map(({ job, fence }) => ({ job, fence, estimate: dollars(1), cost: dollars(1) }));
    assert.deepEqual(await store.work.begin(said), ["lost", "lost", "lost"]);
    assert.deepEqual(await store.saveProgress(said), ["lost", "cancelled", "gone"]);
    assert.deepEqual(await everyWork(store, at.build), before);
  });

  check("an attempt that asks twice reserves its estimate once", async ({ store }) => {
    const at = await site(store, { budget: FIVE });
    const lease = await parsingOne(store, at);
    const start = (cents: number) => store.work.begin([{ ...lease, estimate: dollars(cents) }]);
    assert.deepEqual([await start(300), await start(300), await start(400)], [["start"], ["start"], ["start"]]);
    assert.deepEqual(await money(store, at.build), { spent: 0, reserved: 4_000_000 });
    const changes = await changesDuring(store, () => start(400));
    assert.deepEqual(changes, [], "and writes nothing then");
  });

  check("without a limit everything starts", async ({ store }) => {
    const at = await site(store, { budget: UNLIMITED });
    const lease = await parsingOne(store, at);
    assert.deepEqual(await store.work.begin([{ ...lease, estimate: dollars(100_000_000) }]), ["start"]);
  });

  /** What an attempt is charged that was estimated at 50 cents and has saved 20 of them; by how it ends. */
  const WAYS_OUT: Record<string, { act: (store: Store, lease: Claimed) => Promise<unknown>; cents: number; tells?: boolean }> = {
    "succeeds, and says 70": {
      act: (store, lease) => settleItem(store, lease, ended({ cost: dollars(70) })),
      cents: 70,
      tells: true,
    },
    "fails, and says 70": {
      act: (store, lease) =>
        settleItem(store, lease, ended({ cost: dollars(70), result: null }), { kind: "error", error: ERROR, retry: false }),
      cents: 70,
      tells: true,
    },
    "is tried again, and says nothing": {
      act: (store, lease) => settleItem(store, lease, undefined, { kind: "error", error: ERROR }),
      cents: 20,
      tells: true,
    },
    "comes back later": {
      act: (store, lease) => settleItem(store, lease, undefined, { kind: "later", delay: 1, error: ERROR }),
      cents: 20,
      tells: true,
    },
    "is interrupted by its own worker": {
      act: (store, lease) => settleItem(store, lease, undefined, { kind: "interrupted" }),
      cents: 20,
    },
    "is given back before it began": {
      act: (store, lease) => settleItem(store, lease, undefined, { kind: "released" }),
      cents: 0,
    },
    "crashes, as its own worker says": {
      act: (store, lease) => settleItem(store, lease, undefined, { kind: "crashed" }),
      cents: 50,
    },
    "is cancelled": { act: (store, lease) => store.cancel(lease.id), cents: 50 },
    "is reclaimed as crashed": { act: (store, lease) => takeBack(store, "crashed", lease), cents: 50 },
    "is reclaimed as stalled": { act: (store, lease) => takeBack(store, "stalled", lease), cents: 50 },
    "is reclaimed after a reboot": { act: (store, lease) => takeBack(store, "interrupted", lease), cents: 50 },
  };
  for (const [way, { act, cents, tells = false }] of Object.entries(WAYS_OUT)) {
    const says = tells ? "tells what one costs" : "tells nothing of what one costs";
    check(`an attempt that ${way} is charged ${cents} cents, ${says}, and nothing stays reserved for it`, async ({ store }) => {
      const at = await site(store, { budget: FIVE });
      const lease = await parsingOne(store, at);
      assert.deepEqual(await store.work.begin([{ ...lease, estimate: dollars(50) }]), ["start"]);
      assert.deepEqual(await store.saveProgress([{ ...lease, cost: dollars(20) }]), ["held"]);
      await act(store, lease);
      assert.deepEqual(await money(store, at.build), { spent: cents * 10_000, reserved: 0 });
      assert.deepEqual(await store.work.costs("docs"), tells ? { parse: { attempts: 1, spent: dollars(cents) } } : {});
    });
  }

  check("attempts that never began, or failed before they paid, are not in the mean", async ({ store, clock }) => {
    const at = await site(store, { budget: FIVE });
    const [made, ...ahead] = (await parsing(store, at, ["a", "b", "c", "d"])) as [Claimed, Claimed, Claimed, Claimed];
    await takeBack(store, "crashed", ...ahead);
    await settleItem(store, made, ended({ cost: dollars(30) }));
    pass(clock, 60_000);
    for (const lease of await claimOf(store, at.build))
      await settleItem(store, lease, undefined, { kind: "error", error: ERROR });
    assert.deepEqual(await store.work.costs("docs"), { parse: { attempts: 1, spent: dollars(30) } });
  });

  check("the cost of a result is the cost of all its attempts", async ({ store, clock }) => {
    const at = await site(store, { budget: FIVE });
    const first = await parsingOne(store, at);
    await store.work.begin([{ ...first, estimate: dollars(5) }]);
    await takeBack(store, "crashed", first);
    const [second] = (await claimOf(store, at.build)) as [Claimed];
    await settleItem(store, second, ended({ cost: dollars(7), result: null }), { kind: "error", error: ERROR });
    pass(clock, 1_000);
    const [third] = (await claimOf(store, at.build)) as [Claimed];
    await settleItem(store, third, ended({ cost: dollars(11) }));
    assert.deepEqual((await resultOf(store.work, at.build.id, "parse", "a"))?.cost, dollars(23));
    assert.deepEqual(await store.work.costs("docs"), { parse: { attempts: 2, spent: dollars(18) } }, "the crash tells nothing");
    assert.deepEqual(await money(store, at.build), { spent: 230_000, reserved: 0 });
  });

  check("the cost of a build's results is read over time, of this build only", async ({ store, clock }) => {
    const made = async (at: Site, path: string, cents: number) => {
      pass(clock, 1_000);
      await settleItem(store, await parsingOne(store, at, path), ended({ cost: dollars(cents) }));
    };
    const before = await site(store, { budget: UNLIMITED });
    assert.deepEqual(await store.work.spend(before.build, clock.now()), []);
    await made(before, "a", 1);
    pass(clock, 1_000);
    const at = await next(store, before);
    const from = at.build.createdAt;
    for (const [i, path] of ["b", "c", "d"].entries()) await made(at, path, 10 * i);
    const slices = [
      { at: from + 2_000, cost: dollars(10) },
      { at: from + 3_000, cost: dollars(20) },
    ];
    assert.deepEqual(await store.work.spend(at.build, from + 3_000), slices, "what was free has no slice");
    assert.deepEqual(await store.work.spend(at.build, from + 2_999), slices.slice(0, 1));
    assert.deepEqual(await store.work.spend(before.build, from + 3_000), [{ at: from - 1_000, cost: dollars(1) }]);
  });

  check("a sample of many results stands for all of them", async ({ store, clock }) => {
    const at = await site(store, { budget: UNLIMITED });
    const paths = Array.from({ length: 6_500 }, (_, i) => `p${i}`);
    for (let i = 0; i < paths.length; i += 500) {
      pass(clock, 1_000);
      const leases = await parsing(store, at, paths.slice(i, i + 500));
      await store.settle(leases.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED, work: ended({ cost: dollars(1) }) })));
    }
    const slices = await store.work.spend(at.build, clock.now());
    const sum = slices.reduce((all, { cost }) => all + cost.micros, 0);
    assert.ok(slices.length <= 60 && Math.abs(sum - 65_000_000) < 650_000, `${slices.length} slices with ${sum}`);
  });

  check("a cost that an attempt has reported is not charged to the next", async ({ store }) => {
    const at = await site(store, { budget: FIVE });
    const first = await parsingOne(store, at);
    await store.saveProgress([{ ...first, cost: dollars(20) }]);
    await settleItem(store, first, undefined, { kind: "later", delay: 0, error: ERROR });
    const [second] = (await claimOf(store, at.build)) as [Claimed];
    await takeBack(store, "stalled", second);
    assert.deepEqual(await money(store, at.build), { spent: 200_000, reserved: 0 });
  });

  for (const seed of SEEDS)
    check(
      `however attempts begin and end, the spend equals the sum of their charges, and in the end nothing is reserved (HOLDFAST_SEED=${seed})`,
      async (ground) => {
        const { store, clock } = ground;
        await wander(store, (millis) => pass(clock, millis), lcg(seed));
      },
    );
}

/** One attempt that runs, as the test knows it. */
interface Attempt {
  lease: Claimed;
  estimate: number;
  saved: number;
}

const VERDICTS: Judgement["verdict"][] = ["crashed", "stalled", "interrupted"];

/** A build of thirty targets whose attempts end in every way there is, in any order, many of them in one call. */
async function wander(store: Store, passTime: (millis: number) => void, random: () => number): Promise<void> {
  const pick = (n: number) => Math.floor(random() * n);
  const at = await site(store, { budget: { micros: 40_000_000, tokens: null } });
  const { build } = at;
  const first = await parsing(
    store,
    at,
    Array.from({ length: 30 }, (_, i) => `t${i}`),
    { crashes: 4, attempts: 4 },
  );
  let running = first.map((lease): Attempt => ({ lease, estimate: 0, saved: 0 }));
  let spent = 0;
  /** What those have cost that say what one costs. */
  const telling: number[] = [];
  for (let step = 0; step < 60; step++) {
    const some = running.filter(() => random() < 0.3);
    const left = new Set<Attempt>();
    const out = (one: Attempt, charge: number) => {
      left.add(one);
      spent += charge;
    };
    switch (pick(6)) {
      case 0: {
        const wanted = some.map(({ lease }) => ({ ...lease, estimate: cost(pick(900_000)) }));
        const answers = await store.work.begin(wanted);
        for (const [i, one] of some.entries()) one.estimate = answers[i] === "start" ? (wanted[i]?.estimate.micros ?? 0) : 0;
        break;
      }
      case 1: {
        for (const one of some) one.saved = pick(900_000);
        await store.saveProgress(some.map(({ lease, saved }) => ({ ...lease, cost: cost(saved) })));
        break;
      }
      case 2: {
        const settlements = some.map((one) => {
          const { job, fence } = one.lease;
          const says = random() < 0.5 ? pick(900_000) : undefined;
          const kind = pick(4);
          const charge = kind === 3 ? 0 : (says ?? (kind === 0 ? 0 : one.saved));
          out(one, charge);
          if (kind === 0 || (kind !== 3 && charge > 0)) telling.push(charge);
          const work = ended({ cost: cost(says ?? 0), result: kind === 0 ? result({ hash: `of ${job}` }) : null });
          if (kind === 0) return { job, fence, outcome: SUCCEEDED, work };
          const outcomes = [
            { kind: "error", error: ERROR } as const,
            { kind: "later", delay: 1, error: ERROR } as const,
            { kind: "released" } as const,
          ];
          return { job, fence, outcome: outcomes[kind - 1] as (typeof outcomes)[number], ...(says !== undefined && { work }) };
        });
        assert.ok((await store.settle(settlements)).every((fate) => fate === "held"));
        break;
      }
      case 3:
        for (const one of some) out(one, Math.max(one.saved, one.estimate));
        await takeBack(store, VERDICTS[pick(3)] as Judgement["verdict"], ...some.map(({ lease }) => lease));
        break;
      case 4:
        for (const one of some.slice(0, 1)) {
          await store.cancel(one.lease.id);
          out(one, Math.max(one.saved, one.estimate));
        }
        break;
      case 5:
        passTime(60_000);
        await store.queues.setPaused(build.queue, false);
        for (const lease of await claimOf(store, build, 10)) running.push({ lease, estimate: 0, saved: 0 });
    }
    running = running.filter((one) => !left.has(one));
    const reserved = running.reduce((sum, { estimate }) => sum + estimate, 0);
    assert.deepEqual(await money(store, build), { spent, reserved }, `after step ${step}`);
  }
  await store.builds.move(build.id, abandonment("enough"), { by: "operator" });
  await store.work.clearWork({ pipeline: "docs", which: "all", limit: 1_000 });
  for (const { saved, estimate } of running) spent += Math.max(saved, estimate);
  assert.deepEqual(await money(store, build), { spent, reserved: 0 });
  assert.deepEqual((await store.work.costs("docs")).parse ?? { attempts: 0, spent: cost(0) }, {
    attempts: telling.length,
    spent: cost(telling.reduce((sum, one) => sum + one, 0)),
  });
  const { open, stages } = await seeBuild(store, build);
  assert.deepEqual([open, ...stages.map((stage) => stage.open)], [0, 0, 0]);
  assert.deepEqual((await countJobs(store.queries, { queue: build.queue })).running, 0);
}

function cost(micros: number): Amount {
  return { micros, tokens: 0 };
}

/** Numbers in [0, 1) that are the same for the same seed. */
function lcg(seed: number): () => number {
  let state = seed;
  return () => (state = (state * 1_103_515_245 + 12_345) % 2 ** 31) / 2 ** 31;
}
