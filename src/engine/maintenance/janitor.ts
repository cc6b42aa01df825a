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
import { NOTHING_RECLAIMED, type Reclaimed } from "../../core/jobs/retry.ts";
import {
  addEnds,
  countPlan,
  noCrashRecovery,
  noEnds,
  orderPlan,
  planOf,
  type RecoveryPlan,
} from "../../core/recovery/recovery-report.ts";
import { type DeadProcess, findCrash, Recovery } from "./recovery.ts";
import type { ExpiredLease, Judgement } from "../../store/recoveries.ts";
import type { Life, ProcessView } from "../../store/processes.ts";
import type { Store } from "../../store/store.ts";
import { type Log, describeError, RepeatedFailure } from "../log.ts";
import type { LeaseTable } from "../leases.ts";

const MAX_LEASES = 10_000;
/** How many leases a claim reclaims first, because it must not wait for a large clean-up. */
const MAX_LEASES_BEFORE_CLAIM = 100;
const TICK_MS = 400;
/** Claims in quicker succession share one reclaim. */
const RECLAIM_INTERVAL_MS = 50;
/** Interval while there is no other process and no running job, because nothing can be left behind then. */
const IDLE_TICK_MS = 5_000;
const MAX_UNKNOWN_MS = 60_000;
/** One of so many ticks looks for leases that expire further away than they can, which reads every running job. */
const SKEW_TICKS = 5;
const JOBS_PER_STEP = 250;
const STEP_PAUSE_MS = 10;
/** Finished jobs are kept at least this long, so that a caller that waits for a job sees how it ended. */
const MIN_AGE_MS = 1_000;
const TRIM_INTERVAL_MS = 60_000;
const EVENTS_PER_TRIM = 500;
export const ITEMS_PER_CLEAR = 1_000;
/** How long events are kept: it covers a weekend, and lets a user try out a new consumer. */
const EVENT_RETENTION_MS = 7 * 86_400_000;
const NO_ORPHANS = { builds: [], orchestratorLocks: [] };
const MAX_EXPIRED = 10_000_000;
/** A larger difference of wall and monotonic time: the clock was set, or the host slept. */
const CLOCK_JUMP_MS = 1_000;

export interface RecoveryStats {
  locksCleaned: number;
  entriesReclaimed: number;
  /** When this recovery ran, also if it reclaimed nothing. In `stats()`: when a process last reclaimed something; 0: never. */
  recoveryTimestamp: number;
}

export function recoveryStats(done: RecoveryPlan | null, now: number): RecoveryStats {
  const { jobs, locks } = countPlan(done);
  return { locksCleaned: locks, entriesReclaimed: jobs, recoveryTimestamp: now };
}

export interface StaleStats extends RecoveryStats {
  staleLocks: number;
  staleEntries: number;
}

type ReclaimedLeases = Reclaimed & { shortened: number };
const NO_LEASES: ReclaimedLeases = { ...NOTHING_RECLAIMED, shortened: 0 };

/** Reclaims what dead processes left. Many can run at once: the store changes only what is still exactly as they read it. */
export class Janitor {
  readonly #store: Store;
  readonly #leaseTable: LeaseTable;
  readonly #clock: Clock;
  readonly #log: Log;
  readonly #self: ProcessId;
  readonly #onStop: ((drain: number) => void) | null;
  readonly recovery: Recovery;
  #stopAsked = false;
  /** How long running jobs may continue after an operator asked this process to stop; null: it was not asked. */
  #drain: number | null = null;
  #expiring: (() => void) | null = null;
  #lives = new Map<ProcessId, Life>();
  readonly #unknownSince = new Map<ProcessId, number>();
  #sightings = new Map<number, { fence: number; expiresAt: number; since: number }>();
  #probedAt = Number.NEGATIVE_INFINITY;
  #reclaimedAt = Number.NEGATIVE_INFINITY;
  #lastTimes: { wall: number; monotonic: number } | null = null;
  #stop: (() => void) | null = null;
  #unlisten: (() => void) | null = null;
  #isUnchanged = false;
  #restMs = TICK_MS;
  #isResting = false;
  #ticking: Promise<void> | null = null;
  #ticks = 0;
  readonly #failure = new RepeatedFailure();
  #trimmedAt = Number.NEGATIVE_INFINITY;
  #running = false;
  /** True once this process has looked for dead ones: those that it finds later may have died while it was open. */
  #hasProbed = false;

  constructor(parts: {
    store: Store;
    leaseTable: LeaseTable;
    clock: Clock;
    log: Log;
    self: ProcessId;
    check?: ConstructorParameters<typeof Recovery>[0]["check"];
    onStop?: (drain: number) => void;
  }) {
    ({ store: this.#store, leaseTable: this.#leaseTable, clock: this.#clock, log: this.#log, self: this.#self } = parts);
    this.#onStop = parts.onStop ?? null;
    const { store, clock, log, self, check } = parts;
    this.recovery = new Recovery({ store, clock, log, self, ...(check === undefined ? {} : { check }) });
  }

  start(): void {
    if (this.#running) return;
    this.#running = true;
    // A process that opens the database, claims and dies must be noticed soon.
    this.#unlisten = this.#store.onChange(() => this.#onChange());
    this.#schedule(TICK_MS);
  }

  async stop(): Promise<void> {
    this.#running = false;
    this.#unlisten?.();
    this.#stop?.();
    this.#expiring?.();
    await this.#ticking;
    await this.recovery.stop();
  }

  /** Reclaims what a crash has left, before `open` resolves. Never throws. */
  async open(): Promise<void> {
    try {
      const dead = await this.#findDead();
      const findings = await this.#store.damage.findings();
      await this.recovery.run(dead, { opening: true, alone: this.#isAlone(), findings });
      await this.reclaimBeforeClaim();
      await this.crashOrphans("orphaned_at_startup");
      await this.clearWork(undefined, 1);
    } catch (error) {
      this.#log.warn("recovering failed; it is tried again", describeError(error));
    }
  }

  /** Reclaims a few jobs, at the cost of one index probe or round trip if there are none. True: it did. Never throws. */
  async reclaimBeforeClaim(): Promise<boolean> {
    const now = this.#clock.monotonic();
    if (this.#running && now - this.#reclaimedAt < RECLAIM_INTERVAL_MS) return false;
    // A handle that only reads reclaims nothing.
    if (this.#self === 0) return false;
    try {
      const dead = this.#running ? [] : await this.#findDead();
      if (dead.length > 0) await this.#recoverFirst(dead);
      const stale = await this.#store.recoveries.stale({ dead: [], skewed: false, limit: MAX_LEASES_BEFORE_CLAIM });
      const { entries } = await this.#reclaim(stale, "lease expired, found by the next claim");
      if (stale.length === 0) this.#reclaimedAt = now;
      return entries > 0 || dead.length > 0;
    } catch (error) {
      this.#log.warn("reclaiming before a claim failed; the claim continues", describeError(error));
      return false;
    }
  }

  /** Marks builds without a live orchestrator as CRASHED, so that another orchestrator can resume them. */
  async crashOrphans(
    reason: "orphaned_at_startup" | "orchestrator_lost",
  ): Promise<Pick<RecoveryPlan, "builds" | "orchestratorLocks">> {
    const { builds } = this.#store;
    const locks = await builds.orchestratorLocks();
    const lives = (holder: ProcessId) => holder === this.#self || this.#lives.get(holder) === "alive";
    if (reason !== "orphaned_at_startup" && locks.every(({ holder }) => lives(holder))) return NO_ORPHANS;
    if (locks.length === 0 && (await builds.list({ state: "ACTIVE", limit: 1 })).items.length === 0) return NO_ORPHANS;
    if (locks.some(({ holder }) => !lives(holder))) await this.#probe();
    const of = (...wanted: Life[]) => [...this.#lives].filter(([, life]) => wanted.includes(life)).map(([id]) => id);
    // Recovery handles the builds of the dead.
    const crashed = await builds.orphan({ dead: [], alive: [this.#self, ...of("alive")] }, reason);
    for (const { id, pipeline } of crashed)
      this.#log.info("a build lost its orchestrator; it can be resumed", { build: id, pipeline });
    const ids = crashed.map(({ id }) => id);
    const pipelines = locks.filter(({ build }) => ids.includes(build)).map(({ pipeline }) => pipeline);
    return { builds: ids, orchestratorLocks: pipelines };
  }

  /** Cancels leftover jobs of ended builds; returns how many. */
  async clearWork(pipeline?: string, batches = Number.POSITIVE_INFINITY): Promise<number> {
    const clearing = { which: "idle", limit: ITEMS_PER_CLEAR, ...(pipeline === undefined ? {} : { pipeline }) } as const;
    let cancelled = 0;
    for (let i = 0; i < batches; i++) {
      const batch = await this.#store.work.clearWork(clearing);
      if (batch === 0) break;
      cancelled += batch;
    }
    return cancelled;
  }

  /** Recovers everything now. `asked` is the operator who asked for it. Null: there was nothing to recover. */
  async recover(asked?: string): Promise<RecoveryPlan | null> {
    const opening = !this.#hasProbed;
    const dead = (await this.#probe()).filter(({ life }) => isProvenDead(life));
    // Recover from dead processes first: their leases may have expired too, and the operator wants to read of the death.
    const findings = await this.#store.damage.findings();
    const alone = this.#isAlone();
    const crash = await this.recovery.run(dead, { opening, alone, findings, ...(asked === undefined ? {} : { asked }) });
    const leases = await this.#reclaimAll({ dead: [], skewed: true }, "lease expired");
    const locks = await this.#store.locks.clean();
    const orphans = await this.crashOrphans("orchestrator_lost");
    addEnds(crash.ends, leases);
    return orderPlan({
      ...crash,
      builds: [...crash.builds, ...orphans.builds],
      orchestratorLocks: [...crash.orchestratorLocks, ...orphans.orchestratorLocks],
      expired: { jobs: leases.entries, locks: locks.removed },
      overlong: { leases: leases.shortened, locks: locks.shortened },
      leftoverJobs: await this.clearWork(),
    });
  }

  /** Returns what `recover`, or with `expiredFor` `reclaimStale`, would do now. It writes nothing. Null: nothing to do. */
  async preview(expiredFor?: number): Promise<RecoveryPlan | null> {
    const { recoveries } = this.#store;
    if (expiredFor !== undefined) {
      const leases = await this.#findExpiredFor(expiredFor, MAX_EXPIRED);
      const { staleLocks, overlongLocks, ends } = await recoveries.preview({ dead: [], alive: [] }, leases);
      const expired = { jobs: leases.length, locks: staleLocks };
      return orderPlan(planOf(noCrashRecovery(), { ends, expired, overlong: { leases: 0, locks: overlongLocks } }));
    }
    const { probed, ...crash } = await findCrash(this.#store);
    const lives = new Map(probed.map(({ process, life }) => [process.id, life]));
    const idsOf = (isWanted: (life: Life) => boolean) => [...lives].filter(([, life]) => isWanted(life)).map(([id]) => id);
    const { expired, overlong } = await this.#findReclaimable(lives);
    const [dead, rebooted] = [idsOf(isProvenDead), idsOf((life) => life === "rebooted")];
    const known = { dead, rebooted, alive: [this.#self, ...idsOf((life) => life === "alive")] };
    const { staleLocks, overlongLocks, ...held } = await recoveries.preview(known, expired);
    return orderPlan({
      ...crash,
      ...held,
      expired: { jobs: expired.length, locks: staleLocks },
      overlong: { leases: overlong, locks: overlongLocks },
    });
  }

  async reclaimStale(expiredFor: number, by: string): Promise<RecoveryPlan | null> {
    let jobs = 0;
    const ends = noEnds();
    for (;;) {
      const judged = await this.#findExpiredFor(expiredFor, MAX_LEASES);
      if (judged.length === 0) break;
      const reclaimed = await this.#store.recoveries.reclaim(judged, "reclaimed by an operator", by);
      if (reclaimed.entries === 0) break;
      jobs += reclaimed.entries;
      addEnds(ends, reclaimed);
    }
    const { removed, shortened } = await this.#store.locks.clean();
    const overlong = { leases: 0, locks: shortened };
    return orderPlan(planOf(noCrashRecovery(), { ends, expired: { jobs, locks: removed }, overlong }));
  }

  async #findExpiredFor(expiredFor: number, limit: number): Promise<(StaleLease & ExpiredLease)[]> {
    const stale = await this.#store.recoveries.stale({ dead: [], skewed: false, limit });
    return stale
      .filter(({ left }) => left <= -expiredFor)
      .map((lease) => Object.assign(lease, { verdict: lease.holder === null ? ("crashed" as const) : ("stalled" as const) }));
  }

  #onChange(): void {
    this.#isUnchanged = false;
    if (!this.#isResting || this.#ticking !== null || !this.#running) return;
    this.#stop?.();
    this.#schedule(TICK_MS);
  }

  #schedule(tick: number): void {
    this.#isResting = tick > TICK_MS;
    this.#isUnchanged = true;
    this.#stop = this.#clock.after(tick, () => {
      this.#ticking = this.#tick()
        .then(
          () => this.#failure.reset(),
          (error: unknown) => this.#failure.log(this.#log, "warn", "looking for dead processes failed; it is tried again", error),
        )
        .finally(() => {
          this.#ticking = null;
          if (this.#running) this.#schedule(this.#isUnchanged ? this.#restMs : TICK_MS);
        });
    });
  }

  async #tick(): Promise<void> {
    // A process that commits nothing notices only here that its files or its locks are gone.
    if (this.#store.damage.refusal("write", true) !== null) return;
    const processes = await this.#probe();
    const jumped = this.#hasClockJumped();
    // Look for skewed leases also without a jump: another process's clock may be wrong all the time.
    const skewed = ++this.#ticks % SKEW_TICKS === 0 || jumped;
    const dead = processes.filter(({ life }) => isProvenDead(life));
    const circumstances = { opening: false, alone: this.#isAlone() };
    if (dead.length > 0) await this.recovery.run(dead, circumstances);
    else if (skewed) await this.recovery.takeOver(circumstances);
    this.recovery.closeReport();
    for (const { process, life } of processes) {
      if (life === "unknown") await this.#unregisterUnknown(process);
      else this.#unknownSince.delete(process.id);
    }
    await this.#reclaimAll({ dead: [], skewed }, "lease expired");
    await Promise.all([this.#store.locks.clean(), this.crashOrphans("orchestrator_lost"), this.clearWork()]);
    if (this.#onStop !== null && this.#drain !== null && !this.#stopAsked) {
      this.#stopAsked = true;
      this.#onStop(this.#drain);
    }
    if (this.#expiring === null) await this.#expire();
    await this.#trim();
    this.#restMs = processes.length === 0 ? await this.#restWhenAlone() : TICK_MS;
  }

  /** Returns how long to pause: at most until the next lock expires, which opens its queue. */
  async #restWhenAlone(): Promise<number> {
    if ((await this.#store.queries.list({ state: "running", limit: 1 })).items.length > 0) return TICK_MS;
    const expiries = (await this.#store.locks.list()).map(({ expiresAt }) => expiresAt - this.#clock.now());
    return Math.max(TICK_MS, Math.min(IDLE_TICK_MS, ...expiries));
  }

  async #expire(): Promise<void> {
    this.#expiring = null;
    const { more } = await this.#store.prune({ expired: { minAge: MIN_AGE_MS }, limit: JOBS_PER_STEP });
    if (!more || !this.#running) return;
    this.#expiring = this.#clock.after(STEP_PAUSE_MS, () => {
      this.#expire().catch((error: unknown) =>
        this.#log.warn("removing old jobs failed; it is tried again", describeError(error)),
      );
    });
  }

  async #trim(): Promise<void> {
    const now = this.#clock.monotonic();
    if (now - this.#trimmedAt < TRIM_INTERVAL_MS) return;
    while (
      this.#running &&
      (await this.#store.events.trim({ olderThan: EVENT_RETENTION_MS, limit: EVENTS_PER_TRIM })) === EVENTS_PER_TRIM
    );
    // A failed trim is tried again at the next tick.
    this.#trimmedAt = now;
  }

  /** Unregisters a process that holds nothing if for a while nothing proves its life or death, as in a copied database. */
  async #unregisterUnknown(process: ProcessView): Promise<void> {
    const now = this.#clock.monotonic();
    const since = this.#unknownSince.get(process.id) ?? now;
    this.#unknownSince.set(process.id, since);
    if (now - since >= MAX_UNKNOWN_MS) await this.#store.processes.unregister(process.id);
  }

  async #probe(): Promise<{ process: ProcessView; life: Life }[]> {
    this.#probedAt = this.#clock.monotonic();
    this.#hasProbed = true;
    const { self, others } = await this.#store.processes.probe();
    this.#drain = self?.stop ?? null;
    this.#lives = new Map(others.map(({ process, life }) => [process.id, life]));
    return others;
  }

  async #findDead(): Promise<DeadProcess[]> {
    if (this.#clock.monotonic() - this.#probedAt < TICK_MS) return [];
    return (await this.#probe()).filter(({ life }) => isProvenDead(life));
  }

  #isAlone(): boolean {
    return [...this.#lives.values()].every(isProvenDead);
  }

  async #recoverFirst(dead: readonly DeadProcess[]): Promise<void> {
    const { some, all } = this.recovery.start(dead, { opening: false, alone: this.#isAlone(), first: MAX_LEASES_BEFORE_CLAIM });
    all.catch((error: unknown) => this.#log.warn("recovering failed; it is tried again", describeError(error)));
    await some;
  }

  async #reclaimAll(query: { dead: ProcessId[]; skewed: boolean }, cause: string): Promise<ReclaimedLeases> {
    const all = { ...NO_LEASES };
    for (;;) {
      const stale = await this.#store.recoveries.stale({ ...query, limit: MAX_LEASES });
      const reclaimed = await this.#reclaim(stale, cause);
      const { entries, shortened } = reclaimed;
      all.entries += entries;
      all.shortened += shortened;
      addEnds(all, reclaimed);
      if (entries + shortened === 0 || stale.length < MAX_LEASES) return all;
    }
  }

  async #reclaim(stale: StaleLease[], cause: string): Promise<ReclaimedLeases> {
    const judged: Judgement[] = [];
    // Without a fresh probe a process that has just started would be unknown.
    if (stale.some(({ holder }) => holder !== null && holder !== this.#self && !this.#lives.has(holder))) await this.#probe();
    for (const lease of stale) {
      const verdict = this.#judge(lease);
      if (verdict !== "keep") judged.push(Object.assign(lease, { verdict }));
    }
    return judged.length === 0 ? NO_LEASES : this.#store.recoveries.reclaim(judged, cause);
  }

  async #findReclaimable(lives: Map<ProcessId, Life>): Promise<{ expired: ExpiredLease[]; overlong: number }> {
    const now = this.#clock.monotonic();
    const stale = await this.#store.recoveries.stale({ dead: [], skewed: true, limit: MAX_EXPIRED });
    const expired: ExpiredLease[] = [];
    let overlong = 0;
    for (const lease of stale) {
      const holder = this.#holderOf(lease, lives);
      if (isProvenDead(holder)) continue;
      const seen = this.#sightings.get(lease.job);
      const isSame = seen?.fence === lease.fence && seen.expiresAt === lease.expiresAt;
      const verdict = judgeLease(lease, holder, isSame ? now - seen.since : 0);
      if (verdict === "cut") overlong++;
      else if (verdict !== "keep") expired.push(Object.assign(lease, { verdict }));
    }
    return { expired, overlong };
  }

  #judge(lease: StaleLease): LeaseVerdict {
    const now = this.#clock.monotonic();
    const { job, fence, expiresAt } = lease;
    const seen = this.#sightings.get(job);
    const since = seen?.fence === fence && seen.expiresAt === expiresAt ? seen.since : now;
    const verdict = judgeLease(lease, this.#holderOf(lease), now - since);
    if (verdict !== "keep") {
      this.#sightings.delete(job);
    } else {
      if (this.#sightings.size > MAX_LEASES) this.#sightings.clear();
      this.#sightings.set(job, { fence, expiresAt, since });
    }
    return verdict;
  }

  #holderOf(lease: HeldLease, lives = this.#lives): Holder {
    if (lease.holder === null) return "by-hand";
    if (lease.holder === this.#self) return this.#leaseTable.holds(lease) ? "alive" : "orphan";
    return lives.get(lease.holder) ?? "unknown";
  }

  #hasClockJumped(): boolean {
    const times = { wall: this.#clock.now(), monotonic: this.#clock.monotonic() };
    const last = this.#lastTimes;
    this.#lastTimes = times;
    return last === null || Math.abs(times.wall - last.wall - (times.monotonic - last.monotonic)) > CLOCK_JUMP_MS;
  }
}
