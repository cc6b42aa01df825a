import assert from "node:assert/strict";
import { suite, test } from "node:test";
import * as holdfast from "../../src/index.ts";
import * as testing from "../../src/testing/index.ts";
import type * as promised from "./promised.ts";

/*
 * What the compiler checks here is the test: every promised name is there, with a signature that keeps the promise.
 * Values that come out may carry more than was promised, options that go in may offer more.
 */

/** A caller that relies on the promise gets at least that. */
function gives<Promised, _Is extends Promised>(): void {}
/** A caller that passes what was promised is understood, and no option has been lost. */
function takes<Promised extends Is, Is>(
  ..._lost: Exclude<keyof Promised, keyof Is> extends never ? [] : [Exclude<keyof Promised, keyof Is>]
): void {}
/** Both. */
function is<Promised extends Is, Is extends _Again, _Again = Promised>(): void {}

interface Given {
  a: string;
}
interface Made {
  b: number;
}

suite("the public names keep what was promised of them", () => {
  test("data", () => {
    is<promised.Duration, holdfast.Duration>();
    is<promised.JobState, holdfast.JobState>();
    is<promised.StandardSchema<Given, Made>, holdfast.StandardSchema<Given, Made>>();
    is<promised.Page<Given>, holdfast.Page<Given>>();
    is<promised.Log, holdfast.Log>();
    is<promised.Job<Given, Made>, holdfast.Job<Given, Made>>();
    is<promised.Finished<Made>, holdfast.Finished<Made>>();
    is<promised.Enqueued<Made>, holdfast.Enqueued<Made>>();
    is<promised.Schedule, holdfast.Schedule>();
    is<promised.Event, holdfast.Event>();
    is<promised.RecoveryStats, holdfast.RecoveryStats>();
    is<promised.CrashRecoveryReport, holdfast.CrashRecoveryReport>();
    is<promised.SqliteTx, holdfast.SqliteTx>();
    is<promised.SqliteHandle, holdfast.SqliteHandle>();
    is<promised.PostgresTx, holdfast.PostgresTx>();
  });

  test("options", () => {
    takes<promised.OpenOptions, holdfast.OpenOptions>();
    takes<promised.Config, holdfast.Config>();
    takes<promised.EnqueueOptions, holdfast.EnqueueOptions>();
    takes<promised.RunOptions<Given>, holdfast.RunOptions<Given>>();
    takes<promised.JobOptions<Given>, holdfast.JobOptions<Given>>();
    takes<promised.QueueOptions, holdfast.QueueOptions>();
    takes<promised.Limit<Given>, holdfast.Limit<Given>>();
  });

  test("what is worked with", () => {
    is<promised.JobContext<Given>, holdfast.JobContext<Given>>();
    is<promised.JobDef<Given, Made, string>, holdfast.JobDef<Given, Made, string>>();
    gives<promised.Claim<Given>, holdfast.Claim<Given>>();
    gives<promised.Lock, holdfast.Lock>();
    gives<promised.Worker, holdfast.Worker>();
    gives<promised.Holdfast, holdfast.Holdfast>();
    gives<(where?: string, options?: promised.OpenOptions) => Promise<promised.Holdfast>, typeof holdfast.open>();
    gives<promised.Testing, typeof testing>();
  });

  test("classes of errors", () => {
    gives<{ readonly code: string; readonly hint: string } & Error, holdfast.HoldfastError>();
    gives<holdfast.HoldfastError, holdfast.LeaseLostError>();
    gives<new (message?: string) => Error, typeof holdfast.NonRetryableError>();
    gives<new (after: promised.Duration | Date, message?: string) => Error, typeof holdfast.RetryAfterError>();
  });

  test("and at run time there is each of them", async () => {
    const names = ["HoldfastError", "LeaseLostError", "NonRetryableError", "RetryAfterError", "job", "open"];
    for (const name of names) assert.ok(Object.keys(holdfast).includes(name), name);
    for (const name of ["call", "crashAt", "drain", "testClock"]) assert.ok(Object.keys(testing).includes(name), name);
    await using hf = await holdfast.open(":memory:");
    const methods = ["enqueue", "enqueueMany", "transaction", "work", "schedule", "claim", "lock", "close"] as const;
    for (const name of methods) assert.equal(typeof hf[name], "function", name);
    const looks = ["get", "list", "counts", "cancel", "retry", "wait", "watch"] as const;
    for (const name of looks) assert.equal(typeof hf.jobs[name], "function", name);
    const acts = ["list", "remove", "pause", "resume", "trigger"] as const;
    for (const name of acts) assert.equal(typeof hf.schedules[name], "function", name);
    for (const name of ["pause", "resume", "list"] as const) assert.equal(typeof hf.queues[name], "function", name);
    assert.equal(typeof hf.events.subscribe, "function");
    for (const name of ["recoverStale", "stats", "reclaimStale", "lastReport", "history"] as const)
      assert.equal(typeof hf.recovery[name], "function");
  });
});

test("the comparison notices what it is there for", () => {
  // @ts-expect-error a name less
  gives<{ a: string; b: string }, { a: string }>();
  // @ts-expect-error another type
  is<{ a: string }, { a: string | undefined }>();
  // @ts-expect-error an option that is known no more
  takes<{ a?: string; b?: string }, { a?: string }>();
  // @ts-expect-error a parameter that became narrower
  gives<promised.Holdfast["lock"], (name: "one" | "two") => promised.Lock>();
});
