import assert from "node:assert/strict";
import type { ProcessId } from "../../src/core/text/ids.ts";
import type { Job, JobError } from "../../src/core/jobs/job.ts";
import type { HeldLease, LeaseRef } from "../../src/core/jobs/lease.ts";
import type { Outcome, Policy } from "../../src/core/jobs/retry.ts";
import type { LimitRule } from "../../src/core/limits/limit.ts";
import type { Judgement } from "../../src/store/recoveries.ts";
import type { Change, Claimed, ClaimRequest, Declaration, NewJob, Reclaimed, Store, LeaseState } from "../../src/store/store.ts";
import type { TestClock } from "../../src/testing/index.ts";
import type { LockView, StoredSchedule } from "../../src/store/queues.ts";
import type { AuditHead } from "../../src/store/audit.ts";

/** Words that the cases share: a job as it would be enqueued, an attempt's end, time going by. */
export const LEASE = 30_000;
export const ERROR: JobError = { name: "Error", message: "boom" };
export const SUCCEEDED: Outcome = { kind: "succeeded", output: null };

export const POLICY: Policy = {
  attempts: 3,
  backoff: "fixed",
  delay: 1_000,
  maxDelay: 60_000,
  crashes: 3,
  onInterrupt: "retry",
  timeout: 3_600_000,
};

export type JobLike = Omit<Partial<NewJob>, "policy"> & { policy?: Partial<Policy> };

/** A job named "work" in the queue of its name, unless said otherwise. */
export function newJob(given: JobLike = {}): NewJob {
  const name = given.name ?? "work";
  const policy = { ...POLICY, ...given.policy };
  return { queue: name, version: 1, input: '{"n":1}', priority: 0, delay: 0, ...given, name, policy };
}

/** Enqueues new jobs in one call; the answer is their ids. */
export async function add(store: Store, ...jobs: JobLike[]): Promise<string[]> {
  const answers = await store.enqueue(jobs.map(newJob));
  return answers.map((answer) => {
    assert.deepEqual(answer, { id: answer.id, duplicate: false });
    return answer.id;
  });
}

export async function addOne(store: Store, job: JobLike = {}): Promise<string> {
  return (await add(store, job))[0] as string;
}

export function claim(store: Store, request: Partial<ClaimRequest> = {}): Promise<Claimed[]> {
  return store.claim({ from: [{ lease: LEASE }], max: 100, holder: null, worker: "tester", ...request });
}

export async function claimIds(store: Store, request: Partial<ClaimRequest> = {}): Promise<string[]> {
  return (await claim(store, request)).map(({ id }) => id);
}

export async function claimOne(store: Store, request: Partial<ClaimRequest> = {}): Promise<Claimed> {
  const claimed = await claim(store, { max: 1, ...request });
  assert.equal(claimed.length, 1, "something to claim");
  return claimed[0] as Claimed;
}

/** A job that is running: its claim. */
export async function running(store: Store, job: JobLike = {}): Promise<Claimed> {
  const id = await addOne(store, job);
  const claimed = await claimOne(store, { from: [{ ...(job.name === undefined ? {} : { name: job.name }), lease: LEASE }] });
  assert.equal(claimed.id, id);
  return claimed;
}

/** Ends an attempt that is held. */
export async function settle(store: Store, lease: LeaseRef, outcome: Outcome, followUps?: NewJob[]): Promise<void> {
  const { job, fence } = lease;
  assert.deepEqual(await store.settle([{ job, fence, outcome, ...(followUps && { followUps }) }]), ["held"]);
}

export function judged(lease: Claimed | HeldLease, verdict: Judgement["verdict"]): Judgement {
  const { job, fence, expiresAt } = lease;
  return { job, fence, holder: "holder" in lease ? lease.holder : null, expiresAt, lease: lease.lease, verdict };
}

/** Takes leases back as judged. */
export async function lockOf({ locks }: Pick<Store, "locks">, name: string): Promise<LockView | null> {
  return (await locks.list(name))[0] ?? null;
}

export function takeBack(store: Store, verdict: Judgement["verdict"], ...leases: (Claimed | HeldLease)[]): Promise<Reclaimed> {
  return store.recoveries.reclaim(
    leases.map((lease) => judged(lease, verdict)),
    "a test",
  );
}

export async function see(store: Store, id: string): Promise<Job> {
  const job = await store.queries.get(id);
  assert.ok(job, `job ${id} is there`);
  return job;
}

/** Every job there is, page by page. */
export async function seeAll(store: Store): Promise<Job[]> {
  const jobs: Job[] = [];
  for (let after: string | undefined; ;) {
    const page = await store.queries.list({ limit: 100, ...(after !== undefined && { after }) });
    jobs.push(...page.items);
    if (page.next === undefined) return jobs;
    after = page.next;
  }
}

export function pass(clock: TestClock, millis: number): void {
  clock.set(clock.now() + millis);
}

export function register(store: Store, program = "test"): Promise<ProcessId> {
  return store.processes.register({ pid: 1, host: "here", boot: "boot", program });
}

/** What the store tells of its own commits while something is done. */
export async function changesDuring(store: Store, act: () => Promise<unknown>): Promise<Change[]> {
  const changes: Change[] = [];
  const stop = store.onChange((change) => changes.push(change), { ownOnly: true });
  await act();
  stop();
  return changes;
}

/** A job whose policy cannot even be read: no store can take it. */
export function badJob(given: JobLike = {}): NewJob {
  const policy = Object.defineProperty({ ...POLICY }, "attempts", {
    enumerable: true,
    get: () => {
      throw new Error("bad");
    },
  });
  return { ...newJob(given), policy };
}

/** A limit of the job "work", for each key by itself, unless said otherwise. */
export function limitRule(given: Partial<LimitRule>): LimitRule {
  return { of: "job", position: 0, keyed: true, concurrency: null, rate: null, ...given };
}

/** What the definition of the job "work" says. */
export function declaring(limits: LimitRule[], given: Partial<Declaration> = {}): Declaration {
  return { queue: "work", name: "work", limits, ...given };
}

/** Everything that can run is run, claim by claim, until nothing is left: the ids in the order in which they started. */
export async function workOff(store: Store, request: Partial<ClaimRequest> = {}): Promise<string[]> {
  const started: string[] = [];
  for (;;) {
    const claimed = await claim(store, { max: 1, ...request });
    if (claimed.length === 0) return started;
    started.push(...claimed.map(({ id }) => id));
    await store.settle(claimed.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
  }
}

/** As an operator does. */
export async function breakLock(
  { locks }: Pick<Store, "locks">,
  name: string,
  options: { stale?: boolean } = {},
): Promise<boolean> {
  return (await locks.clean({ name, ...options })).removed.length === 1;
}

export async function saveCheckpoint(
  store: Pick<Store, "saveProgress">,
  { job, fence }: LeaseRef,
  checkpoint: string | null,
): Promise<LeaseState> {
  return (await store.saveProgress([{ job, fence, checkpoint }]))[0] as LeaseState;
}

export async function scheduleOf({ schedules }: Pick<Store, "schedules">, key: string): Promise<StoredSchedule | null> {
  return (await schedules.list({ key }))[0] ?? null;
}

/** The newest audit entry of a chain that is whole. */
export async function auditHead({ audit }: Pick<Store, "audit">): Promise<AuditHead> {
  return (await audit.verify({ limit: 1_000_000 })).head;
}
