import type { JobKey, ProcessId } from "../../src/core/text/ids.ts";
import type { LeaseRef } from "../../src/core/jobs/lease.ts";
import type { ProbedProcesses } from "../../src/store/processes.ts";
import { type JobOverview, sumCounts } from "../../src/store/queries.ts";
import type {
  Claimed,
  ClaimRequest,
  ClaimSource,
  Enqueued,
  Expired,
  LeaseState,
  NewJob,
  ClaimOutlook,
  ProgressReport,
  Pruned,
  Settlement,
  Store,
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

  /** No process builds anything in these worlds; a janitor looks whether one does. */
  get builds(): Pick<Store["builds"], "orchestratorLocks"> {
    return { orchestratorLocks: () => this.#world.inTurn(() => this.#store.builds.orchestratorLocks()) };
  }

  /** And nothing of that is left. */
  get work(): Pick<Store["work"], "clearWork"> {
    return { clearWork: (clearing) => this.#world.inTurn(() => this.#store.work.clearWork(clearing)) };
  }

  /** Nothing is damaged here. */
  get damage(): Pick<Store["damage"], "findings" | "damaged" | "refusal"> {
    const { damage } = this.#store;
    return {
      damaged: null,
      refusal: () => null,
      findings: () => this.#world.inTurn(() => damage.findings()),
    };
  }

  /** How the dead are buried. */
  get recoveries(): Pick<Store["recoveries"], "begin" | "reclaimFrom" | "close" | "stale" | "reclaim"> {
    const ask = this.#asking("recoveries", this.#store.recoveries);
    const { recoveries, reclaims } = this.#model;
    return {
      begin: (found) => this.#world.alone(() => ask("begin", [found], (answer) => recoveries.begin(found, answer))),
      reclaimFrom: (dead) =>
        this.#world.alone(() =>
          ask("reclaimFrom", [dead], (answer) => {
            for (const judgement of recoveries.taken(dead)) checkTaking(this.#world, this.#now, judgement);
            recoveries.reclaimFrom(this.#now, dead, answer);
          }),
        ),
      close: (ending) =>
        ask("close", [ending], (answer) => {
          if (ending !== "acknowledged") recoveries.close(this.#now, ending, answer);
        }),
      stale: (query) => ask("stale", [query], (answer) => reclaims.stale(this.#now, query, answer)),
      reclaim: (judgements, cause) =>
        ask("reclaim", [judgements, cause], (answer) => {
          for (const judgement of judgements) checkTaking(this.#world, this.#now, judgement);
          reclaims.reclaim(this.#now, judgements, answer);
        }),
    };
  }

  /** No process is really killed here: the world decides which processes live. */
  get processes(): Pick<Store["processes"], "probe" | "unregister"> {
    const ask = this.#asking("processes", this.#store.processes);
    return {
      probe: () => this.#world.inTurn(() => this.#probe()),
      unregister: (id) =>
        this.#world.alone(() => ask("unregister", [id], (answer) => this.#model.reclaims.unregister(id, answer))),
    };
  }

  get queries(): Pick<Store["queries"], "overview" | "list"> {
    const ask = this.#asking("queries", this.#store.queries);
    const check = ({ lanes }: JobOverview) => mustEqual(sumCounts(lanes), this.#model.counts({}), "the counts");
    return { overview: () => ask("overview", [], check), list: (filter) => ask("list", [filter], () => {}) };
  }

  get queues(): Pick<Store["queues"], "declare" | "setPaused"> {
    const ask = this.#asking("queues", this.#store.queues);
    return {
      declare: (declarations) => ask("declare", [declarations], () => this.#model.declare(this.#now, declarations)),
      setPaused: (queue, paused) =>
        ask("setPaused", [queue, paused], (answer) => this.#model.setPaused(this.#now, queue, paused, answer)),
    };
  }

  get locks(): Pick<Store["locks"], "acquire" | "renew" | "list" | "clean"> {
    const ask = this.#asking("locks", this.#store.locks);
    const { locks: model, reclaims, events } = this.#model;
    return {
      acquire: (name, holder, token, ttl) =>
        ask("acquire", [name, holder, token, ttl], (answer) => {
          const acquired = model.acquire({ name, holder, token, ttl, process: this.#self }, this.#now);
          mustEqual(answer, acquired, `acquiring lock ${name}`);
        }),
      renew: (name, token, ttl) =>
        ask("renew", [name, token, ttl], (answer) => {
          const renewed =
            ttl === null
              ? model.release(name, token, this.#now)
              : model.extend({ name, token, ttl, process: this.#self }, this.#now);
          mustEqual(answer, renewed, ttl === null ? `releasing lock ${name}` : `extending lock ${name}`);
        }),
      list: () => ask("list", [], (answer) => mustEqual(plain(answer), model.views(this.#now), "the locks")),
      clean: (broken) =>
        ask("clean", [broken], (answer) => {
          if (broken === undefined) return reclaims.cleanLocks(this.#now, answer);
          mustEqual(answer.removed.length === 1, model.break(broken.name), `breaking lock ${broken.name}`);
          if (answer.removed.length > 0) events.tell(this.#now, "lock.broken", broken.name);
        }),
    };
  }

  get schedules(): Store["schedules"] {
    const ask = this.#asking("schedules", this.#store.schedules);
    const { schedules: model } = this.#model;
    return {
      save: (draft) => ask("save", [draft], (answer) => model.save(this.#now, draft, answer)),
      list: (query) => ask("list", [query], (answer) => void (query?.due && model.due(this.#now, answer))),
      // It does not say which jobs it has made: those that the model does not know. No other actor makes any in this turn.
      tick: (tick) =>
        ask("tick", [tick], async (answer) => {
          const ids = await this.#ids();
          // Two ticks may share a commit: a job of this list may have become the model's while it was read.
          const unknown = ids.filter((id) => !this.#model.jobs.has(id));
          model.tick(this.#now, tick, answer, unknown);
        }),
      trigger: (key) => ask("trigger", [key], (answer) => model.trigger(this.#now, key, answer)),
      update: (key, to) =>
        ask("update", [key, to], (answer) => {
          if (to === "paused") model.pause(this.#now, key, answer);
          else if (to === "removed") model.remove(this.#now, key, answer);
          else model.resume(this.#now, { key, revision: to.revision }, to.resumed, answer);
        }),
    };
  }

  get events(): Pick<Store["events"], "trim"> {
    const ask = this.#asking("events", this.#store.events);
    return { trim: (what) => ask("trim", [what], () => {}) };
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

  renew(leases: readonly (LeaseRef & { lease: number })[]): Promise<LeaseState[]> {
    return this.#call("renew", [leases], (answer) => this.#model.renew(this.#now, this.#world.time, leases, answer));
  }

  settle(settlements: readonly Settlement[]): Promise<LeaseState[]> {
    return this.#call("settle", [settlements], (answer) => this.#model.settle(this.#now, settlements, answer));
  }

  saveProgress(reports: readonly ProgressReport[]): Promise<LeaseState[]> {
    return this.#call("saveProgress", [reports], (answer) => this.#model.saveProgress(reports, answer));
  }

  loadCheckpoint(job: JobKey): Promise<string | null> {
    return this.#call("loadCheckpoint", [job], () => {});
  }

  inspect(leases: readonly LeaseRef[]): Promise<LeaseState[]> {
    return this.#call("inspect", [leases], (answer) => {
      const expected = leases.map((lease) => this.#model.fate(lease));
      mustEqual(answer, expected, "what became of leases");
    });
  }

  outlook(from: readonly ClaimSource[]): Promise<ClaimOutlook> {
    return this.#call("outlook", [from], (answer) => checkOutlook(this.#model, this.#now, from, answer));
  }

  cancel(id: string): Promise<boolean> {
    return this.#call("cancel", [id], (answer) => this.#model.cancel(this.#now, id, answer));
  }

  retry(id: string): Promise<boolean | "key-taken"> {
    return this.#call("retry", [id], (answer) => this.#model.retry(this.#now, id, answer));
  }

  prune(filter: PruneFilter | Expired): Promise<Pruned> {
    // The model knows no minimum age.
    const asked = "expired" in filter ? { ...filter, expired: { minAge: 0 } } : filter;
    return this.#call("prune", [asked], async (answer) => {
      if (!("expired" in filter)) return this.#model.prune(this.#now, filter, answer.removed);
      // It does not say which: whatever is not there any more. No other actor removes jobs in this turn, and what it removes
      // without saying so is missed when everything is compared.
      const items = answer.removed === 0 ? [] : (await this.#store.queries.list({ limit: 10_000 })).items;
      const left = answer.removed === 0 ? this.#model.jobs : new Set(items.map(({ id }) => id));
      this.#model.expire(this.#now, filter.limit, answer, left);
    });
  }

  /** A janitor only hurries when it hears of something, and here its ticks come when the schedule says so. */
  onChange(): () => void {
    return () => {};
  }

  /** Jobs that the model does not know. */
  async strangers(): Promise<string[]> {
    return (await this.#ids()).filter((id) => !this.#model.jobs.has(id));
  }

  async #ids(): Promise<string[]> {
    const { items } = await this.#store.queries.list({ limit: 10_000 });
    return items.map(({ id }) => id);
  }

  async #probe(): Promise<ProbedProcesses> {
    this.#actor.acts();
    const entry = this.#world.trace.add(this.#actor.name, "probe", []);
    const { self, others } = await this.#store.processes.probe();
    const found = others.map(({ process }) => ({ process, life: this.#world.lifeOf(process.id) }));
    entry.answer = Object.fromEntries(found.map(({ process, life }) => [process.program, life]));
    // A process on another host that was struck off for want of signs of life registers again.
    if (this.#world.place.isSlow && this.#self !== null) this.#model.processes.add(this.#self);
    return { self, others: found };
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

  /** How to ask one of the store's nouns. */
  #asking<Noun extends object>(name: string, noun: Noun) {
    return <Method extends keyof Noun & string>(
      method: Method,
      args: Given<Noun[Method]>,
      check: (answer: Answer<Noun[Method]>) => void | Promise<void>,
    ): Promise<Answer<Noun[Method]>> => {
      const ask = (noun[method] as (...args: unknown[]) => Promise<Answer<Noun[Method]>>).bind(noun);
      return this.#world.inTurn(() => this.#asked(`${name}.${method}`, args, ask, check));
    };
  }

  #call<Method extends Asked>(
    method: Method,
    args: Given<Store[Method]>,
    check: (answer: Answer<Store[Method]>) => void | Promise<void>,
  ): Promise<Answer<Store[Method]>> {
    const ask = (this.#store[method] as (...args: unknown[]) => Promise<Answer<Store[Method]>>).bind(this.#store);
    return this.#world.inTurn(() => this.#asked(method, args, ask, check));
  }

  async #asked<Said>(
    method: string,
    args: unknown[],
    ask: (...args: unknown[]) => Promise<Said>,
    check: (answer: Said) => void | Promise<void>,
  ): Promise<Said> {
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
      // Kept, because a janitor swallows what goes wrong before a claim.
      if (error instanceof Violation) this.#world.violation ??= error;
      throw error;
    }
  }
}

/** What is asked of the store itself, and answered as it is. */
type Asked = {
  [Name in keyof CheckedStore & keyof Store]: CheckedStore[Name] extends (...args: never) => Promise<unknown> ? Name : never;
}[Exclude<keyof CheckedStore & keyof Store, "enqueueWithin">];

type Given<Method> = Method extends (...args: infer Args) => unknown ? Args : never;
type Answer<Method> = Method extends (...args: never) => Promise<infer Said> ? Said : never;

export function plain<T extends object>(rows: readonly T[]): T[] {
  return rows.map((row) => ({ ...row }));
}
