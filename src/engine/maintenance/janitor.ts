import type { Clock } from "../../core/text/duration.ts";
import type { ProcessId } from "../../core/text/ids.ts";
import {
  type HeldLease,
  type Holder,
  isProvenDead,
  judgeLease,
  type StaleLease,
  type LeaseVerdict,
} from "../../core/jobs/lease.ts";
import { countPlan, noCrashRecovery, orderPlan, type RecoveryPlan } from "../../core/recovery/recovery-plan.ts";
import { type Dead, findCrash, Recovery } from "./recovery.ts";
import type { Judgement } from "../../store/recoveries.ts";
import type { Life, ProcessView } from "../../store/processes.ts";
import type { Store } from "../../store/store.ts";
import { type Log, describeError, RepeatedFailure } from "../log.ts";
import type { LeaseTable } from "../leases.ts";

/** At most this many leases in one transaction. */
const CHUNK = 10_000;
/** Before a claim only a few: it must not wait for a great clean-up. */
const QUICK = 100;
const TICK = 400;
/** Where claims follow each other faster than this, not every one looks first. */
const HEALED = 50;
/** While no other process has the database open, nothing runs and nothing changes: then nothing can be left behind. */
const IDLE_TICK = 5_000;
/** How long a process of which nothing is known stays on the list. */
const DOUBT = 60_000;
/** Every so many ticks leases are looked for that expire further away than they can; it reads every running job. */
const SKEW_TICKS = 5;
/** Finished jobs that are removed in one transaction, and the pause before the next: claims come between. */
const STEP = 250;
const BREATH = 10;
/** However little is to be kept: a caller that waits for a job has to see how it ended. In milliseconds. */
const LEAST_AGE = 1_000;
/** Once a minute old events are trimmed; so few at a time that no caller waits for it. */
const TRIM_EVERY = 60_000;
const TRIM = 500;
/** Work items of ended builds that are cleared away in one commit. */
export const CLEARED = 1_000;
/** Long enough to look up what a weekend brought, and for a new consumer to be tried out on. */
const KEPT = 7 * 86_400_000;
const NO_ORPHANS = { builds: [], orchestratorLocks: [] };
/** More expired leases than there can be. */
const ALL = 10_000_000;
/** Wall and monotonic time that differ by more than this since the last look: the clock was set, or the host slept. */
const JUMP = 1_000;

export interface RecoveryStats {
  locksCleaned: number;
  entriesReclaimed: number;
  recoveryTimestamp: number;
}

/** The numbers of what a recovery has done; null: nothing. */
export function statsOf(done: RecoveryPlan | null, now: number): RecoveryStats {
  const { jobs, locks } = countPlan(done);
  return { locksCleaned: locks, entriesReclaimed: jobs, recoveryTimestamp: now };
}

/** With what a recovery would take back now. */
export interface StaleStats extends RecoveryStats {
  staleLocks: number;
  staleEntries: number;
}

/**
 * Finds what was left behind (leases of dead processes, expired leases, expired locks) and gives it back. Safe from
 * many processes at once: it judges what it read, and the store changes only what is still exactly that.
 */
export class Janitor {
  readonly #store: Store;
  readonly #leaseTable: LeaseTable;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #self: ProcessId;
  readonly #onStop: ((drain: number) => void) | null;
  /** Reclaims what dead processes held. */
  readonly recovery: Recovery;
  #stopAsked = false;
  #expiring: (() => void) | null = null;
  #lives = new Map<ProcessId, Life>();
  /** Since when nothing has been known of a process. */
  readonly #doubts = new Map<ProcessId, number>();
  /** Since when a lease has been seen expired, on the monotonic clock. */
  #sightings = new Map<number, { fence: number; expiresAt: number; since: number }>();
  #lookedAt = Number.NEGATIVE_INFINITY;
  #healedAt = Number.NEGATIVE_INFINITY;
  #lastLook: { wall: number; monotonic: number } | null = null;
  #stop: (() => void) | null = null;
  #unlisten: (() => void) | null = null;
  /** Nothing has changed since the last tick; and until when, after that one, nothing can be left behind. */
  #quiet = false;
  #rest = TICK;
  #slow = false;
  #ticking: Promise<void> | null = null;
  #ticks = 0;
  readonly #trouble = new RepeatedFailure();
  #trimmedAt = Number.NEGATIVE_INFINITY;
  #running = false;
  /** The dead were looked for since the database was opened: who is found from now on may have died beside this process. */
  #looked = false;

  constructor(parts: {
    store: Store;
    leaseTable: LeaseTable;
    clock: Clock;
    log: Log;
    self: ProcessId;
    /** Looks closer after a crash. */
    check?: ConstructorParameters<typeof Recovery>[0]["check"];
    /** An operator asks this process to stop. */
    onStop?: (drain: number) => void;
  }) {
    this.#store = parts.store;
    this.#leaseTable = parts.leaseTable;
    this.#clock = parts.clock;
    this.#log = parts.log;
    this.#self = parts.self;
    this.#onStop = parts.onStop ?? null;
    const { store, clock, log, self, check } = parts;
    this.recovery = new Recovery({ store, clock, log, self, ...(check === undefined ? {} : { check }) });
  }

  /** From now on it looks around by itself. */
  start(): void {
    if (this.#running) return;
    this.#running = true;
    // A process that opens the database, claims and dies has to be noticed as fast as ever.
    this.#unlisten = this.#store.onChange(() => this.#hurry());
    this.#schedule(TICK);
  }

  async stop(): Promise<void> {
    this.#running = false;
    this.#unlisten?.();
    this.#stop?.();
    this.#expiring?.();
    await this.#ticking;
    await this.recovery.stop();
  }

  /** What a crash has left behind is found by the process that opens next, and is back when this resolves. Never throws. */
  async open(): Promise<void> {
    try {
      const dead = await this.#dead();
      const met = await this.#store.damage.findings();
      await this.recovery.run(dead, { opening: true, alone: this.#isAlone(), met });
      await this.heal();
      await this.orphans("orphaned_at_startup");
      await this.clear(undefined, 1);
    } catch (error) {
      this.#log.warn("recovering failed; it is tried again", describeError(error));
    }
  }

  /**
   * Before a claim, and after one of a worker that finds less than it wants: a bounded look, which costs one index probe when
   * there is nothing, and on a server its answer's way; not more often than is of use. Where no worker makes the janitor look around by itself, dead processes are looked for here,
   * now and then. True: something came back. Never throws.
   */
  async heal(): Promise<boolean> {
    const now = this.#clock.monotonic();
    if (this.#running && now - this.#healedAt < HEALED) return false;
    // A handle that only reads claims nothing and reclaims nothing.
    if (this.#self === 0) return false;
    try {
      const dead = this.#running ? [] : await this.#dead();
      if (dead.length > 0) await this.#buryQuickly(dead);
      const stale = await this.#store.recoveries.stale({ dead: [], skewed: false, limit: QUICK });
      const healed = await this.#reclaim(stale, "found before a claim");
      if (stale.length === 0) this.#healedAt = now;
      return healed > 0 || dead.length > 0;
    } catch (error) {
      this.#log.warn("reclaiming before a claim failed; the claim continues", describeError(error));
      return false;
    }
  }

  /** Builds whose orchestrator is gone can be resumed by another. Costs a look when there is none. */
  async orphans(
    reason: "orphaned_at_startup" | "orchestrator_lost",
  ): Promise<Pick<RecoveryPlan, "builds" | "orchestratorLocks">> {
    const { builds } = this.#store;
    const leads = await builds.orchestratorLocks();
    const lives = (holder: ProcessId) => holder === this.#self || this.#lives.get(holder) === "alive";
    if (reason !== "orphaned_at_startup" && leads.every(({ holder }) => lives(holder))) return NO_ORPHANS;
    if (leads.length === 0 && (await builds.list({ state: "ACTIVE", limit: 1 })).items.length === 0) return NO_ORPHANS;
    if (leads.some(({ holder }) => !lives(holder))) await this.#probe();
    const of = (...wanted: Life[]) => [...this.#lives].filter(([, life]) => wanted.includes(life)).map(([id]) => id);
    // Those of the dead are crashed with their burial.
    const crashed = await builds.orphan({ dead: [], alive: [this.#self, ...of("alive")] }, reason);
    for (const { id, pipeline } of crashed)
      this.#log.info("a build lost its orchestrator; it can be resumed", { build: id, pipeline });
    const ids = crashed.map(({ id }) => id);
    const locks = leads.filter(({ build }) => ids.includes(build)).map(({ pipeline }) => pipeline);
    return { builds: ids, orchestratorLocks: locks };
  }

  /** Cancels work that builds have left undone at their end. Costs one read when there is none. */
  async clear(pipeline?: string, batches = Number.POSITIVE_INFINITY): Promise<void> {
    const clearing = { which: "idle", limit: CLEARED, ...(pipeline === undefined ? {} : { pipeline }) } as const;
    for (let i = 0; i < batches && (await this.#store.work.clearWork(clearing)) > 0; i++);
  }

  /** Recovers everything there is, now; `asked`: at whose word. Null: there was nothing. */
  async recover(asked?: string): Promise<RecoveryPlan | null> {
    const opening = !this.#looked;
    const dead = (await this.#probe()).filter(({ life }) => isProvenDead(life));
    // The dead first: a lease of theirs may have expired too, and the death is what an operator wants to read.
    const met = await this.#store.damage.findings();
    const alone = this.#isAlone();
    const crash = await this.recovery.run(dead, { opening, alone, met, ...(asked === undefined ? {} : { asked }) });
    const jobs = await this.#drain({ dead: [], skewed: true }, "lease expired");
    const locks = await this.#store.locks.clean();
    const orphans = await this.orphans("orchestrator_lost");
    await this.clear();
    return orderPlan({
      ...crash,
      builds: [...crash.builds, ...orphans.builds],
      orchestratorLocks: [...crash.orchestratorLocks, ...orphans.orchestratorLocks],
      expired: { jobs, locks },
    });
  }

  /** What `recover` would do now, or with `expiredFor` what `reclaimStale` would. Null: nothing. Nothing is written. */
  async preview(expiredFor?: number): Promise<RecoveryPlan | null> {
    const { recoveries } = this.#store;
    if (expiredFor !== undefined) {
      const leases = await this.#expiredFor(expiredFor, ALL);
      const { staleLocks } = await recoveries.preview({ dead: [], alive: [] }, leases);
      return orderPlan({ ...noCrashRecovery(), expired: { jobs: leases.length, locks: staleLocks } });
    }
    const { probed, ...crash } = await findCrash(this.#store);
    const lives = new Map(probed.map(({ process, life }) => [process.id, life]));
    const idsOf = (isWanted: (life: Life) => boolean) => [...lives].filter(([, life]) => isWanted(life)).map(([id]) => id);
    const leases = await this.#expired(lives);
    const known = { dead: idsOf(isProvenDead), alive: [this.#self, ...idsOf((life) => life === "alive")] };
    const { staleLocks, ...held } = await recoveries.preview(known, leases);
    return orderPlan({ ...crash, ...held, expired: { jobs: leases.length, locks: staleLocks } });
  }

  /** By an operator: leases that expired at least this long ago are reclaimed, whatever holds them. */
  async reclaimStale(expiredFor: number, by: string): Promise<RecoveryPlan | null> {
    let jobs = 0;
    for (;;) {
      const stale = await this.#expiredFor(expiredFor, CHUNK);
      const judged = stale.map((lease): Judgement =>
        Object.assign(lease, { verdict: lease.holder === null ? "crashed" : "stalled" } as const),
      );
      const cause = "reclaimed by an operator";
      const { entries } = judged.length === 0 ? { entries: 0 } : await this.#store.recoveries.reclaim(judged, cause, by);
      jobs += entries;
      if (entries === 0) break;
    }
    return orderPlan({ ...noCrashRecovery(), expired: { jobs, locks: await this.#store.locks.clean() } });
  }

  /** At most `limit` leases that expired at least this long ago, the oldest first. */
  async #expiredFor(expiredFor: number, limit: number): Promise<StaleLease[]> {
    const stale = await this.#store.recoveries.stale({ dead: [], skewed: false, limit });
    return stale.filter(({ left }) => left <= -expiredFor);
  }

  #hurry(): void {
    this.#quiet = false;
    if (!this.#slow || this.#ticking !== null || !this.#running) return;
    this.#stop?.();
    this.#schedule(TICK);
  }

  #schedule(tick: number): void {
    this.#slow = tick > TICK;
    this.#quiet = true;
    this.#stop = this.#clock.after(tick, () => {
      this.#ticking = this.#tick()
        .then(
          () => this.#trouble.over(),
          (error: unknown) => {
            const news = this.#trouble.news(error);
            if (news !== null) this.#log.warn("looking for dead processes failed; it is tried again", news);
          },
        )
        .finally(() => {
          this.#ticking = null;
          if (this.#running) this.#schedule(this.#quiet ? this.#rest : TICK);
        });
    });
  }

  async #tick(): Promise<void> {
    // A process that commits nothing notices only here that its files or its locks are gone.
    if (this.#store.damage.refusal("write", true) !== null) return;
    const processes = await this.#probe();
    const jumped = this.#jumped();
    // Not only after a jump: another process's clock may be wrong all the time.
    const skewed = ++this.#ticks % SKEW_TICKS === 0 || jumped;
    const dead = processes.filter(({ life }) => isProvenDead(life));
    const circumstances = { opening: false, alone: this.#isAlone() };
    if (dead.length > 0) await this.recovery.run(dead, circumstances);
    else if (skewed) await this.recovery.takeOver(circumstances);
    this.recovery.goOn();
    for (const { process, life } of processes) {
      if (life === "unknown") await this.#doubt(process);
      else this.#doubts.delete(process.id);
    }
    await this.#drain({ dead: [], skewed }, "lease expired");
    // Neither waits for the other, nor for a server's answer longer than it must.
    await Promise.all([this.#store.locks.clean(), this.orphans("orchestrator_lost"), this.clear()]);
    if (this.#onStop !== null) await this.#heed(this.#onStop);
    if (this.#expiring === null) await this.#expire();
    await this.#trim();
    this.#rest = processes.length === 0 ? await this.#restAlone() : TICK;
  }

  /** How long nothing can be left behind; a lock that runs out by then opens its queue when it does. */
  async #restAlone(): Promise<number> {
    if ((await this.#store.processes.running()).size > 0) return TICK;
    const expiries = (await this.#store.locks.list()).map(({ expiresAt }) => expiresAt - this.#clock.now());
    return Math.max(TICK, Math.min(IDLE_TICK, ...expiries));
  }

  async #heed(onStop: (drain: number) => void): Promise<void> {
    const self = (await this.#store.processes.all()).find(({ id }) => id === this.#self);
    if (self === undefined || self.stop === null || this.#stopAsked) return;
    this.#stopAsked = true;
    onStop(self.stop);
  }

  /** Removes jobs that their queue need not keep: in small steps, so that no caller waits for it. */
  async #expire(): Promise<void> {
    this.#expiring = null;
    const { more } = await this.#store.expire(STEP, LEAST_AGE);
    if (!more || !this.#running) return;
    this.#expiring = this.#clock.after(BREATH, () => {
      this.#expire().catch((error: unknown) =>
        this.#log.warn("removing old jobs failed; it is tried again", describeError(error)),
      );
    });
  }

  /** In small steps: what is handed in meanwhile comes in between. */
  async #trim(): Promise<void> {
    const now = this.#clock.monotonic();
    if (now - this.#trimmedAt < TRIM_EVERY) return;
    while (this.#running && (await this.#store.events.trim({ olderThan: KEPT, limit: TRIM })) === TRIM);
    // One that failed is tried again at the next tick.
    this.#trimmedAt = now;
  }

  /** Nothing proves its life or its death, e.g. in a copied database: struck off after a while, once it holds nothing. */
  async #doubt(process: ProcessView): Promise<void> {
    const now = this.#clock.monotonic();
    const since = this.#doubts.get(process.id) ?? now;
    this.#doubts.set(process.id, since);
    if (now - since >= DOUBT) await this.#store.processes.unregister(process.id);
  }

  async #probe(): Promise<{ process: ProcessView; life: Life }[]> {
    this.#lookedAt = this.#clock.monotonic();
    this.#looked = true;
    const processes = await this.#store.processes.probe();
    this.#lives = new Map(processes.map(({ process, life }) => [process.id, life]));
    return processes;
  }

  /** The dead, if it is time to look for them again. */
  async #dead(): Promise<Dead[]> {
    if (this.#clock.monotonic() - this.#lookedAt < TICK) return [];
    return (await this.#probe()).filter(({ life }) => isProvenDead(life));
  }

  /** As far as this process can see, no other has the database open. */
  #isAlone(): boolean {
    return [...this.#lives.values()].every(isProvenDead);
  }

  /** The rest follows while the claim continues. */
  async #buryQuickly(dead: readonly Dead[]): Promise<void> {
    const { some, all } = this.recovery.start(dead, { opening: false, alone: this.#isAlone(), first: QUICK });
    all.catch((error: unknown) => this.#log.warn("recovering failed; it is tried again", describeError(error)));
    await some;
  }

  async #drain(query: { dead: ProcessId[]; skewed: boolean }, cause: string): Promise<number> {
    let entries = 0;
    for (;;) {
      const stale = await this.#store.recoveries.stale({ ...query, limit: CHUNK });
      const reclaimed = await this.#reclaim(stale, cause);
      entries += reclaimed;
      if (reclaimed === 0 || stale.length < CHUNK) return entries;
    }
  }

  async #reclaim(stale: StaleLease[], cause: string): Promise<number> {
    const judged: Judgement[] = [];
    // Without a fresh look a process that has just started would be a stranger.
    if (stale.some(({ holder }) => holder !== null && holder !== this.#self && !this.#lives.has(holder))) await this.#probe();
    for (const lease of stale) {
      const verdict = this.#judge(lease);
      if (verdict !== "keep") judged.push(Object.assign(lease, { verdict }));
    }
    if (judged.length === 0) return 0;
    return (await this.#store.recoveries.reclaim(judged, cause)).entries;
  }

  /** The leases of processes that are not proven dead which `recover` would reclaim now. Nothing is written. */
  async #expired(lives: Map<ProcessId, Life>): Promise<StaleLease[]> {
    const now = this.#clock.monotonic();
    const stale = await this.#store.recoveries.stale({ dead: [], skewed: false, limit: ALL });
    return stale.filter((lease) => {
      const holder = this.#holderOf(lease, lives);
      const seen = this.#sightings.get(lease.job);
      const isSame = seen?.fence === lease.fence && seen.expiresAt === lease.expiresAt;
      const verdict = judgeLease(lease, holder, isSame ? now - seen.since : 0);
      return !isProvenDead(holder) && verdict !== "keep" && verdict !== "cut";
    });
  }

  #judge(lease: StaleLease): LeaseVerdict {
    const now = this.#clock.monotonic();
    let sighting = this.#sightings.get(lease.job);
    if (sighting?.fence !== lease.fence || sighting.expiresAt !== lease.expiresAt) {
      if (this.#sightings.size > CHUNK) this.#sightings.clear();
      sighting = { fence: lease.fence, expiresAt: lease.expiresAt, since: now };
      this.#sightings.set(lease.job, sighting);
    }
    const verdict = judgeLease(lease, this.#holderOf(lease), now - sighting.since);
    if (verdict !== "keep") this.#sightings.delete(lease.job);
    return verdict;
  }

  #holderOf(lease: HeldLease, lives = this.#lives): Holder {
    if (lease.holder === null) return "by-hand";
    if (lease.holder === this.#self) return this.#leaseTable.holds(lease) ? "alive" : "orphan";
    return lives.get(lease.holder) ?? "unknown";
  }

  #jumped(): boolean {
    const look = { wall: this.#clock.now(), monotonic: this.#clock.monotonic() };
    const last = this.#lastLook;
    this.#lastLook = look;
    return last === null || Math.abs(look.wall - last.wall - (look.monotonic - last.monotonic)) > JUMP;
  }
}
