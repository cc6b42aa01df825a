import assert from "node:assert/strict";
import type { AttemptView } from "../../src/core/jobs/attempts.ts";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import type { Fence, JobKey, ProcessId } from "../../src/core/text/ids.ts";
import type { AttemptLog, Claimed, Store } from "../../src/store/store.ts";
import {
  add,
  addOne,
  claim,
  claimOne,
  declaring,
  ERROR,
  newJob,
  pass,
  running,
  see,
  settle,
  SUCCEEDED,
  takeBack,
} from "./parts.ts";
import type { Check } from "./suite.ts";

const TIMEOUT: Outcome = { kind: "error", error: { name: "TimeoutError", code: "TIMEOUT", message: "too long" }, delay: 0 };

export function attemptCases(check: Check): void {
  check("a job without attempts, or no job at all, has no attempts", async ({ store }) => {
    assert.deepEqual(await store.queries.attempts(await addOne(store)), []);
    assert.deepEqual(await store.queries.attempts("absent"), []);
  });

  check("the running attempt is shown, and then the success, with its times", async ({ store, clock }) => {
    const holder = await registerAs(store, "alpha", 17);
    const id = await addOne(store);
    const claimed = await claimOne(store, { holder, worker: "" });
    const startedAt = clock.now();
    const process = { worker: "alpha:17", host: "alpha", pid: 17 };
    assert.deepEqual(await store.queries.attempts(id), [{ attempt: 1, outcome: "running", startedAt, ...process }]);
    pass(clock, 250);
    await settle(store, claimed, SUCCEEDED);
    assert.deepEqual(await store.queries.attempts(id), [
      { attempt: 1, outcome: "succeeded", startedAt, endedAt: startedAt + 250, ...process },
    ]);
    assert.equal((await see(store, id)).worker, undefined, "the job itself names a worker only while it runs");
    await store.processes.unregister(holder);
    const [after] = await store.queries.attempts(id);
    assert.deepEqual([after?.outcome, after?.worker, after?.host], ["succeeded", undefined, undefined]);
  });

  check("a success by hand has its worker's name", async ({ store }) => {
    const claimed = await running(store);
    await settle(store, claimed, SUCCEEDED);
    const [attempt] = await store.queries.attempts(claimed.id);
    assert.deepEqual([attempt?.outcome, attempt?.worker, attempt?.host], ["succeeded", "tester", undefined]);
  });

  check("every attempt that did not succeed is kept with its error, worker, host, pid and times", async ({ store, clock }) => {
    const holder = await registerAs(store, "alpha", 17);
    const id = await addOne(store, { policy: { attempts: 9, crashes: 9 } });
    const outcomes: Outcome[] = [
      { kind: "error", error: ERROR, delay: 0 },
      TIMEOUT,
      { kind: "later", delay: 0, error: ERROR },
      { kind: "released" },
      { kind: "interrupted" },
      { kind: "stalled" },
      { kind: "crashed" },
    ];
    const expected: object[] = [];
    for (const outcome of outcomes) {
      const claimed = await claimOne(store, { holder, worker: "" });
      const startedAt = clock.now();
      pass(clock, 100);
      await settle(store, claimed, outcome);
      const process = { worker: "alpha:17", host: "alpha", pid: 17 };
      expected.push({ attempt: claimed.attempt, startedAt, endedAt: clock.now(), ...process });
      pass(clock, 10_000);
    }
    const attempts = await store.queries.attempts(id);
    assert.deepEqual(
      attempts.map(({ attempt, startedAt, endedAt, worker, host, pid }) => ({ attempt, startedAt, endedAt, worker, host, pid })),
      expected,
    );
    assert.deepEqual(
      attempts.map(({ attempt, outcome, error }) => [attempt, outcome, error?.code ?? error?.name]),
      [
        [1, "failed", "Error"],
        [2, "timed-out", "TIMEOUT"],
        [3, "failed", "Error"],
        [3, "released", undefined],
        [3, "released", undefined],
        [3, "crashed", "STALLED"],
        [4, "crashed", "CRASHED"],
      ],
    );
    assert.deepEqual(attempts[0]?.error, ERROR);
  });

  check("a final failure and an unreadable input are in the history", async ({ store }) => {
    const failed = await running(store);
    await settle(store, failed, { kind: "error", error: ERROR, retry: false });
    const unreadable = await running(store);
    await settle(store, unreadable, { kind: "unreadable", error: ERROR });
    for (const { id } of [failed, unreadable]) assert.deepEqual(await outcomesOf(store, id), ["failed"]);
  });

  check("an error that a handler threw is not a timeout, whatever its code", async ({ store }) => {
    const claimed = await running(store);
    await settle(store, claimed, { kind: "error", error: { name: "Error", code: "TIMEOUT", message: "SMTP" } });
    assert.deepEqual(await outcomesOf(store, claimed.id), ["failed"]);
  });

  check("a success with a rejected follow-up is a failed attempt", async ({ store }) => {
    await add(store, { name: "other", id: "taken", delay: 1_000 });
    const claimed = await running(store);
    await settle(store, claimed, SUCCEEDED, [newJob({ id: "taken" })]);
    assert.deepEqual(await outcomesOf(store, claimed.id), ["failed"]);
  });

  check("a claim by hand has its worker's name, and neither host nor pid", async ({ store, clock }) => {
    const claimed = await running(store);
    const at = clock.now();
    await settle(store, claimed, { kind: "released" });
    assert.deepEqual(await store.queries.attempts(claimed.id), [
      { attempt: 1, outcome: "released", startedAt: at, endedAt: at, worker: "tester" },
    ]);
  });

  check("a cancelled attempt is kept; the cancellation of a job that does not run adds none", async ({ store }) => {
    const claimed = await running(store);
    const pending = await addOne(store);
    assert.equal(await store.cancel(claimed.id), true);
    assert.equal(await store.cancel(pending), true);
    const [attempt, ...more] = await store.queries.attempts(claimed.id);
    assert.deepEqual([attempt?.outcome, attempt?.worker, attempt?.error, more], ["cancelled", "tester", undefined, []]);
    assert.deepEqual(await store.queries.attempts(pending), []);
  });

  check("a reclaimed attempt names the dead holder, not the process that reclaims it", async ({ store, clock }) => {
    const dead = await registerAs(store, "alpha", 17);
    const [id, rebooted] = (await add(store, {}, {})) as [string, string];
    const [first, second] = (await claim(store, { holder: dead, worker: "" })) as [Claimed, Claimed];
    const startedAt = clock.now();
    await registerAs(store, "beta", 99);
    pass(clock, 500);
    await takeBack(store, "crashed", held(first, dead));
    await takeBack(store, "interrupted", held(second, dead));
    const process = { worker: "alpha:17", host: "alpha", pid: 17 };
    for (const one of [id, rebooted]) {
      const [attempt, ...more] = await store.queries.attempts(one);
      const { error, ...rest } = attempt as AttemptView;
      assert.deepEqual(rest, { attempt: 1, outcome: "crashed", startedAt, endedAt: startedAt + 500, ...process });
      assert.equal(error?.code, one === id ? "CRASHED" : undefined);
      assert.deepEqual(more, []);
    }
  });

  check("a process that reclaims its own unanswered claim releases the attempt", async ({ store }) => {
    const self = await registerAs(store, "alpha", 17);
    const id = await addOne(store);
    await takeBack(store, "interrupted", held(await claimOne(store, { holder: self, worker: "" }), self));
    assert.deepEqual(await outcomesOf(store, id), ["released"]);
  });

  check("attempts of a dead process are reclaimed before the process is unregistered", async ({ store }) => {
    const [dead, by] = [await registerAs(store, "alpha", 17), await registerAs(store, "beta", 99)];
    const ids = await add(store, {}, {});
    await claim(store, { holder: dead, worker: "" });
    const found = { dead: [{ id: dead, life: "dead" as const }], by, opening: false, alone: false };
    const recovering = await store.recoveries.begin(found);
    assert.ok(recovering);
    const how = { as: "crashed", reason: "orchestrator_lost", limit: 10, spent: 0, cause: "crash" } as const;
    const { isDone } = await store.recoveries.reclaimFrom({ report: recovering.report, process: dead, ...how });
    assert.equal(isDone, true);
    for (const id of ids) {
      const attempts = await store.queries.attempts(id);
      assert.deepEqual(
        attempts.map(({ outcome, host, pid }) => [outcome, host, pid]),
        [["crashed", "alpha", 17]],
      );
    }
  });

  check("an attempt that lost its lease writes nothing", async ({ store }) => {
    const first = await running(store);
    await takeBack(store, "crashed", first);
    const second = await claimOne(store);
    const late: Outcome = { kind: "error", error: ERROR };
    assert.deepEqual(await store.settle([{ job: first.job, fence: first.fence, outcome: late }]), ["lost"]);
    assert.deepEqual(await outcomesOf(store, first.id), ["crashed", "running"]);
    await store.cancel(first.id);
    assert.deepEqual(await store.settle([{ job: second.job, fence: second.fence, outcome: late }]), ["cancelled"]);
    await takeBack(store, "crashed", second);
    assert.deepEqual(await outcomesOf(store, first.id), ["crashed", "cancelled"]);
  });

  check("a retry by an operator keeps the history, and removing the job removes it", async ({ store }) => {
    const first = await running(store, { id: "one" });
    await settle(store, first, { kind: "error", error: ERROR, retry: false });
    await store.retry(first.id);
    await settle(store, await claimOne(store), SUCCEEDED);
    assert.deepEqual(await outcomesOf(store, first.id), ["failed", "succeeded"]);
    assert.equal((await store.prune({ state: "succeeded", limit: 10 })).removed, 1);
    assert.deepEqual(await store.queries.attempts("one"), []);
  });

  check("the last 20 attempts of each job are kept", async ({ store }) => {
    const [id, other] = (await add(store, { policy: { attempts: 100 } }, { policy: { attempts: 100 } })) as [string, string];
    for (let i = 0; i < 23; i++) {
      const both = await claim(store);
      const outcome: Outcome = { kind: "error", error: { name: "Error", message: `no. ${i}` }, delay: 0 };
      await store.settle(both.map(({ job, fence }) => ({ job, fence, outcome })));
    }
    for (const one of [id, other]) {
      assert.deepEqual(
        (await store.queries.attempts(one)).map(({ attempt, error }) => [attempt, error?.message]),
        Array.from({ length: 20 }, (_, i) => [i + 4, `no. ${i + 3}`]),
      );
    }
  });

  check("a queue keeps as many attempts as it declares, or none", async ({ store }) => {
    for (const [attempts, expected] of [
      [2, ["failed", "failed"]],
      [0, []],
    ] as const) {
      const queue = `keeps ${attempts}`;
      const declares = declaring([], { queue, name: queue, settings: { events: false, keep: {}, attempts } });
      const id = await addOne(store, { name: queue, queue, declares, policy: { attempts: 9 } });
      for (let i = 0; i < 3; i++) {
        const claimed = await claimOne(store, { from: [{ name: queue, lease: 30_000 }] });
        await settle(store, claimed, { kind: "error", error: ERROR, delay: 0 });
      }
      assert.deepEqual(await outcomesOf(store, id), expected);
      await store.cancel(id);
    }
  });

  check("a queue that declares fewer attempts drops the surplus with the next attempt", async ({ store }) => {
    const id = await addOne(store, { policy: { attempts: 9 } });
    const fail = async () => settle(store, await claimOne(store), { kind: "error", error: ERROR, delay: 0 });
    for (let i = 0; i < 3; i++) await fail();
    await store.queues.declare([declaring([], { settings: { events: false, keep: {}, attempts: 1 } })]);
    await fail();
    const attempts = await store.queries.attempts(id);
    assert.deepEqual(
      attempts.map(({ attempt }) => attempt),
      [4],
    );
  });

  check("the newest log lines are kept with their attempt, in order, with their data", async ({ store }) => {
    const id = await addOne(store, { policy: { attempts: 9 } });
    const first = await claimOne(store);
    await store.saveProgress([logOf(first, 1, ["a", "b"])]);
    assert.deepEqual(await messagesOf(store, id), [["a", "b"]]);
    await store.saveProgress([logOf(first, 3, ["c", "d"])]);
    assert.deepEqual(await messagesOf(store, id), [["b", "c", "d"]], "three are kept");
    await settle(store, first, { kind: "error", error: ERROR, delay: 0 });
    const second = await claimOne(store);
    await store.saveProgress([logOf(second, 1, ["e"])]);
    assert.deepEqual(await messagesOf(store, id), [["b", "c", "d"], ["e"]]);
    await settle(store, second, SUCCEEDED);
    const [, { log } = {}] = await store.queries.attempts(id);
    assert.deepEqual(log, [{ at: 1, level: "info", message: "e", data: { of: ["e"] } }]);
  });

  check("log lines that arrive after the attempt has ended are kept with it", async ({ store }) => {
    const id = await addOne(store, { policy: { attempts: 9 } });
    const first = await claimOne(store);
    await settle(store, first, { kind: "error", error: ERROR, delay: 0 });
    const second = await claimOne(store);
    await store.saveProgress([logOf(first, 1, ["late"]), logOf(second, 1, ["now"])]);
    assert.deepEqual(await messagesOf(store, id), [["late"], ["now"]]);
  });

  check("log lines are removed with their attempt, and with their job", async ({ store }) => {
    await store.queues.declare([declaring([], { settings: { events: false, keep: {}, attempts: 1 } })]);
    const id = await addOne(store, { policy: { attempts: 9 } });
    for (const line of ["a", "b", "c"]) {
      const claimed = await claimOne(store);
      await store.saveProgress([logOf(claimed, 1, [line])]);
      await settle(store, claimed, { kind: "error", error: ERROR, delay: 0 });
    }
    assert.deepEqual(await messagesOf(store, id), [["c"]], "one attempt is kept");
    await store.cancel(id);
    assert.equal((await store.prune({ state: "cancelled", limit: 10 })).removed, 1);
    await store.saveProgress([{ job: 1 as JobKey, fence: 1 as Fence, first: 1, lines: [], keep: 3 }]);
    assert.deepEqual(await store.queries.attempts(id), []);
  });

  check.shared("the history survives a reopening", async ({ store, reopen }) => {
    const claimed = await running(store);
    await settle(store, claimed, { kind: "error", error: ERROR });
    const before = await store.queries.attempts(claimed.id);
    const again = await reopen();
    assert.deepEqual(await again.queries.attempts(claimed.id), before);
  });
}

function registerAs(store: Store, host: string, pid: number): Promise<ProcessId> {
  return store.processes.register({ pid, host, boot: "boot", program: "test" });
}

function held({ job, fence, expiresAt, lease }: Claimed, holder: ProcessId) {
  return { job, fence, expiresAt, lease, holder };
}

function logOf({ job, fence }: Claimed, first: number, messages: string[]): AttemptLog {
  return {
    job,
    fence,
    first,
    keep: 3,
    lines: messages.map((message) => ({ at: 1, level: "info", message, data: { of: messages } })),
  };
}

async function messagesOf(store: Store, id: string): Promise<string[][]> {
  return (await store.queries.attempts(id)).map(({ log = [] }) => log.map(({ message }) => message));
}

async function outcomesOf(store: Store, id: string): Promise<string[]> {
  return (await store.queries.attempts(id)).map(({ outcome }) => outcome);
}
