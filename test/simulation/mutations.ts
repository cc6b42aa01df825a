import type { CommitRows, TransactionHandle } from "../../src/core/jobs/job.ts";
import type { Fence, JobKey } from "../../src/core/text/ids.ts";
import type { LeaseRef } from "../../src/core/jobs/lease.ts";
import { CHECKED_TABLES, fillChecksums } from "../../src/store/sqlite/maintenance/damage/check.ts";
import { through } from "../../src/store/sqlite/driver.ts";
import type { Claimed, NewJob, Settlement, Store, Expired, Pruned } from "../../src/store/store.ts";
import type { ScheduleOptions } from "./schedule.ts";
import { scheduleOf, breakLock } from "../conformance/parts.ts";

/** Stores with one thing wrong each, as a careless change might make it. A simulation that finds none of them proves nothing. */
export const mutations: Record<string, ScheduleOptions> = {
  "settles under any fence": { break: ignoreFence },
  "hands out a job twice": { break: handOutTwice },
  "forgets follow-ups": broken((store) => ({
    settle: (settlements) => store.settle(settlements.map(({ job, fence, outcome }) => ({ job, fence, outcome }))),
  })),
  "commits the follow-ups of a refused attempt": broken((store) => ({
    settle: async (settlements) => {
      const fates = await store.settle(settlements);
      const refused = settlements.filter((_, i) => fates[i] !== "held");
      await store.enqueue(refused.flatMap(({ followUps }) => followUps ?? []));
      return fates;
    },
  })),
  "commits rows of the user's own apart from the success": broken((store) => ({
    settle: (settlements) => {
      for (const { commit } of settlements) if (commit !== undefined) void store.transact((db) => callAll(commit, db));
      return store.settle(settlements.map((one) => ({ ...one, commit: undefined })));
    },
  })),
  "forgets rows of the user's own": broken((store) => ({
    settle: (settlements) => store.settle(settlements.map((one) => ({ ...one, commit: undefined }))),
  })),
  "takes a living process for dead": misguided((store) => ({
    processes: overlay(store.processes, {
      probe: async () => {
        const { self, others } = await store.processes.probe();
        return { self, others: others.map(({ process }) => ({ process, life: "dead" })) };
      },
    }),
  })),
  "takes expired leases at once, whichever process holds them": wrongReclaim((store) => ({
    stale: async (query) => (await store.recoveries.stale(query)).map((lease) => Object.assign(lease, { holder: null })),
  })),
  "waits a millisecond instead of a renewal before it takes": wrongReclaim((store) => ({
    stale: async (query) => (await store.recoveries.stale(query)).map((lease) => Object.assign(lease, { lease: 1 })),
  })),
  "takes back a lease that was renewed after it was judged": recovering(takeBackRenewed),
  "charges no crash for a stall": wrongReclaim((store) => ({
    reclaim: (judgements, cause) =>
      store.recoveries.reclaim(
        judgements.map((one) => Object.assign(one, one.verdict === "stalled" && { verdict: "interrupted" })),
        cause,
      ),
  })),
  "forgets a chosen id when its job is pruned": { break: forgetIds },
  "lets two unfinished jobs have one key": broken((store) => ({
    enqueue: (jobs, options) =>
      store.enqueue(
        jobs.map((job) => ({ ...job, key: undefined as never })),
        options,
      ),
  })),
  "passes over the first in line": { break: passOver },
  "claims from a locked queue": broken((store) => ({
    claim: async (request) => {
      for (const { queue } of request.from) if (queue !== undefined) await breakLock(store, queue);
      return store.claim(request);
    },
  })),
  "gives a lock to every caller": broken((store) => ({
    locks: overlay(store.locks, { acquire: async (...args) => (await store.locks.acquire(...args)) || true }),
  })),
  "says a lost lease is renewed": broken((store) => ({
    renew: async (leases) => (await store.renew(leases)).map((fate) => (fate === "lost" ? "held" : fate)),
  })),
  "renews without writing": broken((store) => ({ renew: (leases) => store.inspect(leases) })),
  "loses a checkpoint": broken((store) => ({
    saveProgress: (reports) =>
      reports.some((report) => "checkpoint" in report) ? store.inspect(reports) : store.saveProgress(reports),
  })),
  "lets a running job be cancelled only in words": broken((store) => ({
    cancel: async (id) => ((await store.queries.get(id))?.state === "running" ? true : store.cancel(id)),
  })),
  "never brings back what failed once": broken((store) => ({
    settle: (settlements) => store.settle(settlements.map(neverBack)),
  })),
  "prunes more than it was asked to": broken((store) => ({
    prune: (filter) => store.prune("expired" in filter ? filter : { ...filter, limit: 1_000 }),
  })),
  "leaves the jobs of remote processes where they are": wrongReclaim((store) => ({
    stale: async (query) =>
      (await store.recoveries.stale(query)).filter(({ holder }) => holder === null || query.dead.includes(holder)),
  })),
  "never takes back from a process that lives": wrongReclaim((store) => ({
    reclaim: (judgements, cause) =>
      store.recoveries.reclaim(
        judgements.filter(({ verdict }) => verdict !== "stalled"),
        cause,
      ),
  })),
  "forgets all but the first of what a job comes after": broken((store) => ({
    enqueue: (jobs, options) => store.enqueue(jobs.map(firstUpstream), options),
  })),
  "cancels only what comes directly after": broken((store) => ({
    cancel: (id) => spoiled(store, store.cancel(id), LEFT_BEHIND),
    settle: (settlements) => spoiled(store, store.settle(settlements), LEFT_BEHIND),
  })),
  "lets what comes after a failure wait on": broken((store) => ({
    settle: (settlements) => spoiled(store, store.settle(settlements), STILL_WAITING),
  })),
  "hands out jobs of a paused queue by hand": broken((store) => ({
    claim: (request) => {
      if (request.holder !== null) return store.claim(request);
      spoil(store, `update holdfast_queues set paused = 2 where paused = 1; ${SETTINGS_CHANGED}`);
      return spoiled(store, store.claim(request), `update holdfast_queues set paused = 1 where paused = 2; ${SETTINGS_CHANGED}`);
    },
  })),
  "keeps the place of a cancelled job under its limits": broken((store) => ({
    cancel: (id) => spoiled(store, store.cancel(id), "update holdfast_counters set running = running + 1 where running > 0"),
  })),
  "keeps the places of what was taken back": recovering((store) => ({
    reclaim: (judgements, cause) =>
      spoiled(store, store.recoveries.reclaim(judgements, cause), "update holdfast_counters set running = running + 1"),
  })),
  "reports more than it gave back": recovering((store) => ({
    reclaimFrom: (dead) => spoiled(store, store.recoveries.reclaimFrom(dead), "update holdfast_recoveries set jobs = jobs + 1"),
  })),
  "reports a recovery twice": recovering((store) => ({
    close: (ending) =>
      spoiled(
        store,
        store.recoveries.close(ending),
        `${ADD_EVENT} select type, at, transition || '2', job, data from holdfast_events where type = 'recovery.completed' and ${NEWEST}`,
      ),
  })),
  "leaves the locks of the dead": recovering((store) => ({
    reclaimFrom: (dead) => {
      spoil(store, "update holdfast_locks set process = null");
      return store.recoveries.reclaimFrom(dead);
    },
  })),
  "forgets what runs under a limit": broken((store) => ({
    claim: (request) => spoiled(store, store.claim(request), "update holdfast_counters set running = max(0, running - 1)"),
  })),
  "forgets what was started under a rate": broken((store) => ({
    claim: (request) => spoiled(store, store.claim(request), "update holdfast_counters set bucket = 0"),
  })),
  "counts those that have started as standing ready": broken((store) => ({
    claim: (request) => spoiled(store, store.claim(request), "update holdfast_counters set passed = passed + 1"),
  })),
  "lets newcomers overtake what is parked": broken((store) => ({
    enqueue: (jobs, options) => spoiled(store, store.enqueue(jobs, options), LAST_FIRST),
  })),
  "notifies no worker that a rate allows more": broken((store) => ({
    claim: (request) => spoiled(store, store.claim(request), "update holdfast_counters set due_at = null"),
  })),
  "takes an old word for the newest": broken((store) => ({
    queues: overlay(store.queues, {
      declare: (declarations) => store.queues.declare(declarations.map((one) => ({ ...one, old: false }))),
    }),
  })),
  "forgets jobs that were retried": misexpiring((store, filter) =>
    spoiled(
      store,
      store.prune(filter),
      "delete from holdfast_jobs where state = 'pending' and started_at is not null and gate is null",
    ),
  ),
  "forgets the newest first": misexpiring((store, filter) => {
    spoil(store, "update or ignore holdfast_expiring set finished_at = 0 where job = (select max(job) from holdfast_expiring)");
    spoil(
      store,
      "update holdfast_jobs set finished_at = 0 where key in (select job from holdfast_expiring where finished_at = 0)",
    );
    return store.prune(filter);
  }),
  "keeps what it should forget": misexpiring(async () => ({ removed: 0, more: false })),
  "loses an event": broken((store) => ({
    settle: (settlements) => spoiled(store, store.settle(settlements), `delete from holdfast_events where ${NEWEST}`),
  })),
  "tells something twice": broken((store) => ({
    settle: (settlements) =>
      spoiled(
        store,
        store.settle(settlements),
        `${ADD_EVENT} select type, at, transition || '2', job, data from holdfast_events where ${NEWEST}`,
      ),
  })),
  "tells of what it then undoes": broken((store) => ({
    enqueue: (jobs, options) => {
      if (jobs[0]?.name === "bad") spoil(store, `${ADD_EVENT} values ('job.enqueued', 0, 'bad', 'bad', '{}')`);
      return store.enqueue(jobs, options);
    },
  })),
  "makes a job of a tick that another process has had": ticking((store) => ({
    tick: async (tick) => {
      const now = await scheduleOf(store, tick.key);
      return store.schedules.tick(now === null ? tick : { ...tick, revision: now.revision, from: now.nextAt });
    },
  })),
  "moves a schedule on without its job": ticking((store) => ({ tick: (tick) => store.schedules.tick({ ...tick, fire: [] }) })),
  "makes a job of a tick and stays where it was": ticking((store) => ({
    tick: (tick) => store.schedules.tick({ ...tick, nextAt: tick.from }),
  })),
  "lets ticks overlap that should not": ticking((store) => ({
    save: (draft) => spoiled(store, store.schedules.save(draft), "update holdfast_schedules set overlap = 1"),
  })),
  "steps over a tick when a schedule is saved again": ticking((store) => ({
    save: (draft) =>
      spoiled(
        store,
        store.schedules.save(draft),
        `update holdfast_schedules set next_at = ${draft.nextAt} where key = '${draft.key}'`,
      ),
  })),
  "keeps what was enqueued in a transaction that is undone": broken((store) => ({
    enqueueWithin: (_handle, jobs) => {
      void store.enqueue(jobs);
      return jobs.map(() => ({ id: "later", duplicate: false }));
    },
  })),
  "never looks for locks to clean": misguided((store) => ({
    locks: overlay(store.locks, { list: async () => [], clean: async () => ({ removed: [], shortened: [] }) }),
  })),
};

const NEWEST = "seq = (select max(seq) from holdfast_events)";
const ADD_EVENT = "insert or ignore into holdfast_events (type, at, transition, job, data)";
const SETTINGS_CHANGED = "update holdfast_counter set settings = settings + 1";
const BY_UPSTREAM = "state = 'cancelled' and error like '%UPSTREAM_ENDED%'";
const STILL_WAITING = `update or ignore holdfast_jobs set state = 'waiting', error = null, finished_at = null where ${BY_UPSTREAM}`;
const LEFT_BEHIND = `${STILL_WAITING} and error like '%was cancelled%'`;

/** Of those that are parked at a limit, the last one changes places with one that stands ready. */
const LAST_FIRST = `
  create temp table if not exists swap (a integer, b integer, counter integer, priority integer);
  delete from swap;
  insert into swap select job, ready.key, parked.counter, parked.priority from holdfast_parked as parked
    join holdfast_jobs as job on job.key = parked.job
    join holdfast_jobs as ready on ready.limits = job.limits and ready.lane = job.lane and ready.priority = job.priority
      and ready.key < job.key and ready.state = 'pending' and ready.gate is null
    order by parked.job desc limit 1;
  update holdfast_parked set job = (select b from swap) where (counter, job) in (select counter, a from swap);
  update holdfast_jobs set gate = null where key in (select a from swap);
  update holdfast_jobs set gate = 'limit' where key in (select b from swap);`;

function callAll(commit: readonly CommitRows[], db: object): void {
  const tx = { db: db as TransactionHandle, query: () => Promise.reject(new Error("not here")) };
  for (const run of commit) void run(tx);
}

function firstUpstream(job: NewJob): NewJob {
  return job.after === undefined ? job : { ...job, after: job.after.slice(0, 1) };
}

/** What is done, and right after it something that should not be. */
function spoiled<T>(store: Store, done: Promise<T>, sql: string): Promise<T> {
  spoil(store, sql);
  return done;
}

/**
 * Runs in the turn of the call before it, so that nothing comes between and the answers keep their order. A mutation writes
 * its checksums all the same: a store that finds its rows damaged would be found out by that alone.
 */
function spoil(store: Store, sql: string): void {
  void store.transact((handle) => {
    const db = through("node:sqlite", handle as object);
    db.exec(sql);
    for (const { table } of CHECKED_TABLES) if (sql.includes(table)) db.exec(`update ${table} set checksum = null`);
    fillChecksums(db);
  });
}

/** The real store, with some methods of its own. */
function broken(own: (store: Store) => Partial<Store>): ScheduleOptions {
  return { break: (store) => overlay(store, own(store)) };
}

/** The real store, with its own way to reclaim. */
function recovering(own: (store: Store) => Partial<Store["recoveries"]>): ScheduleOptions {
  return broken((store) => ({ recoveries: overlay(store.recoveries, own(store)) }));
}

/** The real store, with a way of its own to keep schedules. */
function ticking(own: (store: Store) => Partial<Store["schedules"]>): ScheduleOptions {
  return broken((store) => ({ schedules: overlay(store.schedules, own(store)) }));
}

/** The real store, wrongly understood by the janitors. */
function misguided(own: (store: Store) => Partial<Store>): ScheduleOptions {
  return { misguide: (store) => overlay(store, own(store)) };
}

/** The same, where they take back. */
function wrongReclaim(own: (store: Store) => Partial<Store["recoveries"]>): ScheduleOptions {
  return misguided((store) => ({ recoveries: overlay(store.recoveries, own(store)) }));
}

/** The same, where they remove what need not be kept. */
function misexpiring(expire: (store: Store, filter: Expired) => Promise<Pruned>): ScheduleOptions {
  return broken((store) => ({ prune: (filter) => ("expired" in filter ? expire(store, filter) : store.prune(filter)) }));
}

function overlay<T extends object>(store: T, own: Partial<T>): T {
  return new Proxy(store, {
    get(target, name) {
      const value: unknown = Reflect.get(own, name) ?? Reflect.get(target, name, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}

function ignoreFence(store: Store): Store {
  const fences = new Map<JobKey, Fence>();
  return overlay(store, {
    claim: async (request) => {
      const claimed = await store.claim(request);
      for (const { job, fence } of claimed) fences.set(job, fence);
      return claimed;
    },
    settle: (settlements) => store.settle(settlements.map((one) => ({ ...one, fence: fences.get(one.job) ?? one.fence }))),
  });
}

function handOutTwice(store: Store): Store {
  let last: Claimed | undefined;
  return overlay(store, {
    claim: async (request) => {
      const claimed = await store.claim(request);
      const again = last;
      last = claimed[0];
      return again !== undefined && claimed.length < request.max ? [...claimed, again] : claimed;
    },
  });
}

/** Whatever was judged, the lease as it is now is taken. */
function takeBackRenewed(store: Store): Partial<Store["recoveries"]> {
  return {
    reclaim: async (judgements, cause) => {
      const dead = judgements.map(({ holder }) => holder).filter((holder) => holder !== null);
      const held = await store.recoveries.stale({ dead, skewed: true, limit: 1_000 });
      const now = ({ job, fence }: LeaseRef) => held.find((lease) => lease.job === job && lease.fence === fence);
      const bent = judgements.map((one) => Object.assign({}, one, { expiresAt: now(one)?.expiresAt ?? one.expiresAt }));
      return store.recoveries.reclaim(bent, cause);
    },
  };
}

function forgetIds(store: Store): Store {
  const seen = new Set<string>();
  let again = 0;
  const withoutId = async (job: NewJob): Promise<NewJob> => {
    if (job.id === undefined || (await store.queries.get(job.id)) !== null) return job;
    const { id, ...rest } = job;
    if (seen.has(id)) return { ...rest, followUpId: `${id}-again-${again++}` };
    seen.add(id);
    return job;
  };
  return overlay(store, {
    enqueue: async (jobs, options) => {
      const answers = await store.enqueue(await Promise.all(jobs.map(withoutId)), options);
      return answers.map((answer) => Object.assign(answer, { id: answer.id.replace(/-again.*/, "") }));
    },
  });
}

function passOver(store: Store): Store {
  return overlay(store, {
    claim: async (request) => {
      const claimed = await store.claim({ ...request, max: request.max + 1 });
      const [first] = claimed;
      if (first === undefined || claimed.length <= request.max) return claimed;
      await store.settle([{ job: first.job, fence: first.fence, outcome: { kind: "released" } }]);
      return claimed.slice(1);
    },
  });
}

function neverBack(settlement: Settlement): Settlement {
  const { outcome } = settlement;
  if (outcome.kind !== "error" || outcome.retry === false) return settlement;
  return { ...settlement, outcome: { ...outcome, delay: 10 * 365 * 24 * 3_600_000 } };
}
