import type { JobKey, ProcessId } from "../../src/core/ids.ts";
import type { JobState } from "../../src/core/job.ts";
import type { StaleLease, LeaseRef } from "../../src/core/lease.ts";
import type {
  Claimed,
  ClaimRequest,
  ClaimSource,
  Declaration,
  DueSchedules,
  Enqueued,
  Fate,
  Judgement,
  Life,
  LockView,
  NewJob,
  Outlook,
  ProcessView,
  ProgressReport,
  Reclaimed,
  ScheduleDraft,
  Settlement,
  Store,
  StoredSchedule,
  Tick,
} from "../../src/store/store.ts";
import { checkOutlook, checkTaking } from "./invariants.ts";
import type { PruneFilter } from "./model.ts";
import { mustEqual, Violation } from "./violation.ts";
import type { World } from "./world.ts";

/**
 * The store as one actor sees it: each call goes to the real one, and the model is asked about the answer. Calls of one
 * turn are answered in their order, so the model hears of them in the order in which they were committed.
 */
export class CheckedStore {
  readonly #world: World;
  readonly #store: Store;
  readonly #actor: { name: string; now: () => number; acts: () => void };

  constructor(world: World, store: Store, actor: { name: string; now: () => number; acts: () => void }) {
    this.#world = world;
    this.#store = store;
    this.#actor = actor;
  }

  /** Nobody builds anything in these worlds; a janitor looks whether somebody does. */
  get builds(): Pick<Store["builds"], "leads"> {
    return { leads: () => this.#world.inTurn(() => this.#store.builds.leads()) };
  }

  /** And nothing of that is left. */
  get work(): Pick<Store["work"], "clearWork"> {
    return { clearWork: (clearing) => this.#world.inTurn(() => this.#store.work.clearWork(clearing)) };
  }

  /** Nothing is damaged here. */
  get damage(): Pick<Store["damage"], "findings"> {
    return { findings: () => this.#world.inTurn(() => this.#store.damage.findings()) };
  }

  /** How the dead are buried. */
  get recoveries(): Pick<Store["recoveries"], "begin" | "takeBack" | "bury" | "close"> {
    const { recoveries: model } = this.#model;
    return {
      begin: (found) => this.#recover("begin", [found], (answer) => model.begin(found, answer)),
      takeBack: (burial) =>
        this.#recover("takeBack", [burial], (answer) => {
          for (const judgement of model.taken(burial)) checkTaking(this.#world, this.#now, judgement);
          model.takeBack(this.#now, burial, answer);
        }),
      bury: (burial) => this.#recover("bury", [burial], (answer) => model.bury(this.#now, burial, answer)),
      close: (report, ending) =>
        this.#recover("close", [report, ending], (answer) => model.close(this.#now, report, ending, answer)),
    };
  }

  counts(filter: { queue?: string; name?: string }): Promise<Record<JobState, number>> {
    return this.#call("counts", [filter], (answer) => mustEqual(answer, this.#model.counts(filter), "the counts"));
  }

  enqueue(jobs: readonly NewJob[], options?: { whole: boolean }): Promise<Enqueued[]> {
    return this.#call("enqueue", [jobs, options], (answer) => this.#model.enqueue(this.#now, jobs, answer, options?.whole));
  }

  /** In a transaction of the caller's own, some at a time; one that is undone has never been. */
  enqueueWithin(parts: readonly (readonly NewJob[])[], undone: boolean): Promise<void> {
    return this.#world.inTurn(() => this.#within(parts, undone));
  }

  async #within(parts: readonly (readonly NewJob[])[], undone: boolean): Promise<void> {
    this.#actor.acts();
    const entry = this.#world.trace.add(this.#actor.name, undone ? "enqueueWithin, undone" : "enqueueWithin", parts);
    const undo = new Error("undone");
    try {
      const answers = await this.#world.place.within(this.#store, parts, undone ? undo : null);
      entry.answer = answers;
      this.#model.limits.clock(this.#now, this.#world.time);
      for (const [i, jobs] of parts.entries()) this.#model.enqueue(this.#now, jobs, answers[i] as Enqueued[], true);
      // A server tells of what a user has committed in its own time.
      if (this.#world.place.isSlow) this.#model.ready.clear();
    } catch (error) {
      entry.answer = error;
      if (error instanceof Violation) this.#world.violation ??= error;
      if (error !== undo) throw error;
    }
  }

  claim(request: ClaimRequest): Promise<Claimed[]> {
    return this.#call("claim", [request], (answer) => this.#model.claim(this.#now, this.#world.time, request, answer));
  }

  renew(leases: readonly (LeaseRef & { lease: number })[]): Promise<Fate[]> {
    return this.#call("renew", [leases], (answer) => this.#model.renew(this.#now, this.#world.time, leases, answer));
  }

  settle(settlements: readonly Settlement[]): Promise<Fate[]> {
    return this.#call("settle", [settlements], (answer) => this.#model.settle(this.#now, settlements, answer));
  }

  saveCheckpoint(lease: LeaseRef, value: string | null): Promise<Fate> {
    return this.#call("saveCheckpoint", [lease, value], (answer) => this.#model.saveCheckpoint(lease, value, answer));
  }

  saveProgress(reports: readonly ProgressReport[]): Promise<Fate[]> {
    return this.#call("saveProgress", [reports], (answer) => this.#model.saveProgress(reports, answer));
  }

  loadCheckpoint(job: JobKey): Promise<string | null> {
    return this.#call("loadCheckpoint", [job], () => {});
  }

  inspect(leases: readonly LeaseRef[]): Promise<Fate[]> {
    return this.#call("inspect", [leases], (answer) => {
      const expected = leases.map((lease) => this.#model.fate(lease));
      mustEqual(answer, expected, "what became of leases");
    });
  }

  outlook(from: readonly ClaimSource[]): Promise<Outlook> {
    return this.#call("outlook", [from], (answer) => checkOutlook(this.#model, this.#now, from, answer));
  }

  cancel(id: string): Promise<boolean> {
    return this.#call("cancel", [id], (answer) => this.#model.cancel(this.#now, id, answer));
  }

  retry(id: string): Promise<boolean | "key-taken"> {
    return this.#call("retry", [id], (answer) => this.#model.retry(this.#now, id, answer));
  }

  prune(filter: PruneFilter): Promise<number> {
    return this.#call("prune", [filter], (answer) => this.#model.prune(this.#now, filter, answer));
  }

  declare(declarations: readonly Declaration[]): Promise<void> {
    return this.#call("declare", [declarations], () => this.#model.declare(this.#now, declarations));
  }

  pause(queue: string): Promise<boolean> {
    return this.#call("pause", [queue], (answer) => this.#model.setPaused(this.#now, queue, true, answer));
  }

  resume(queue: string): Promise<boolean> {
    return this.#call("resume", [queue], (answer) => this.#model.setPaused(this.#now, queue, false, answer));
  }

  expire(limit: number): Promise<{ removed: number; more: boolean }> {
    return this.#call("expire", [limit], async (answer) => {
      // It does not say which: whatever is not there any more. Nobody else removes jobs in this turn, and what it removes
      // without saying so is missed when everything is compared.
      const items = answer.removed === 0 ? [] : (await this.#store.list({ limit: 10_000 })).items;
      const left = answer.removed === 0 ? this.#model.jobs : new Set(items.map(({ id }) => id));
      this.#model.expire(this.#now, limit, answer, left);
    });
  }

  trimEvents(what: { olderThan: number; limit: number }): Promise<number> {
    return this.#call("trimEvents", [what], () => {});
  }

  running(): Promise<Map<ProcessId | null, number>> {
    return this.#call("running", [], () => {});
  }

  /** A janitor only hurries when it hears of something, and here its ticks come when the schedule says so. */
  onChange(): () => void {
    return () => {};
  }

  stale(query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<StaleLease[]> {
    return this.#call("stale", [query], (answer) => this.#model.healing.stale(this.#now, query, answer));
  }

  reclaim(judgements: readonly Judgement[], cause: string): Promise<Reclaimed> {
    return this.#call("reclaim", [judgements, cause], (answer) => {
      for (const judgement of judgements) checkTaking(this.#world, this.#now, judgement);
      this.#model.healing.reclaim(this.#now, judgements, answer);
    });
  }

  acquireLock(name: string, holder: string, token: string, ttl: number): Promise<boolean> {
    return this.#call("acquireLock", [name, holder, token, ttl], (answer) =>
      mustEqual(
        answer,
        this.#model.locks.acquire({ name, holder, token, ttl, process: this.#self }, this.#now),
        `acquiring lock ${name}`,
      ),
    );
  }

  extendLock(name: string, token: string, ttl: number): Promise<boolean> {
    return this.#call("extendLock", [name, token, ttl], (answer) =>
      mustEqual(answer, this.#model.locks.extend({ name, token, ttl, process: this.#self }, this.#now), `extending lock ${name}`),
    );
  }

  releaseLock(name: string, token: string): Promise<boolean> {
    return this.#call("releaseLock", [name, token], (answer) =>
      mustEqual(answer, this.#model.locks.release(name, token, this.#now), `releasing lock ${name}`),
    );
  }

  breakLock(name: string): Promise<boolean> {
    return this.#call("breakLock", [name], (answer) => {
      mustEqual(answer, this.#model.locks.break(name), `breaking lock ${name}`);
      if (answer) this.#model.events.tell(this.#now, "lock.broken", name);
    });
  }

  locks(): Promise<LockView[]> {
    return this.#call("locks", [], (answer) => mustEqual(plain(answer), this.#model.locks.views(this.#now), "the locks"));
  }

  cleanLocks(): Promise<number> {
    return this.#call("cleanLocks", [], (answer) => this.#model.healing.cleanLocks(this.#now, answer));
  }

  saveSchedule(draft: ScheduleDraft): Promise<StoredSchedule> {
    return this.#call("saveSchedule", [draft], (answer) => this.#model.schedules.save(this.#now, draft, answer));
  }

  schedules(): Promise<StoredSchedule[]> {
    return this.#call("schedules", [], () => {});
  }

  dueSchedules(): Promise<DueSchedules> {
    return this.#call("dueSchedules", [], (answer) => this.#model.schedules.due(this.#now, answer));
  }

  tick(tick: Tick): Promise<boolean> {
    return this.#call("tick", [tick], async (answer) => {
      // It does not say which jobs it has made: those that nobody has heard of. Nobody else makes any in this turn.
      const { items } = await this.#store.list({ limit: 10_000 });
      const strangers = items.map(({ id }) => id).filter((id) => !this.#model.jobs.has(id));
      this.#model.schedules.tick(this.#now, tick, answer, strangers);
    });
  }

  triggerSchedule(key: string): Promise<Enqueued | null> {
    return this.#call("triggerSchedule", [key], (answer) => this.#model.schedules.trigger(this.#now, key, answer));
  }

  removeSchedule(key: string): Promise<boolean> {
    return this.#call("removeSchedule", [key], (answer) => this.#model.schedules.remove(this.#now, key, answer));
  }

  pauseSchedule(key: string): Promise<boolean> {
    return this.#call("pauseSchedule", [key], (answer) => this.#model.schedules.pause(this.#now, key, answer));
  }

  resumeSchedule(schedule: { key: string; revision: number }, nextAt: number): Promise<boolean> {
    return this.#call("resumeSchedule", [schedule, nextAt], (answer) =>
      this.#model.schedules.resume(this.#now, schedule, nextAt, answer),
    );
  }

  /** Jobs that the model does not know. */
  async strangers(): Promise<string[]> {
    const { items } = await this.#store.list({ limit: 10_000 });
    return items.map(({ id }) => id).filter((id) => !this.#model.jobs.has(id));
  }

  /** Nobody is really killed here: who lives is the world's to say. */
  probe(): Promise<{ process: ProcessView; life: Life }[]> {
    return this.#world.inTurn(() => this.#probe());
  }

  async #probe(): Promise<{ process: ProcessView; life: Life }[]> {
    this.#actor.acts();
    const entry = this.#world.trace.add(this.#actor.name, "probe", []);
    const found = (await this.#store.probe()).map(({ process }) => ({ process, life: this.#world.lifeOf(process.id) }));
    entry.answer = Object.fromEntries(found.map(({ process, life }) => [process.program, life]));
    // Whoever was struck off for want of signs of life, from another host, enters itself again.
    if (this.#world.place.isSlow && this.#self !== null) this.#model.processes.add(this.#self);
    return found;
  }

  unregister(id: ProcessId): Promise<boolean> {
    return this.#call("unregister", [id], (answer) => this.#model.healing.unregister(id, answer));
  }

  get #model() {
    return this.#world.model;
  }

  get #self(): ProcessId | null {
    return this.#world.actors.find(({ name }) => name === this.#actor.name)?.id ?? null;
  }

  get #now(): number {
    return this.#actor.now();
  }

  #recover<Method extends keyof Store["recoveries"]>(
    method: Method,
    args: Parameters<Store["recoveries"][Method]>,
    check: (answer: Awaited<ReturnType<Store["recoveries"][Method]>>) => void,
  ): Promise<Awaited<ReturnType<Store["recoveries"][Method]>>> {
    type Answer = Awaited<ReturnType<Store["recoveries"][Method]>>;
    const { recoveries } = this.#store;
    const ask = (recoveries[method] as (...args: unknown[]) => Promise<Answer>).bind(recoveries);
    return this.#world.inTurn(() => this.#asked(method, args, ask, check));
  }

  #call<Method extends Asked>(
    method: Method,
    args: Parameters<Store[Method]>,
    check: (answer: Awaited<ReturnType<Store[Method]>>) => void | Promise<void>,
  ): Promise<Awaited<ReturnType<Store[Method]>>> {
    const ask = (this.#store[method] as (...args: unknown[]) => Promise<Awaited<ReturnType<Store[Method]>>>).bind(this.#store);
    return this.#world.inTurn(() => this.#asked(method, args, ask, check));
  }

  async #asked<Answer>(
    method: string,
    args: unknown[],
    ask: (...args: unknown[]) => Promise<Answer>,
    check: (answer: Answer) => void | Promise<void>,
  ): Promise<Answer> {
    this.#actor.acts();
    const entry = this.#world.trace.add(this.#actor.name, method, args);
    try {
      const answer = await ask(...args);
      entry.answer = answer;
      this.#model.limits.clock(this.#now, this.#world.time);
      const checked = check(answer);
      if (checked !== undefined) await checked;
      return answer;
    } catch (error) {
      entry.answer = error;
      // Remembered, because a janitor swallows what goes wrong before a claim.
      if (error instanceof Violation) this.#world.violation ??= error;
      throw error;
    }
  }
}

type Asked = Exclude<
  keyof CheckedStore & keyof Store,
  "onChange" | "enqueueWithin" | "builds" | "work" | "damage" | "recoveries"
>;

export function plain<T extends object>(rows: readonly T[]): T[] {
  return rows.map((row) => ({ ...row }));
}
