import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobKey } from "../../src/core/text/ids.ts";
import {
  byClaimOrder,
  FINISHED_STATES,
  isFinished,
  JOB_MOVES,
  JOB_STATES,
  type JobMove,
  type JobState,
  MAX_ERROR_BYTES,
  mayMove,
  toJobError,
} from "../../src/core/jobs/job.ts";
import { SCHEMA } from "../../src/store/sqlite/schema.ts";

test("the states of the table are those of SQLite's CHECK", () => {
  const check = /create table holdfast_jobs \(.*?state\s+text not null check \((.*?)\),/s.exec(SCHEMA)?.[1] ?? "";
  const states = [...check.matchAll(/state = '(\w+)'/g)].map(([, state]) => state);
  assert.deepEqual(states.sort(), [...JOB_STATES].sort());
});

test("every move is between known states", () => {
  for (const { from, to } of Object.values(JOB_MOVES)) for (const state of [...from, to]) assert.ok(JOB_STATES.includes(state));
});

test("exactly the moves of the table are allowed", () => {
  const allowed: Record<JobState, Partial<Record<JobMove, JobState>>> = {
    waiting: { unblock: "pending", cancel: "cancelled" },
    pending: { claim: "running", cancel: "cancelled" },
    running: { succeed: "succeeded", fail: "failed", "give-back": "pending", quarantine: "quarantined", cancel: "cancelled" },
    succeeded: {},
    failed: { retry: "pending" },
    cancelled: {},
    quarantined: { retry: "pending" },
  };
  for (const state of JOB_STATES) {
    const moves = (Object.keys(JOB_MOVES) as JobMove[]).filter((move) => mayMove(move, state));
    assert.deepEqual(Object.fromEntries(moves.map((move) => [move, JOB_MOVES[move].to])), allowed[state], state);
  }
});

test("a finished job moves only by an operator's retry, and an unfinished one can always move", () => {
  for (const state of JOB_STATES) {
    const moves = (Object.keys(JOB_MOVES) as JobMove[]).filter((move) => mayMove(move, state));
    assert.equal(
      isFinished(state),
      FINISHED_STATES.some((finished) => finished === state),
    );
    if (isFinished(state)) assert.ok(moves.every((move) => move === "retry"));
    else assert.ok(moves.includes("cancel"));
  }
});

test("every state is reachable, and a finished state from each", () => {
  assert.deepEqual([...reach("waiting")].sort(), [...JOB_STATES].sort());
  for (const state of JOB_STATES) assert.ok([...reach(state)].some(isFinished));
});

test("a higher priority comes first, then the older job", () => {
  const jobs = [job(0, 1), job(5, 4), job(5, 2), job(-1, 3)];
  assert.deepEqual(jobs.sort(byClaimOrder), [job(5, 2), job(5, 4), job(0, 1), job(-1, 3)]);
});

test("anything that a handler throws can be stored", () => {
  const error = Object.assign(new TypeError("no"), { code: "E_NO" });
  assert.deepEqual(toJobError(error), { name: "TypeError", message: "no", code: "E_NO", stack: error.stack });
  assert.equal(toJobError(Object.assign(new Error("x"), { code: 42 })).code, "42");
  assert.equal("code" in toJobError(Object.assign(new Error("x"), { code: {} })), false);
  assert.deepEqual(toJobError("plain"), { name: "Error", message: "plain" });
  assert.deepEqual(toJobError({ a: 1 }), { name: "Error", message: '{"a":1}' });
  assert.deepEqual(toJobError(undefined), { name: "Error", message: "undefined" });
  assert.deepEqual(toJobError(5n), { name: "Error", message: "5" });
});

test("an error of megabytes is stored in 64 KB, with the frames of its stack", () => {
  for (const character of ["x", "ä", "语", "😀"]) {
    const huge = Object.assign(new TypeError(character.repeat(1_000_000)), { code: character.repeat(1_000_000) });
    huge.name = character.repeat(900_000);
    const stored = toJobError(huge);
    assert.ok(Buffer.byteLength(Object.values(stored).join("")) <= MAX_ERROR_BYTES);
    assert.ok(stored.message.isWellFormed() && stored.message.startsWith(character) && stored.message.includes("(cut, "));
    assert.ok(stored.stack?.includes("job.test.ts"), "the frames are kept");
    assert.ok(Buffer.byteLength(toJobError(character.repeat(1_000_000)).message) <= MAX_ERROR_BYTES);
  }
});

function reach(start: JobState): Set<JobState> {
  const seen = new Set<JobState>([start]);
  for (const state of seen) for (const { from, to } of Object.values(JOB_MOVES)) if (from.includes(state)) seen.add(to);
  return seen;
}

function job(priority: number, key: number): { priority: number; key: JobKey } {
  return { priority, key: key as JobKey };
}

test("any generated error can be stored", () => {
  const hostile = new Proxy(new Error("x"), {
    get() {
      throw new Error("no");
    },
  });
  const cyclic: { self?: unknown } = {};
  cyclic.self = cyclic;
  for (const thrown of [
    null,
    undefined,
    7n,
    Symbol("s"),
    Object.create(null),
    cyclic,
    hostile,
    () => {},
    Object.freeze(new Error("f")),
  ]) {
    const error = toJobError(thrown);
    assert.equal(typeof error.message, "string");
    assert.equal(typeof JSON.stringify(error), "string");
  }
  assert.equal(toJobError(Object.assign(new Error("m"), { message: { not: "text" } })).message, "[object Object]");
});
