import assert from "node:assert/strict";
import type { CommitRows } from "../../src/core/jobs/job.ts";
import type { Claimed, Declaration, Enqueued, LeaseState, Store } from "../../src/store/store.ts";
import {
  add,
  addOne,
  claim,
  declaring,
  ERROR,
  LEASE,
  limitRule,
  lockOf,
  newJob,
  running,
  see,
  SUCCEEDED,
} from "../conformance/parts.ts";
import { countJobs } from "../../src/store/queries.ts";

/** Something that is done through one store, and that another can see afterwards. */
export interface Operation {
  act(store: Store): Promise<unknown>;
  /** The answer is the truth: what it says happened, and once. */
  check(answer: unknown): Promise<void>;
}

export function operation<Answer>(act: (store: Store) => Promise<Answer>, check: (answer: Answer) => Promise<void>): Operation {
  return { act, check: (answer) => check(answer as Answer) };
}

/** Prepares, over a store whose connection is never cut, for the n-th time. */
export type Prepare = (direct: Store, n: number) => Promise<Operation>;

const WITH_EVENTS: Declaration = declaring([], {
  queue: "with events",
  name: "with events",
  settings: { events: true, keep: { succeeded: { count: 1_000 } } },
});
const LIMITED: Declaration = declaring([limitRule({ concurrency: 1 })], { queue: "limited", name: "limited" });

/** Its definition is one object, as in a program. */
const AGAIN = newJob({ name: "again" });
/** Whatever they are written down between does not end them. */
const INPUTS = ['{"n":1}', null, '"\\"\\\\\\n\\u001e{},"', "null", '""'];
const valueOf = (input: string | null): unknown => (input === null ? undefined : JSON.parse(input));

export const OPERATIONS: Readonly<Record<string, Prepare>> = {
  "enqueue of a plain job": async (direct) => {
    const before = await idsOf(direct, "plain");
    return operation(
      (store) => addOne(store, { name: "plain" }),
      async (id: string) => assert.deepEqual(await idsOf(direct, "plain"), [...before, id]),
    );
  },

  "enqueue of another job of the same definition": async (direct) => {
    const before = await idsOf(direct, "again");
    return operation(
      async (store) => (await store.enqueue([AGAIN]))[0] as Enqueued,
      async ({ id }: Enqueued) => assert.deepEqual(await idsOf(direct, "again"), [...before, id]),
    );
  },

  "enqueues of many jobs of the same definition": async (direct) => {
    const before = await idsOf(direct, "again");
    return operation(
      async (store) => {
        const halves = [INPUTS.slice(0, 2), INPUTS.slice(2)];
        return (await Promise.all(halves.map((half) => store.enqueue(half.map((input) => ({ ...AGAIN, input })))))).flat();
      },
      async (answers: Enqueued[]) => {
        const ids = answers.map(({ id }) => id);
        assert.deepEqual(await idsOf(direct, "again"), [...before, ...ids]);
        assert.deepEqual(await Promise.all(ids.map(async (id) => (await see(direct, id)).input)), INPUTS.map(valueOf));
      },
    );
  },

  "enqueue of an unknown job": async (direct, n) =>
    operation(
      (store) => addOne(store, { name: `new ${n}`, policy: { delay: n } }),
      async (id: string) => {
        assert.deepEqual(await idsOf(direct, `new ${n}`), [id]);
        assert.equal((await direct.queries.overview()).queues.filter(({ name }) => name === `new ${n}`).length, 1);
      },
    ),

  "enqueues of many at the same instant": async (direct) => {
    const before = await idsOf(direct, "plain");
    return operation(
      (store) =>
        Promise.all([
          addOne(store, { name: "plain" }),
          add(store, { name: "plain" }, { name: "plain" }),
          addOne(store, { name: "plain" }),
        ]),
      async (ids: (string | string[])[]) =>
        assert.deepEqual((await idsOf(direct, "plain")).toSorted(), [...before, ...ids.flat()].toSorted()),
    );
  },

  "enqueue of jobs with ids, keys and others to wait for": async (direct, n) => {
    const first = await addOne(direct, { name: "first" });
    return operation(
      (store) =>
        store.enqueue([
          newJob({ name: "with id", id: `id ${n}` }),
          newJob({ name: "with id", id: `id ${n}` }),
          newJob({ name: "with key", key: `key ${n}` }),
          newJob({ name: "with key", key: `key ${n}` }),
          newJob({ name: "waits", after: [first, `id ${n}`] }),
        ]),
      async (answers: Enqueued[]) => {
        const duplicates = answers.map((answer) => "duplicate" in answer && answer.duplicate);
        assert.deepEqual(duplicates, [false, true, false, true, false], "by no call but itself");
        const [id, , key, , waits] = answers.map((answer) => answer.id) as [string, string, string, string, string];
        assert.equal((await idsOf(direct, "with id")).filter((one) => one === id).length, 1);
        assert.equal((await idsOf(direct, "with key")).filter((one) => one === key).length, 1);
        assert.equal((await see(direct, waits)).state, "waiting");
      },
    );
  },

  "enqueue of a job with events": async (direct) =>
    operation(
      (store) => addOne(store, { name: "with events", declares: WITH_EVENTS }),
      async (id: string) => assert.deepEqual(await toldOf(direct, id), ["job.enqueued"]),
    ),

  "enqueue of a job with a limit": async (direct, n) =>
    operation(
      (store) => addOne(store, { name: "limited", declares: LIMITED, limitKeys: [`enqueued ${n}`] }),
      async (id: string) => assert.equal((await idsOf(direct, "limited")).filter((one) => one === id).length, 1),
    ),

  "claim of plain jobs": async (direct) => {
    const ids = await add(direct, { name: "claimed" }, { name: "claimed" });
    return operation(
      (store) => claim(store, { from: [{ name: "claimed", lease: LEASE }] }),
      (claimed: Claimed[]) => areHeld(direct, claimed, ids),
    );
  },

  "claim of jobs that are told, from two queues": async (direct) => {
    const ids = [
      await addOne(direct, { name: "with events", queue: "told apart", declares: { ...WITH_EVENTS, queue: "told apart" } }),
      await addOne(direct, { name: "two" }),
    ];
    return operation(
      (store) =>
        claim(store, {
          from: [
            { queue: "told apart", lease: LEASE },
            { name: "two", lease: LEASE },
          ],
        }),
      async (claimed: Claimed[]) => {
        await areHeld(direct, claimed, ids);
        assert.deepEqual(await toldOf(direct, ids[0] as string), ["job.enqueued", "job.started"]);
      },
    );
  },

  "claim of jobs with a limit": async (direct, n) => {
    const queue = "limited apart";
    const declares = { ...LIMITED, queue };
    const [first] = await add(direct, ...[1, 2].map(() => ({ name: "limited", queue, declares, limitKeys: [`k ${n}`] })));
    return operation(
      (store) => claim(store, { from: [{ queue, lease: LEASE }] }),
      (claimed: Claimed[]) => areHeld(direct, claimed, [first as string]),
    );
  },

  "claim of a queue as a whole": async (direct, n) => {
    const id = await addOne(direct, { name: `whole ${n}` });
    return operation(
      (store) => claim(store, { from: [{ name: `whole ${n}`, lease: LEASE }], max: 1, exclusive: `token ${n}` }),
      async (claimed: Claimed[]) => {
        await areHeld(direct, claimed, [id]);
        assert.notEqual(await lockOf(direct, `whole ${n}`), null);
      },
    );
  },

  "settle of plain jobs": async (direct) => {
    const { succeeded } = await countJobs(direct.queries, { name: "settled" });
    const held = [await running(direct, { name: "settled" }), await running(direct, { name: "settled" })];
    return operation(
      (store) => store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED }))),
      async (fates: LeaseState[]) => {
        assert.deepEqual(fates, ["held", "held"]);
        assert.equal((await countJobs(direct.queries, { name: "settled" })).succeeded, succeeded + 2, "counted once each");
      },
    );
  },

  "settle with follow-ups, of a job with events that another waits for": async (direct, n) => {
    const name = "tells";
    const before = await idsOf(direct, "follows");
    const held = await running(direct, { name, declares: { ...WITH_EVENTS, queue: name, name } });
    const waits = await addOne(direct, { name: "waits", after: [held.id] });
    const followUps = [newJob({ name: "follows" }), newJob({ name: "follows", id: `follows ${n}` })];
    return operation(
      (store) => store.settle([{ job: held.job, fence: held.fence, outcome: SUCCEEDED, followUps }]),
      async (fates: LeaseState[]) => {
        assert.deepEqual(fates, ["held"]);
        assert.deepEqual(await toldOf(direct, held.id), ["job.enqueued", "job.started", "job.succeeded"]);
        assert.equal((await idsOf(direct, "follows")).length, before.length + 2);
        assert.equal((await see(direct, waits)).state, "pending");
      },
    );
  },

  "settle with rows of the user's own and a follow-up": async (direct, n) => {
    const name = "commits";
    // The callback may be called again, after its transaction was rolled back.
    const adding: CommitRows = async (tx) => {
      await tx.query("create table if not exists user_rows (n integer)");
      await tx.query("insert into user_rows (n) values ($1)", [n]);
    };
    const before = await idsOf(direct, "follows rows");
    const held = await running(direct, { name });
    const followUps = [newJob({ name: "follows rows" })];
    return operation(
      (store) => store.settle([{ job: held.job, fence: held.fence, outcome: SUCCEEDED, followUps, commit: [adding] }]),
      async (fates: LeaseState[]) => {
        assert.deepEqual([fates, (await see(direct, held.id)).state], [["held"], "succeeded"]);
        assert.equal((await idsOf(direct, "follows rows")).length, before.length + 1);
        const { job, fence } = await running(direct, { name: "counts" });
        let rows: unknown[] = [];
        const counting: CommitRows = async (tx) => {
          ({ rows } = await tx.query("select count(*)::int as n from user_rows where n = $1", [n]));
        };
        await direct.settle([{ job, fence, outcome: SUCCEEDED, commit: [counting] }]);
        assert.deepEqual(rows, [{ n: 1 }], "one row for one success");
      },
    );
  },

  "settle of an attempt that failed": async (direct) => {
    const held = await running(direct, { name: "fails", policy: { delay: 60_000 } });
    return operation(
      (store) => store.settle([{ job: held.job, fence: held.fence, outcome: { kind: "error", error: ERROR } }]),
      async (fates: LeaseState[]) => {
        const { state, attempt } = await see(direct, held.id);
        assert.deepEqual({ fates, state, attempt }, { fates: ["held"], state: "pending", attempt: 1 });
      },
    );
  },

  "settle of a job with a limit": async (direct, n) => {
    const queue = "frees";
    const declares = { ...LIMITED, queue };
    const three = [1, 2, 3].map(() => ({ name: "limited", queue, declares, limitKeys: [`k ${n}`] }));
    const [first, ...rest] = await add(direct, ...three);
    const held = (await claim(direct, { from: [{ queue, lease: LEASE }] })).find(({ id }) => id === first) as Claimed;
    return operation(
      (store) => store.settle([{ job: held.job, fence: held.fence, outcome: SUCCEEDED }]),
      async (fates: LeaseState[]) => {
        assert.deepEqual(fates, ["held"]);
        const next = await claim(direct, { from: [{ queue, lease: LEASE }] });
        const started = next.map(({ id }) => id).filter((id) => rest.includes(id));
        assert.deepEqual(started, rest.slice(0, 1), "its place is free, once");
      },
    );
  },

  "a worker's turn: settles, enqueues and a claim in one commit": async (direct) => {
    const name = "turn";
    const before = {
      after: await idsOf(direct, "after"),
      beside: await idsOf(direct, "beside"),
      ...(await countJobs(direct.queries, { name })),
    };
    const held = [await running(direct, { name }), await running(direct, { name })] as [Claimed, Claimed];
    const next = await addOne(direct, { name });
    const lost = { job: held[1].job, fence: held[1].fence, outcome: SUCCEEDED };
    await direct.settle([lost]);
    return operation(
      (store) =>
        Promise.all([
          store.settle([{ job: held[0].job, fence: held[0].fence, outcome: SUCCEEDED, followUps: [newJob({ name: "after" })] }]),
          store.settle([lost]),
          addOne(store, { name: "beside" }),
          claim(store, { from: [{ name, lease: LEASE }] }),
        ]),
      async ([fate, refused, beside, claimed]: [LeaseState[], LeaseState[], string, Claimed[]]) => {
        assert.deepEqual([fate, refused], [["held"], ["lost"]]);
        assert.deepEqual(await idsOf(direct, "beside"), [...before.beside, beside]);
        assert.equal((await idsOf(direct, "after")).length, before.after.length + 1);
        assert.equal((await countJobs(direct.queries, { name })).succeeded, before.succeeded + 2);
        await areHeld(direct, claimed, [next]);
      },
    );
  },

  "what is true once: a cancel, a lock, a checkpoint, a pause": async (direct, n) => {
    const [id] = await add(direct, { name: "cancelled" });
    const held = await running(direct, { name: `saves ${n}` });
    return operation(
      (store) =>
        Promise.all([
          store.cancel(id as string),
          store.locks.acquire(`lock ${n}`, "me", "token", LEASE),
          store.saveProgress([{ ...held, checkpoint: `"${n}"` }]),
          store.queues.setPaused(`saves ${n}`, true),
        ]),
      async (answers: unknown[]) => {
        assert.deepEqual(answers, [true, true, ["held"], true]);
        assert.equal((await see(direct, id as string)).state, "cancelled");
        assert.equal((await lockOf(direct, `lock ${n}`))?.holder, "me");
        assert.equal(await direct.loadCheckpoint(held.job), `"${n}"`);
      },
    );
  },
};

/** In the order in which they came. */
export async function idsOf(store: Store, name: string): Promise<string[]> {
  const ids: string[] = [];
  for (let after: string | undefined; ;) {
    const page = await store.queries.list({ name, limit: 1_000, ...(after !== undefined && { after }) });
    ids.push(...page.items.map(({ id }) => id));
    if (page.next === undefined) return ids.toSorted();
    after = page.next;
  }
}

async function toldOf(store: Store, job: string): Promise<string[]> {
  return (await store.events.page({ after: 0, limit: 1_000, job })).map(({ type }) => type);
}

/** Running, for the first time, by the claim that was answered. */
async function areHeld(direct: Store, claimed: readonly Claimed[], ids: readonly string[]): Promise<void> {
  assert.deepEqual(new Set(claimed.map(({ id }) => id)), new Set(ids));
  assert.deepEqual(
    await direct.inspect(claimed),
    claimed.map(() => "held"),
  );
  for (const { id } of claimed) assert.equal((await see(direct, id)).attempt, 1);
}
