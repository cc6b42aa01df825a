import type { ProcessId } from "../../src/core/text/ids.ts";
import type { Life } from "../../src/store/processes.ts";
import type { Tick } from "../../src/store/queues.ts";
import type { Judgement } from "../../src/store/recoveries.ts";
import type { Change, Declaration, Store } from "../../src/store/store.ts";
import { Actor, ActorClock, type Held } from "./actor.ts";
import { CheckedStore } from "./checked-store.ts";
import { checkEverything, checkTouched } from "./invariants.ts";
import { Model } from "./model.ts";
import type { Place } from "./place.ts";
import type { Random } from "./random.ts";
import { Trace } from "./trace.ts";
import { must, mustEqual, Violation } from "./violation.ts";

const EPOCH = Date.UTC(2026, 0, 1);

/** Puts something between the simulation and the real store, to see whether the simulation notices. */
export type Break = (store: Store) => Store;

export interface WorldOptions {
  place: Place;
  random: () => number;
  break?: Break | undefined;
  /** The same between the store and the janitors. */
  misguide?: Break | undefined;
}

/** Processes, their clocks, the true time, and the store that they share. */
export class World {
  readonly model = new Model();
  readonly trace = new Trace();
  readonly actors: Actor[] = [];
  /** What definitions say, by queue and name. */
  readonly declared = new Map<string, Declaration>();
  /** True time in milliseconds: no actor sees it, the invariants are judged by it. */
  time = 0;
  /** What the host's wall clock was set forward or back by. */
  jumped = 0;
  /** No clock was set so far, and all agree. */
  isClockSane = true;
  /** An operator's `reclaimStale` is under way, which takes from the living too. */
  isOperatorForcing = false;
  /** Leases that another holder has by now, or none: late writes use them. */
  readonly spent: Held[] = [];
  /** Judged, and not yet acted upon. */
  judgements: Judgement[] = [];
  /** Ticks that an actor has seen to be due, and has not asked for yet. */
  ticks: Tick[] = [];
  violation: Violation | null = null;
  #acting: Actor | null = null;
  #store: Store | null = null;
  readonly #handles = new Map<Actor, Store>();
  readonly #options: WorldOptions;
  #changes: Change[] = [];
  #calls: Promise<unknown> = Promise.resolve();
  #alone: Promise<void> | null = null;
  #named = 0;

  constructor(options: WorldOptions) {
    this.#options = options;
  }

  get isShared(): boolean {
    return this.place.isShared;
  }

  get place(): Place {
    return this.#options.place;
  }

  get working(): Actor[] {
    return this.actors.filter(({ condition }) => condition === "working");
  }

  get workingProcesses(): Actor[] {
    return this.working.filter(({ id }) => id !== null);
  }

  /** At once, or, where answers take their time, when every call before it has its own. */
  inTurn<T>(call: () => Promise<T>): Promise<T> {
    if (!this.place.isSlow) return this.#alone === null ? call() : this.#alone.then(call);
    const answer = this.#calls.then(call);
    this.#calls = answer.catch(() => {});
    return answer;
  }

  /** Other calls wait for this one: it answers later than a call that is committed with it, and after it. */
  alone<T>(call: () => Promise<T>): Promise<T> {
    const answer = call();
    const over = answer.then(
      () => {},
      () => {},
    );
    this.#alone = over;
    void over.then(() => {
      if (this.#alone === over) this.#alone = null;
    });
    return answer;
  }

  /** What janitors do beside their ticks is done. */
  async #quiet(): Promise<void> {
    if (!this.place.isSlow) return;
    for (let calls: Promise<unknown> | null = null; calls !== this.#calls;) {
      calls = this.#calls;
      await calls;
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  actorOf(id: ProcessId): Actor {
    return this.actors.find((actor) => actor.id === id) as Actor;
  }

  lifeOf(id: ProcessId): Life {
    return this.actorOf(id).life();
  }

  /** The clock by which a handle goes. */
  nowOf(store: Store): number {
    for (const [actor, handle] of this.#handles) if (handle === store && !this.isShared) return actor.clock.now();
    return (this.#acting as Actor).clock.now();
  }

  // ── who there is ──

  /** A process starts, or (`byHand`) an operator who claims by hand. */
  async start(kind: "local" | "remote" | "byHand", random: Random): Promise<Actor> {
    const name = kind === "byHand" ? "hand" : `p${++this.#named}`;
    const clock = new ActorClock({
      trueTime: () => this.time,
      wall: () => EPOCH + this.time + this.jumped,
      bootedAt: this.time - random.int(0, 1_000_000),
    });
    const store = await this.#open(clock);
    const pid = this.#named;
    const id =
      kind === "byHand"
        ? null
        : await this.#entered(clock, () => store.processes.register({ pid, host: "h", boot: "b", program: name }));
    if (id !== null) this.model.processes.add(id);
    const acts = () => this.#act(actor);
    const checked = new CheckedStore(this, store, { name, now: () => clock.now(), acts });
    const healed = this.#options.misguide?.(checked as unknown as Store) ?? (checked as unknown as Store);
    const complain = (message: string) => void (this.violation ??= new Violation(message));
    const actor = new Actor({
      name,
      id,
      isLocal: kind !== "remote",
      store: checked,
      healed,
      quiet: () => this.#quiet(),
      clock,
      complain,
    });
    this.actors.push(actor);
    this.#handles.set(actor, store);
    this.trace.add(name, `starts (${kind})`, []);
    return actor;
  }

  /** It vanishes with all it holds. */
  async crash(actor: Actor, how: "dead" | "rebooted"): Promise<void> {
    this.trace.add(actor.name, `is ${how}`, []);
    actor.condition = how;
    const handle = this.#handles.get(actor);
    await this.#quiet();
    this.#handles.delete(actor);
    if (!this.isShared) await handle?.close();
  }

  stall(actor: Actor, millis: number): void {
    this.trace.add(actor.name, `stalls for ${millis} ms`, []);
    actor.condition = "stalled";
    actor.wakesAt = this.time + millis;
  }

  /** Sooner than it would have. */
  async wake(actor: Actor): Promise<void> {
    actor.wakesAt = this.time;
    await this.#goOn(actor, this.time);
  }

  // ── time ──

  /** Time passes: who works renews in time, who stalls does not. */
  async pass(millis: number): Promise<void> {
    await this.#quiet();
    const end = this.time + millis;
    this.trace.add("time", `passes, ${millis} ms`, []);
    for (;;) {
      const next = Math.min(...this.actors.map((actor) => nextAt(actor, end)));
      if (next > end) break;
      this.time = Math.max(this.time, next);
      for (const actor of this.actors) if (nextAt(actor, end) <= this.time) await this.#goOn(actor, end);
    }
    this.time = end;
  }

  jump(millis: number): void {
    this.trace.add("clock", `of the host jumps by ${millis} ms`, []);
    this.jumped += millis;
    this.isClockSane = false;
  }

  skew(actor: Actor, millis: number): void {
    this.trace.add("clock", `of ${actor.name} is wrong by ${millis} ms`, []);
    actor.clock.skew = millis;
    this.isClockSane = false;
  }

  // ── checks ──

  async checkStep(everything: boolean): Promise<void> {
    await this.#quiet();
    if (this.violation !== null) throw this.violation;
    this.#checkNews();
    this.spent.push(...this.#lost());
    await this.#checkEvents();
    for (const [actor, handle] of this.#handles) {
      if (this.isShared && actor !== this.#acting) continue;
      if (everything) await checkEverything(this, handle);
      else await checkTouched(handle, this.model);
    }
    this.model.touched.clear();
  }

  async #checkEvents(): Promise<void> {
    const [handle] = this.#handles.values();
    const { events } = this.model;
    if (handle !== undefined) events.check(await handle.events.page({ after: events.seq, limit: 10_000 }));
  }

  async close(): Promise<void> {
    await this.#quiet();
    for (const handle of new Set(this.#handles.values())) await handle.close();
    await this.#store?.close();
    await this.place.close();
  }

  async #open(clock: ActorClock): Promise<Store> {
    if (this.#store !== null) return this.#store;
    const shared = { now: () => (this.#acting?.clock ?? clock).now(), monotonic: () => this.time, after: () => () => {} };
    const real = await this.place.open(this.isShared ? shared : clock, this.#options.random);
    const store = this.#options.break?.(real) ?? real;
    if (this.isShared) {
      this.#store = store;
      real.onChange((change) => this.#changes.push(change));
    }
    return store;
  }

  /** The shared store uses the clock of the acting actor, so a new process must act before it is registered. */
  async #entered<T>(clock: ActorClock, enter: () => Promise<T>): Promise<T> {
    const before = this.#acting;
    this.#acting = { clock } as Actor;
    const entered = await enter();
    this.#acting = before;
    return entered;
  }

  #act(actor: Actor): void {
    this.#acting = actor;
    if (this.#store !== null) this.#store.processes.self = actor.id ?? (0 as ProcessId);
  }

  /** It wakes, if it slept, and renews what is due. */
  async #goOn(actor: Actor, end: number): Promise<void> {
    const wakes = actor.condition === "stalled";
    if (wakes) this.trace.add(actor.name, "wakes", []);
    actor.condition = "working";
    const due = [...actor.holds.values()].filter((held) => wakes || dueAt(held, end) <= this.time);
    if (due.length === 0) return;
    const fates = await actor.store.renew(due.map(({ job, fence, lease }) => ({ job, fence, lease })));
    for (const [i, held] of due.entries()) {
      if (fates[i] === "held") held.renewedAt = this.time;
      else this.drop(actor, held);
    }
  }

  drop(actor: Actor, held: Held): void {
    if (actor.holds.get(held.job)?.fence === held.fence) actor.holds.delete(held.job);
    this.spent.push(held);
  }

  /** Leases that their holders still believe in. */
  #lost(): Held[] {
    const lost: Held[] = [];
    for (const { condition, holds } of this.actors) {
      if (condition === "working" || condition === "stalled") continue;
      for (const held of holds.values()) if (this.model.fate(held) !== "held") lost.push(held);
      for (const held of lost) holds.delete(held.job);
    }
    return lost;
  }

  /** Waiting workers are notified of queues where something became claimable, and of leases that others have ended. */
  #checkNews(): void {
    const { ended, ready } = this.model;
    this.model.ended = [];
    this.model.ready = new Set();
    const changes = this.#changes;
    this.#changes = [];
    if (!this.isShared) return;
    const told = changes.flatMap((change) => change.ended.map(({ job, fence }) => `${job}:${fence}`));
    mustEqual(told.sort(), ended.sort(), "the leases that were said to have been ended");
    for (const queue of ready)
      must(
        changes.some((change) => change.ready?.has(queue)),
        () => `no worker was notified that queue ${queue} has something to claim`,
      );
  }
}

/** When something happens to an actor by itself, until `end`. */
function nextAt(actor: Actor, end: number): number {
  if (actor.condition === "stalled") return actor.wakesAt;
  if (actor.condition !== "working" || actor.id === null) return Infinity;
  let at = Infinity;
  for (const held of actor.holds.values()) at = Math.min(at, dueAt(held, end));
  return at;
}

/**
 * A lease is renewed when a third of it has passed. Of several renewals until `end` only the last one is made: no actor
 * looks in between.
 */
function dueAt({ renewedAt, lease }: Held, end: number): number {
  const interval = Math.floor(lease / 3);
  return renewedAt + interval * Math.max(1, Math.floor((end - renewedAt) / interval));
}
