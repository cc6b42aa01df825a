import type { LimitUsage } from "../store/queues.ts";
import { join, resolve } from "node:path";
import type { Readable } from "node:stream";
import type { Swept } from "../artifacts/sweep.ts";
import type { Explanation } from "../core/jobs/explain.ts";
import { checkEventTypes, type Event } from "../core/jobs/event.ts";
import type { JobFilter } from "../core/jobs/filter.ts";
import { FINISHED_STATES, type Job } from "../core/jobs/job.ts";
import { MINUTE_MS, type QueueMinute } from "../core/jobs/minutes.ts";
import { type Missed, nextTicks, type Schedule } from "../core/jobs/schedule.ts";
import type { ProcessId } from "../core/text/ids.ts";
import type { MetricsSnapshot } from "../core/recovery/metrics.ts";
import { type RecoveryPlan, type CrashRecoveryReport, findingsOf, isWorthReporting } from "../core/recovery/recovery-report.ts";
import type { WalReader } from "../core/recovery/loss.ts";
import { type AnyVersion, claimByHand, claimOfToken, type ClaimOptions, type HeldClaim, claimToken } from "../engine/claim.ts";
import { countMatching, type MatchingAction } from "../engine/all-matching.ts";
import type { Engine } from "../engine/engine.ts";
import type { OnEvent, Subscription } from "../engine/events/relays.ts";
import { bootId } from "../engine/host.ts";
import { type BackupOptions, makeBackup } from "../engine/maintenance/backups.ts";
import { type AuditVerdict, verifyAudit } from "../engine/maintenance/check.ts";
import { explainJobs, ifReadable, incompleteOf } from "../engine/client.ts";
import { toSchedule } from "../engine/schedules.ts";
import { unfinished } from "../pipelines/orchestrator.ts";
import type { Holdfast } from "../holdfast.ts";
import type { AuditEntry, AuditHead, AuditQuery } from "../store/audit.ts";
import { backupName, backupsFolder, backupsIn, type Manifest } from "../store/backups.ts";
import {
  breakOrchestratorLock,
  buildById,
  type BuildRow,
  ORCHESTRATOR_TTL_MS,
  leadOf,
  type OrchestratorLockRow,
  newestBuild,
  noSuchBuild,
} from "../store/builds.ts";
import type { EventQuery, SinkView } from "../store/events.ts";
import { type RecoveryStats, recoveryStats } from "../engine/maintenance/janitor.ts";
import type { ReclaimTotals } from "../store/recoveries.ts";
import type { QueueOverview } from "../store/queries.ts";
import type { StoreLocation } from "../store/open-store.ts";
import type { ArtifactRef } from "../store/work.ts";
import type { Life, ProcessView } from "../store/processes.ts";
import { reportOf } from "../store/recoveries.ts";
import { createFolder, modeLike } from "../store/sqlite/faults.ts";
import { type GridPage, gridPage, type SpendPoint, spendPoints } from "./build-details.ts";
import { metricsSnapshot } from "./metrics.ts";
import { type LockStatus, markDeadHolders, type OpenBuild, openBuilds, type Overview, overviewOf } from "./overview.ts";

export interface OrchestratorLock extends OrchestratorLockRow {
  life: Life | "gone";
}

export interface OldestJob {
  queue: string;
  id: string;
  createdAt: number;
  explanation: Explanation;
}

export interface Checkpointed {
  before: number;
  after: number;
  readers: readonly WalReader[];
}

export interface TokenClaim {
  token: string;
  job: Job;
  idempotencyKey: string;
  leaseExpiresAt: number;
}

const RUNS_SHOWN = 5;

export interface ScheduleDetails extends Schedule {
  missed: Missed;
  overlap: boolean;
  /** The next five ticks. The list is empty while the schedule is paused. */
  nextRuns: number[];
}

/** What operators can do beyond the public API. Commands use only the API and this class: see `test/unit/layers.test.ts`. */
export class Operator {
  readonly #hf: Holdfast;

  constructor(hf: Holdfast) {
    this.#hf = hf;
  }

  get #engine(): Engine {
    return this.#hf.engine;
  }

  /** Returns the database's time, which differs from this host's time if the clocks differ. */
  now(): number {
    return this.#engine.clock.now();
  }

  get location(): StoreLocation {
    return this.#engine.location;
  }

  refuseDamaged(): void {
    this.#engine.refuseDamaged();
  }

  incomplete(): { incomplete?: string } {
    return incompleteOf(this.#engine.store.damage);
  }

  async findings(severity: "damage" | "loss"): Promise<{ id: string; what: string }[]> {
    return (await this.#engine.store.damage.findings()).filter((finding) => finding.severity === severity);
  }

  /** Returns what the next recovery reports even if no process has died. Damage keeps recovery from writing at all. */
  async findingsToReport(): Promise<string[]> {
    const findings = (await this.#engine.store.damage.findings()).filter(({ severity }) => severity !== "damage");
    return findings.filter((finding) => isWorthReporting(findingsOf([finding]))).map(({ what }) => what);
  }

  /** Copies the write-ahead log into the database and empties it, after waiting for readers. Returns null on a server. */
  async checkpoint(waitMs: number): Promise<Checkpointed | null> {
    const { maintenance } = this.#engine.store;
    this.refuseDamaged();
    const { wal: before } = await maintenance.gauge();
    if (before === null) return null;
    await maintenance.checkpoint({ waitMs });
    const after = (await maintenance.gauge({ readers: true })).wal ?? before;
    return { before: before.bytes, after: after.bytes, readers: after.readers };
  }

  backup(path: string, options: BackupOptions): Promise<Manifest> {
    return makeBackup(this.#engine, path, options);
  }

  /** Returns a new name in this folder, or in the default folder beside the database, which is created. */
  backupPath(folder: string | undefined): string {
    const { location } = this.#engine;
    const source = location.kind === "sqlite" ? location.path : "holdfast";
    const path = resolve(folder ?? backupsFolder(source));
    if (folder === undefined && location.kind === "sqlite") createFolder(path, modeLike(source));
    return join(path, backupName(source, this.now()));
  }

  backups(): Manifest[] {
    const { location, store } = this.#engine;
    if (location.kind !== "sqlite") return [];
    return backupsIn(backupsFolder(location.path), store.databaseId).toSorted((a, b) => b.takenAt - a.takenAt);
  }

  overview(): Promise<Overview> {
    return overviewOf(this.#hf);
  }

  async explainOldest(queues: readonly string[]): Promise<OldestJob[]> {
    const asked = queues.map((queue) => ({ queue }));
    const found = (await ifReadable(() => explainJobs(this.#engine.store, asked))) ?? [];
    return found.flatMap((oldest, i) => (oldest === null ? [] : [{ queue: queues[i] as string, ...oldest }]));
  }

  openBuilds(): Promise<OpenBuild[]> {
    return openBuilds(this.#hf);
  }

  metrics(options: { backups?: { folder?: string } }): Promise<MetricsSnapshot> {
    return metricsSnapshot(this.#hf, options);
  }

  async queues(): Promise<QueueOverview[]> {
    return (await this.#engine.store.queries.overview()).queues;
  }

  minutes(last: number, of: { queue?: string; step?: number }): Promise<QueueMinute[]> {
    return this.#engine.store.queues.minutes({ from: Math.floor(this.now() / MINUTE_MS) - last + 1, ...of });
  }

  limits(limit: number): Promise<LimitUsage[]> {
    return this.#engine.store.queues.limits(limit);
  }

  setPaused(queue: string, paused: boolean): Promise<boolean> {
    const { queues } = this.#engine.store;
    return queues.setPaused(queue, paused);
  }

  countMatching(action: MatchingAction, filter: JobFilter): Promise<number> {
    return countMatching(this.#engine.store, action, filter);
  }

  /** Removes a finished job. Returns false if there is no such job in these states. */
  async remove(id: string, states = FINISHED_STATES): Promise<boolean> {
    const removed = states.map((state) => this.#engine.store.prune({ state, ids: [id], limit: 1 }));
    return (await Promise.all(removed)).some((pruned) => pruned.removed === 1);
  }

  /** Claims a job, and returns it with a token by which another process can settle it. */
  async claim(from: string | AnyVersion, options: ClaimOptions, over: AbortSignal): Promise<TokenClaim | null> {
    const claim = await claimByHand(this.#engine, from, options, { refuseClosed: () => {}, over, isWatched: false });
    if (claim === null) return null;
    const { job } = claim;
    const idempotencyKey = `${this.#engine.store.databaseId}:${job.id}`;
    // A short lease may have expired before the job was read.
    const { leaseExpiresAt = this.now() } = job;
    return { token: claimToken(this.#engine, claim), job, idempotencyKey, leaseExpiresAt };
  }

  claimOf(token: string): HeldClaim {
    return claimOfToken(this.#engine, token);
  }

  async livingProcesses(): Promise<ProcessView[]> {
    const { others } = await this.#engine.store.processes.probe();
    return others.filter(({ life }) => life === "alive" || life === "unknown").map(({ process }) => process);
  }

  /** Asks processes to stop. A process that was asked before keeps its first drain time. */
  async askToStop(ids: readonly ProcessId[], drainMs: number): Promise<void> {
    await Promise.all(ids.map((id) => this.#engine.store.processes.update(id, { stop: drainMs })));
  }

  async locks(name?: string): Promise<LockStatus[]> {
    const { store } = this.#engine;
    const [locks, { others }] = await Promise.all([store.locks.list(name), store.processes.probe(bootId())]);
    return markDeadHolders(store, locks, others);
  }

  /** Breaks a lock. With `stale`, a lock that has not expired stays. */
  async breakLock(name: string, { stale }: { stale: boolean }): Promise<boolean> {
    return (await this.#engine.store.locks.clean({ name, stale })).removed.length > 0;
  }

  async orchestratorLocks(): Promise<OrchestratorLock[]> {
    const { builds, processes } = this.#engine.store;
    const [locks, { others }] = await Promise.all([builds.orchestratorLocks(), processes.probe(bootId())]);
    const lifeOf = (holder: ProcessId): OrchestratorLock["life"] =>
      others.find(({ process }) => process.id === holder)?.life ?? "gone";
    return locks.map((lock) => Object.assign({}, lock, { life: lifeOf(lock.holder) }));
  }

  async orchestratorLockOf(build: string, pipeline: string): Promise<OrchestratorLockRow | null> {
    const lock = await leadOf(this.#engine.store.builds, pipeline);
    return lock?.build === build ? lock : null;
  }

  /** Whether the orchestrator can be alive. One on another host counts as alive until its heartbeat is too old. */
  canBeAlive({ life, beatAt }: OrchestratorLock): boolean {
    return life === "alive" || (life === "unknown" && this.now() - beatAt < ORCHESTRATOR_TTL_MS);
  }

  /** Breaks the lock, and its build becomes CRASHED. With `holder`, a lock that another process has acquired since stays. */
  breakOrchestratorLock(pipeline: string, holder?: ProcessId): Promise<boolean> {
    const { store, actor } = this.#engine;
    return breakOrchestratorLock(store.builds, pipeline, { by: actor, ...(holder === undefined ? {} : { holder }) });
  }

  /** Returns the build's row, which has more than `hf.builds.get` returns. Throws `NO_SUCH_BUILD`. */
  async build(id: string): Promise<BuildRow> {
    const row = await buildById(this.#engine.store.builds, id);
    if (row === null) throw noSuchBuild(id);
    return row;
  }

  newestBuild(pipeline: string): Promise<BuildRow | null> {
    return newestBuild(this.#engine.store.builds, pipeline);
  }

  /** Returns the pipeline's build that is paused at its budget, else its crashed build. */
  unfinishedBuild(pipeline: string): Promise<BuildRow | null> {
    return unfinished(this.#engine.store.builds, pipeline);
  }

  async grid(build: string, page: { segment: number; after?: string; limit: number }): Promise<GridPage> {
    return gridPage(this.#engine.store.work, await this.build(build), page);
  }

  async spend(build: string): Promise<SpendPoint[]> {
    return spendPoints(this.#engine.store, await this.build(build), this.now());
  }

  artifactsOf(build: string, where: { stage?: string; path?: string }): Promise<ArtifactRef[]> {
    return this.#engine.store.work.artifacts({ build, ...where });
  }

  async readArtifact(hash: string): Promise<Readable> {
    return (await this.#engine.artifacts()).stream(hash);
  }

  /** Removes artifacts that no build references and that no process stored within `olderThan` milliseconds. */
  async sweepArtifacts(olderThan: number): Promise<Swept> {
    const { store, artifactFolder } = this.#engine;
    const artifacts = await this.#engine.artifacts();
    const swept = await artifacts.sweep((hashes) => store.work.referenced(hashes), { olderThan });
    const { removed, bytes } = swept;
    if (removed > 0) {
      await store.audit.record({
        action: "artifacts.swept",
        name: String(artifactFolder.path),
        after: { removed, bytes, olderThan },
      });
    }
    return swept;
  }

  async events(query: EventQuery): Promise<Event[]> {
    checkEventTypes(query.types ?? []);
    return this.#engine.store.events.page(query);
  }

  newestEvent(): Promise<number> {
    return this.#engine.store.events.position();
  }

  followEvents(on: OnEvent, options: { types?: string[] }, from: number): Subscription {
    return this.#engine.relays.subscribe(on, options, from);
  }

  /** Calls `call` after commits of any process. A commit of another process is followed by a pause of `pauseMs`. */
  onCommit(call: () => void, { pauseMs }: { pauseMs: number }): () => void {
    return this.#engine.store.onChange(call, { pauseMs });
  }

  /** Writes the audit entry of a request before its change, so that no change lacks its user. */
  recordRequest(user: string | undefined, method: string, path: string, reason?: string): Promise<void> {
    const after = { user: user ?? null, ...(reason === undefined ? {} : { reason }) };
    return this.#engine.store.audit.record({ action: "api.called", name: `${method} ${path}`, after });
  }

  async schedules(): Promise<ScheduleDetails[]> {
    const stored = (await ifReadable(() => this.#engine.store.schedules.list())) ?? [];
    return stored.map((schedule) => {
      const { paused, missed, overlap } = schedule;
      return Object.assign(toSchedule(schedule), { missed, overlap, nextRuns: paused ? [] : nextTicks(schedule, RUNS_SHOWN) });
    });
  }

  sinks(): Promise<SinkView[]> {
    return this.#engine.store.events.sinks();
  }

  forgetSink(name: string): Promise<boolean> {
    return this.#engine.store.events.dropSink(name);
  }

  auditEntries(query: AuditQuery): Promise<AuditEntry[]> {
    return this.#engine.store.audit.page(query);
  }

  verifyAudit(heads: readonly AuditHead[]): Promise<AuditVerdict> {
    return verifyAudit(this.#engine.store, heads);
  }

  /** Reclaims what dead processes held. With `expiredFor`, reclaims leases that expired at least this many milliseconds ago. */
  async recover(expiredFor: number | null): Promise<{ done: RecoveryPlan | null; recovered: RecoveryStats }> {
    const { janitor, actor, clock } = this.#engine;
    const done = expiredFor === null ? await janitor.recover(actor) : await janitor.reclaimStale(expiredFor, actor);
    return { done, recovered: recoveryStats(done, clock.now()) };
  }

  previewRecovery(expiredFor: number | null): Promise<RecoveryPlan | null> {
    return this.#engine.janitor.preview(expiredFor ?? undefined);
  }

  async expiredLeases(limit: number): Promise<number> {
    return (await this.#engine.store.recoveries.stale({ dead: [], skewed: false, limit })).length;
  }

  async recoveryTotals(): Promise<ReclaimTotals> {
    return (await this.#engine.store.recoveries.history({ limit: 0 })).totals;
  }

  async failedReports(limit: number): Promise<CrashRecoveryReport[]> {
    const { reports } = await this.#engine.store.recoveries.history({ limit, which: "open" });
    return reports.filter(({ state }) => state === "failed").map(reportOf);
  }
}
