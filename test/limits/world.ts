import assert from "node:assert/strict";
import type { TestContext } from "node:test";
import { type LimitRule, countFree } from "../../src/core/limits/limit.ts";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import type { Clock } from "../../src/core/text/duration.ts";
import type { Claimed, ClaimSource, Declaration, NewJob, Store } from "../../src/store/store.ts";
import { type TestClock, testClock } from "../../src/testing/index.ts";
import { badJob, ERROR, judged, newJob } from "../conformance/parts.ts";
import { randomFrom, SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { type JobRow, type LimitRows, type Look, usageOf } from "./rows.ts";
import { countJobs } from "../../src/store/queries.ts";

/** Worlds of each seed. */
const WORLDS = LONG ? 25 : 1;
const STEPS = 150;

/** Two stores on one database, and what its rows say. */
export interface Ground {
  stores: [Store, Store];
  rows: LimitRows;
  /** Jobs in a user's own transaction, in two parts of which one is undone; the answers to the other. */
  transact(store: Store, parts: { jobs: NewJob[]; undone: boolean }[]): Promise<{ id: string }[]>;
  close(): Promise<void>;
}

export type MakeGround = (clock: Clock, random: () => number) => Promise<Ground>;

/** Worlds, each with a seed of its own: from the fixed seed and from the fresh one on, or the one of `HOLDFAST_SEED`. */
export async function tryWorlds(t: TestContext, make: MakeGround, command: string): Promise<void> {
  const each = SEEDS.length === 1 ? 1 : WORLDS;
  const seeds = SEEDS.flatMap((first) => Array.from({ length: each }, (_, i) => first + i));
  let claims = 0;
  for (const seed of seeds) {
    const world = await World.make(seed, make);
    try {
      for (let step = 0; step < STEPS; step++) await world.step();
      await world.workOff();
      claims += world.claims;
    } catch (error) {
      t.diagnostic(`the seed was ${seed}: HOLDFAST_SEED=${seed} ${command}`);
      t.diagnostic(world.done.slice(-30).join("\n"));
      throw error;
    } finally {
      await world.close();
    }
  }
  t.diagnostic(`${seeds.length} runs, ${claims} jobs claimed`);
}

/** Jobs of these names, in these queues, some of them limited; two stores on one file; every step is checked. */
class World {
  readonly done: string[] = [];
  claims = 0;
  readonly #random: () => number;
  readonly #ground: Ground;
  readonly #clock: TestClock;
  readonly #stores: Store[];
  readonly #rows: LimitRows;
  readonly #declarations = new Map<string, Declaration[]>();
  #ids: string[] = [];
  #held: Claimed[] = [];
  #setBack = false;
  readonly #names = ["a", "b", "c"];

  static async make(seed: number, make: MakeGround): Promise<World> {
    const random = randomFrom(seed);
    const clock = testClock();
    return new World(random, clock, await make(clock, random));
  }

  private constructor(random: () => number, clock: TestClock, ground: Ground) {
    this.#random = random;
    this.#clock = clock;
    this.#ground = ground;
    this.#rows = ground.rows;
    this.#stores = [...ground.stores];
    for (const name of this.#names) this.#declareAnew(name);
  }

  async close(): Promise<void> {
    await this.#ground.close();
  }

  async step(): Promise<void> {
    // For a while it is the same store: its cache must be right as long as no other store writes.
    if (this.#random() < 0.1) this.#stores.reverse();
    const [store] = this.#stores as [Store];
    const dice = this.#random();
    if (dice < 0.22) await this.#enqueue(store);
    else if (dice < 0.5) await this.#claim(store);
    else if (dice < 0.7) await this.#settle(store);
    else if (dice < 0.76) await this.#reclaim(store);
    else if (dice < 0.81) await this.#cancel(store);
    else if (dice < 0.85) await this.#retry(store);
    else if (dice < 0.93) this.#pass();
    else if (dice < 0.95) await this.#redeclare(store);
    else if (dice < 0.97) await this.#pause(store);
    else if (dice < 0.985) await this.#transact(store);
    else await this.#badTurn(store);
    await this.#rows.check(this.#clock.now(), this.#setBack);
  }

  /** Everything comes to an end once time passes and all workers run. */
  async workOff(): Promise<void> {
    const [store] = this.#stores as [Store];
    for (const queue of ["q", "r"]) await store.queues.setPaused(queue, false);
    await this.#endAll(store);
    for (let idle = 0, turn = 0; idle < 50; turn++) {
      const before = this.claims;
      if (turn % 10 === 0) await this.#claim(store, { all: true });
      else await this.#claimAll(store);
      await this.#endAll(store);
      if (turn % 10 === 0) await this.#rows.check(this.#clock.now(), this.#setBack);
      const { waiting, pending, running } = await countJobs(store.queries);
      if (waiting + pending + running === 0) return void (await this.#nothingLeft(store));
      idle = this.claims === before ? idle + 1 : 0;
      this.#clock.set(this.#clock.now() + (idle === 0 ? 5_000 : 60_000));
    }
    assert.fail("something is stuck");
  }

  /** Counters of idle keys do not stay: the claim that comes when their rate has recovered removes them. */
  async #nothingLeft(store: Store): Promise<void> {
    this.#clock.set(this.#clock.now() + 86_400_000);
    await this.#claim(store, { all: true });
    assert.deepEqual((await this.#rows.look()).counters, [], "no counter is left");
  }

  async #enqueue(store: Store): Promise<void> {
    const many = this.#random() < 0.04 ? 260 : 1 + this.#dice(6);
    const jobs = Array.from({ length: many }, () => this.#newJob());
    this.done.push(
      `enqueue ${jobs.map(({ name, limitKeys, priority }) => `${name}${limitKeys?.[0] ?? ""}^${priority}`).join(" ")}`,
    );
    for (const { id } of await store.enqueue(jobs, { whole: this.#random() < 0.5 })) this.#ids.push(id);
  }

  async #claim(store: Store, { all = false } = {}): Promise<void> {
    const now = this.#clock.now();
    const max = all ? 1_000 : this.#random() < 0.1 ? 300 : 1 + this.#dice(8);
    const from =
      all || this.#random() < 0.6 ? [{ lease: 30_000 }] : [{ name: this.#pick(this.#names), version: 1, lease: 30_000 }];
    const before = await this.#rows.look();
    const claimed = await store.claim({ from, max, holder: null, worker: "tester" });
    this.claims += claimed.length;
    this.done.push(`claim ${max} of ${JSON.stringify(from[0])}: ${claimed.map(({ job }) => job).join(" ")}`);
    this.#held.push(...claimed);
    const after = await this.#rows.look();
    const sources: ClaimSource[] = from;
    const mine = (job: JobRow) =>
      sources.every(({ name, version }) => {
        return (name ?? job.name) === job.name && (version ?? job.version) === job.version && !before.paused.has(job.queue);
      });
    checkLimits(after, claimed);
    checkOrder(before, claimed, mine, now);
    if (claimed.length < max) checkNothingLeftOut(after, mine, now);
  }

  async #claimAll(store: Store): Promise<void> {
    const claimed = await store.claim({ from: [{ lease: 30_000 }], max: 1_000, holder: null, worker: "tester" });
    this.claims += claimed.length;
    this.#held.push(...claimed);
  }

  async #settle(store: Store): Promise<void> {
    const some = this.#takeHeld(1 + this.#dice(6));
    const settlements = some.map(({ job, fence }) => ({
      job,
      fence,
      outcome: this.#outcome(),
      followUps: this.#random() < 0.2 ? [this.#newJob()] : undefined,
    }));
    this.done.push(`settle ${settlements.map(({ job, outcome }) => `${job}:${outcome.kind}`).join(" ")}`);
    await store.settle(settlements);
    // A late settle of what is over already, and one that is no longer held, changes nothing.
    if (this.#random() < 0.1) await store.settle(settlements);
  }

  async #reclaim(store: Store): Promise<void> {
    const verdict = this.#pick(["crashed", "interrupted", "stalled"] as const);
    const some = this.#takeHeld(1 + this.#dice(3));
    this.done.push(`reclaim ${verdict} ${some.map(({ job }) => job).join(" ")}`);
    await store.recoveries.reclaim(
      some.map((lease) => judged(lease, verdict)),
      "a test",
    );
  }

  async #cancel(store: Store): Promise<void> {
    const { items } = await store.queries.list({ state: "pending", limit: 30 });
    const ids = this.#random() < 0.7 ? items.map((job) => job.id) : this.#ids;
    if (ids.length === 0) return;
    const id = this.#pick(ids);
    this.done.push(`cancel ${id}: ${String(await store.cancel(id))}`);
  }

  async #retry(store: Store): Promise<void> {
    const { items } = await store.queries.list({ state: this.#random() < 0.5 ? "failed" : "quarantined", limit: 5 });
    for (const { id } of items) this.done.push(`retry ${id}: ${String(await store.retry(id))}`);
  }

  #pass(): void {
    const back = this.#random() < 0.03;
    this.#setBack ||= back;
    const by = back ? -this.#dice(200_000) : this.#random() < 0.1 ? this.#dice(200_000) : this.#dice(1_500);
    this.#clock.set(this.#clock.now() + by);
    this.done.push(`pass ${by}`);
  }

  async #redeclare(store: Store): Promise<void> {
    const name = this.#pick(this.#names);
    const declaration = this.#declareAnew(name);
    this.done.push(`declare ${JSON.stringify(declaration)}`);
    await store.queues.declare([declaration]);
  }

  async #pause(store: Store): Promise<void> {
    const queue = this.#pick(["q", "r"]);
    const resume = this.#random() < 0.7;
    this.done.push(`${resume ? "resume" : "pause"} ${queue}`);
    await (resume ? store.queues.setPaused(queue, false) : store.queues.setPaused(queue, true));
  }

  /** In a user transaction, a part of which is undone. */
  async #transact(store: Store): Promise<void> {
    const jobs = () => Array.from({ length: 1 + this.#dice(3) }, () => this.#newJob());
    const undoLast = this.#random() < 0.5;
    this.done.push(`transact, ${undoLast ? "the last" : "the first"} part undone`);
    const parts = [
      { jobs: jobs(), undone: !undoLast },
      { jobs: jobs(), undone: undoLast },
    ];
    for (const { id } of await this.#ground.transact(store, parts)) this.#ids.push(id);
  }

  /** Calls of one turn, one of them bad: it is undone alone. */
  async #badTurn(store: Store): Promise<void> {
    this.done.push("a turn with a bad call");
    const calls = [this.#enqueue(store), this.#settle(store), store.enqueue([this.#newJob(), badJob()]), this.#enqueue(store)];
    const results = await Promise.allSettled(calls);
    assert.deepEqual(
      results.map(({ status }) => status),
      ["fulfilled", "fulfilled", "rejected", "fulfilled"],
    );
  }

  async #endAll(store: Store): Promise<void> {
    const held = this.#held.splice(0);
    await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: { kind: "succeeded", output: null } })));
    // Those whose holder was forgotten here, e.g. because a late settle was tried.
    const { items } = await store.queries.list({ state: "running", limit: 1_000 });
    assert.deepEqual(items, [], "only what is held runs");
  }

  #newJob(): NewJob {
    const name = this.#pick(this.#names);
    const job = newJob({
      name,
      queue: name === "c" ? "r" : "q",
      version: this.#random() < 0.85 ? 1 : 2,
      policy: { attempts: 2 },
    });
    if (this.#random() < 0.3) job.priority = this.#dice(4) - 1;
    if (this.#random() < 0.15) job.delay = this.#dice(3_000);
    if (this.#random() < 0.1 && this.#ids.length > 0) job.after = [this.#pick(this.#ids)];
    // An older process still says what it said; the newest word counts all the same.
    const words = this.#declarations.get(name) as Declaration[];
    const declares = this.#random() < 0.8 ? (words.at(-1) as Declaration) : this.#pick(words);
    if (declares.limits.length === 0 && declares.settings === undefined) return job;
    job.declares = declares;
    job.limitKeys = declares.limits.map(({ keyed }) => (keyed ? `k${this.#dice(3)}` : ""));
    return job;
  }

  #declareAnew(name: string): Declaration {
    const limits: LimitRule[] = [];
    if (this.#random() < 0.8) limits.push(this.#rule("job", 0, true));
    if (this.#random() < 0.3) limits.push(this.#rule("job", limits.length, false));
    const queue = name === "c" ? "r" : "q";
    const declaration: Declaration = { queue, name, limits };
    // "b" only names its queue; what "a" says about it holds for both.
    if (name === "a") {
      declaration.settings = { events: this.#random() < 0.3, keep: {} };
      if (this.#random() < 0.6) limits.push(this.#rule("queue", 0, false));
    }
    this.#declarations.set(name, [...(this.#declarations.get(name) ?? []), declaration]);
    return declaration;
  }

  #rule(of: "job" | "queue", position: number, keyed: boolean): LimitRule {
    const many = this.#random() < 0.1;
    const concurrency = this.#random() < 0.8 ? (many ? 150 : 1 + this.#dice(4)) : null;
    const rated = concurrency === null || this.#random() < 0.3;
    const rate = rated ? { starts: 1 + this.#dice(5), per: this.#pick([1_000, 60_000, 777]) } : null;
    return { of, position, keyed, concurrency, rate };
  }

  #outcome(): Outcome {
    const dice = this.#random();
    if (dice < 0.4) return { kind: "succeeded", output: null };
    if (dice < 0.5) return { kind: "succeeded", output: '"done"' };
    if (dice < 0.6) return { kind: "error", error: ERROR };
    if (dice < 0.65) return { kind: "error", error: ERROR, delay: 0 };
    if (dice < 0.7) return { kind: "error", error: ERROR, retry: false };
    if (dice < 0.8) return { kind: "later", delay: this.#dice(2_000), error: ERROR };
    if (dice < 0.85) return { kind: "unreadable", error: ERROR };
    return { kind: "released" };
  }

  #takeHeld(some: number): Claimed[] {
    const taken: Claimed[] = [];
    while (taken.length < some && this.#held.length > 0) taken.push(...this.#held.splice(this.#dice(this.#held.length), 1));
    return taken;
  }

  #dice(below: number): number {
    return Math.floor(this.#random() * below);
  }

  #pick<T>(from: readonly T[]): T {
    return from[this.#dice(from.length)] as T;
  }
}

/** Of what a claim has started, nothing is above its limit; a lowered limit stops new starts only. */
function checkLimits(after: Look, claimed: readonly Claimed[]): void {
  const keys = new Set<number>(claimed.map(({ job }) => job));
  for (const job of after.jobs) {
    if (!keys.has(job.key)) continue;
    for (const [rule, key] of job.limits) {
      const { concurrency } = after.rules.get(rule) as LimitRule;
      const { running } = usageOf(after, rule, key);
      assert.ok(
        concurrency === null || running <= concurrency,
        `${running} run under "${key}" of limit ${rule}, at most ${concurrency}`,
      );
    }
  }
}

/** Of jobs with the same limits in the same lane, those that were claimed are the next ones in turn. */
function checkOrder(before: Look, claimed: readonly Claimed[], mine: (job: JobRow) => boolean, now: number): void {
  const keys = new Set<number>(claimed.map(({ job }) => job));
  const alike = Map.groupBy(
    before.jobs.filter(
      (job) => mine(job) && job.state === "pending" && job.crashes === 0 && (job.gate !== "time" || job.runAt <= now),
    ),
    ({ lane, limits }) => `${lane} ${JSON.stringify(limits)}`,
  );
  for (const jobs of alike.values()) {
    const { limits } = jobs[0] as JobRow;
    // One that was running when a worker died may stand in for the next in turn, and be passed over here.
    if (before.jobs.some((one) => isSuspect(one) && one.lane === jobs[0]?.lane && shareLimit(one, jobs[0]))) continue;
    // Where a rate comes first, time makes room that is noticed by the next who starts.
    if (limits.length > 1 && limits.some(([rule]) => before.rules.get(rule)?.rate)) continue;
    // Beyond a window full of ready jobs, one that outranks them waits for the next claim.
    if (before.counters.some((row) => row.passed >= 100 && limits.some(([rule]) => rule === row.rule))) continue;
    const inTurn = jobs.toSorted((a, b) => b.priority - a.priority || a.key - b.key);
    const taken = inTurn.filter(({ key }) => keys.has(key)).length;
    const overtaken = inTurn.slice(0, taken).filter(({ key }) => !keys.has(key));
    assert.deepEqual(overtaken, [], `no job overtakes: ${JSON.stringify(inTurn.filter(({ key }) => keys.has(key)))}`);
  }
}

/** A claim that could take more has taken all that may start. */
function checkNothingLeftOut(after: Look, mine: (job: JobRow) => boolean, now: number): void {
  for (const job of after.jobs) {
    if (!mine(job) || job.state !== "pending" || job.crashes > 0 || (job.gate === "time" && job.runAt > now)) continue;
    const free = job.limits.every(
      ([rule, key]) => countFree(after.rules.get(rule) as LimitRule, usageOf(after, rule, key), now) > 0,
    );
    if (free && !isBehind(after, job)) assert.fail(`job ${JSON.stringify(job)} could have started`);
  }
}

/**
 * Of those that were running when a worker died, one is taken at a time, and what stands behind them waits along.
 * Or those before it have passed the limit it waits for, and wait for another one that it does not have: it is of another
 * declaration than they are. What they wait for ends some time, and then all of them go on.
 */
function isBehind(look: Look, job: JobRow): boolean {
  const before = look.jobs.filter(
    ({ state, gate, lane, key }) => state === "pending" && gate === "limit" && lane === job.lane && key !== job.key,
  );
  if (look.jobs.some((one) => isSuspect(one) && one.lane === job.lane && shareLimit(one, job))) return true;
  return job.limits.some(([rule, key]) =>
    before.some(
      ({ limits }) =>
        limits.some((one) => one[0] === rule && one[1] === key) &&
        limits.some((one) => !job.limits.some((own) => own[0] === one[0] && own[1] === one[1])),
    ),
  );
}

function isSuspect({ state, crashes }: JobRow): boolean {
  return state === "pending" && crashes > 0;
}

function shareLimit(one: JobRow, other: JobRow): boolean {
  return one.limits.some(([rule, key]) => other.limits.some((limit) => limit[0] === rule && limit[1] === key));
}
