import { NOTHING_RECLAIMED } from "../../../core/jobs/retry.ts";
import type { Budget } from "../../../core/pipelines/budget.ts";
import { type BuildConditions, type BuildReason, hasEnded, moveBuild, type WantedMove } from "../../../core/pipelines/build.ts";
import { buildActionEvent, type BuildEventType, buildMoveEvent, EVENT_OF_MOVE } from "../../../core/pipelines/build-view.ts";
import { type Actor, actorText, auditedBuild, RECOVERY_ACTOR, subjectOf } from "../../../core/recovery/audit.ts";
import type { BuildKey, ProcessId } from "../../../core/text/ids.ts";
import {
  type Approval,
  type ByOperator,
  budgetOf,
  type BuildFilter,
  type BuildRow,
  factsOf,
  listingOf,
  type LockConflict,
  type LockToken,
  LOST,
  type MintedToken,
  type NewBuild,
  type NewRound,
  noSuchBuild,
  type OrchestratedBuild,
  type OrchestratorLockRow,
  REPLACED,
  type ResumeBuild,
  resumption,
  STARTED,
  type StartedBuild,
  startsNothing,
  tokenUse,
} from "../../builds.ts";
import type { KnownProcesses } from "../../processes.ts";
import type { NewJob, BuildStore } from "../../store.ts";
import type { Audit } from "../audit.ts";
import type { RecoveryLog } from "../reports.ts";
import {
  type Access,
  type Dialect,
  type Enqueue,
  type Events,
  type Reads,
  type Script,
  type Settings,
  type Tx,
  wait,
} from "../script.ts";
import { endedWithWork, OrchestratorBeats, OrchestratorLocks, Retries, Runs, Tokens } from "./build-rows.ts";

interface Parts {
  settings: Settings;
  events: Events;
  enqueue: Enqueue;
  audit: Audit;
  recoveryLog: RecoveryLog;
}

export class Builds extends OrchestratorBeats implements BuildStore {
  readonly #access: Access;
  readonly #parts: Parts;
  readonly #runs: Runs;
  readonly #locks: OrchestratorLocks;
  readonly #tokens: Tokens;
  readonly #retries: Retries;
  readonly #workLeft: string;

  constructor(dialect: Dialect, parts: Parts, access: Access) {
    super(dialect, access);
    this.#access = access;
    this.#parts = parts;
    this.#runs = new Runs(dialect);
    this.#locks = new OrchestratorLocks(dialect);
    this.#tokens = new Tokens(dialect);
    this.#retries = new Retries(dialect);
    this.#workLeft = `select 1 from (${endedWithWork(dialect)}) as ended where pipeline = :pipeline limit 1`;
  }

  list(filter: BuildFilter): Promise<{ items: BuildRow[]; next?: string }> {
    return this.#access.read((db) => this.#runs.list(db, filter));
  }

  orchestratorLocks(pipeline?: string): Promise<OrchestratorLockRow[]> {
    return this.#access.read((db) => this.#locks.list(db, pipeline));
  }

  start(build: NewBuild | ResumeBuild): Promise<StartedBuild> {
    if ("build" in build) return this.#write((tx) => this.#resume(tx, build));
    return this.#write((tx) => this.#start(tx, build), [build.listing]);
  }

  *#start(tx: Tx, wanted: NewBuild): Script<StartedBuild> {
    const { pipeline, lead } = wanted;
    const by = this.#orchestrator(lead);
    const conflict = yield* this.#locks.held(tx, pipeline);
    if (conflict !== null) return { conflict };
    const found = yield* this.#runs.lockUnended(tx, pipeline);
    const left = found && (yield* this.#crashed(tx, found, by));
    if (left?.state === "BUDGET_PAUSE") return { paused: left.id };
    if (left !== null) yield* this.#move(tx, left, REPLACED, {}, { by });
    const made = yield* this.#runs.insert(tx, wanted);
    const build = yield* this.#move(tx, made, STARTED, { holdsLock: true }, { by, more: { programHash: lead.programHash } });
    yield* this.#locks.take(tx, pipeline, build.key, lead);
    yield* this.#list(tx, build, wanted.listing);
    return yield* this.#orchestrated(tx, yield* this.#runs.get(tx, build.key));
  }

  *#resume(tx: Tx, wanted: ResumeBuild): Script<OrchestratedBuild | LockConflict> {
    const { approval, lead } = wanted;
    const found = yield* this.#runs.lock(tx, wanted.build);
    if (found === null) throw noSuchBuild(wanted.build);
    const { pipeline, key } = found;
    const by = this.#orchestrator(lead);
    const conflict = hasEnded(found.state) ? null : yield* this.#locks.held(tx, pipeline);
    if (conflict !== null) return { conflict };
    const build = yield* this.#crashed(tx, found, by);
    const { move, facts } = resumption(build, wanted);
    const budget = approval === undefined ? budgetOf(build) : yield* this.#tokens.use(tx, build, approval);
    const more = { programHash: lead.programHash, ...tokenUse(wanted).more };
    yield* this.#retries.begin(tx, build, wanted.byOperator === true);
    const resumed = yield* this.#move(tx, build, move, facts, { by, budget, more });
    yield* this.#locks.take(tx, pipeline, key, lead);
    return yield* this.#orchestrated(tx, resumed);
  }

  advance(build: string, lock: LockToken, to: "run" | NewRound): Promise<boolean> {
    if (to === "run") return this.#write((tx) => this.#letRun(tx, build, lock));
    return this.#write((tx) => this.#nextRound(tx, build, lock, to), [to.listing]);
  }

  *#letRun(tx: Tx, id: string, lock: LockToken): Script<boolean> {
    const build = yield* this.#runs.lock(tx, id);
    if (build?.state !== "ACTIVE" || (yield* this.#locks.holding(tx, build.key, lock)) === null) return false;
    // If the budget or failures have stopped the build since, its queue stays paused.
    return startsNothing(build) || (yield* this.#unpause(tx, build));
  }

  move(build: string, move: WantedMove, lock: LockToken | ByOperator, mint?: MintedToken): Promise<BuildRow | null> {
    return this.#write((tx) => this.#moveBy(tx, build, move, lock, mint));
  }

  *#moveBy(tx: Tx, id: string, wanted: WantedMove, lock: LockToken | ByOperator, mint?: MintedToken): Script<BuildRow | null> {
    const build = yield* this.#runs.lock(tx, id);
    if (build === null) return null;
    if (wanted.move === "crash" && build.state === "ACTIVE" && !("token" in lock))
      return yield* this.#breakLock(tx, build, wanted, lock);
    const held = "token" in lock ? yield* this.#locks.holding(tx, build.key, lock) : null;
    if (held === null && "token" in lock) return null;
    const by = "token" in lock ? this.#orchestrator(held as OrchestratorLockRow) : lock.by;
    const running = yield* this.#runs.running(tx, build);
    const isRetrying = yield* this.#retries.any(tx, build.key);
    const facts = factsOf(build, { holdsLock: held !== null, running, isRetrying, tokenMinted: mint !== undefined });
    const moved = yield* this.#move(tx, build, wanted, facts, { by });
    if (wanted.move === "pause" && mint !== undefined) yield* this.#tokens.mint(tx, moved, mint);
    return moved;
  }

  *#nextRound(tx: Tx, id: string, lock: LockToken, { round, listing }: NewRound): Script<boolean> {
    const build = yield* this.#runs.lock(tx, id);
    if (build === null || (yield* this.#locks.holding(tx, build.key, lock)) === null) return false;
    if (!(yield* this.#runs.nextRound(tx, build, round))) return false;
    yield* this.#list(tx, build, listing);
    return true;
  }

  authorize(build: string, use: Approval | MintedToken, by: string): Promise<BuildRow | null> {
    return this.#write((tx) => this.#authorize(tx, build, use, by));
  }

  *#authorize(tx: Tx, id: string, use: Approval | MintedToken, by: string): Script<BuildRow | null> {
    const build = yield* this.#runs.lock(tx, id);
    if (build === null) return null;
    if ("bytes" in use) {
      const { expiresAt } = yield* this.#tokens.mint(tx, build, use);
      yield* this.#act(tx, "build.token_minted", build, build, { by, more: { expiresAt } });
      return build;
    }
    const approved = yield* this.#runs.approve(tx, build, yield* this.#tokens.use(tx, build, use));
    yield* this.#act(tx, "build.approved", build, approved, { by, ...tokenUse({ approval: use }) });
    return approved;
  }

  *#breakLock(tx: Tx, build: BuildRow, wanted: WantedMove, { by, holder: only }: ByOperator): Script<BuildRow | null> {
    const { audit, events } = this.#parts;
    const { pipeline } = build;
    const [lock] = yield* this.#locks.list(tx, pipeline);
    if (lock?.build !== build.id || (only !== undefined && lock.holder !== only)) return null;
    const subject = subjectOf("lead.broken", pipeline);
    yield* audit.add(tx, { by, action: "lead.broken", subject, before: lock, after: null });
    const { holder, pid, host, program } = lock;
    yield* wait(events.act(tx, "lead.broken", pipeline, { pipeline, holder, pid, host, program, by }, build.id));
    return yield* this.#move(tx, build, wanted, { holderGone: true }, { by });
  }

  /** Reads before it writes, because it is called often, and mostly there is nothing to do. */
  async orphan(known: KnownProcesses, reason: BuildReason): Promise<BuildRow[]> {
    const found = await this.#access.read((db) => this.#locks.withoutOrchestrator(db, known));
    return found.length === 0 ? [] : this.#write((tx) => this.#orphan(tx, known, reason));
  }

  *#orphan(tx: Tx, known: KnownProcesses, reason: BuildReason): Script<BuildRow[]> {
    const left = yield* this.#locks.withoutOrchestrator(tx, known);
    const crashed = yield* this.#crash(tx, left, reason);
    const locks = left.flatMap(({ lock }) => lock ?? []);
    if (locks.length === 0) return crashed;
    const cause = `no orchestrator was heard of: ${locks.join(", ")}`;
    yield* this.#parts.recoveryLog.record(tx, cause, { ...NOTHING_RECLAIMED, locks: locks.length });
    return crashed;
  }

  /** Crashes the builds of a dead orchestrator. `recovery` is the report of that, which the audit names. */
  *crash(tx: Tx, holder: ProcessId, reason: BuildReason, recovery: number): Script<BuildRow[]> {
    return yield* this.#crash(tx, yield* this.#locks.orchestratedBy(tx, holder), reason, { recovery });
  }

  *orchestratedBy(db: Reads, holder: ProcessId): Script<string[]> {
    return (yield* this.#locks.orchestratedBy(db, holder)).map(({ build }) => build);
  }

  *withoutOrchestrator(db: Reads, known: KnownProcesses): Script<{ builds: string[]; orchestratorLocks: string[] }> {
    const left = yield* this.#locks.withoutOrchestrator(db, known);
    return { builds: left.map(({ id }) => id), orchestratorLocks: left.flatMap(({ lock }) => lock ?? []) };
  }

  *#crash(tx: Tx, builds: readonly { key: BuildKey }[], reason: BuildReason, more: object = {}): Script<BuildRow[]> {
    const crashed: BuildRow[] = [];
    for (const { key } of builds) {
      const build = yield* this.#runs.lockKey(tx, key);
      crashed.push(yield* this.#move(tx, build, { move: "crash", reason }, { holderGone: true }, { by: RECOVERY_ACTOR, more }));
    }
    return crashed;
  }

  /** Makes an ACTIVE build without an orchestrator CRASHED, before another process takes it over. */
  *#crashed(tx: Tx, build: BuildRow, by: string): Script<BuildRow> {
    if (build.state !== "ACTIVE") return build;
    return yield* this.#move(tx, build, LOST, { holderGone: true }, { by });
  }

  /** Makes a transition, and sets the orchestrator's lock and the queue. Throws if core rejects it. `more`: for the audit. */
  *#move(
    tx: Tx,
    build: BuildRow,
    wanted: WantedMove,
    facts: BuildConditions,
    how: { by: string; budget?: Budget; more?: object },
  ): Script<BuildRow> {
    const { settings, events } = this.#parts;
    const transition = moveBuild(build, wanted, facts);
    if (build.state === "ACTIVE") yield* this.#retries.end(tx, build);
    const moved = yield* this.#runs.move(tx, build, transition, how.budget ?? build.budget);
    if (moved.state === "ACTIVE") {
      yield* this.#unpause(tx, moved);
    } else {
      yield* this.#locks.release(tx, build.key);
      yield* wait(settings.pause(tx, build.queue, true));
    }
    yield* this.#record(tx, how.by, EVENT_OF_MOVE[wanted.move], build, moved, how.more);
    yield* wait(events.record(tx, buildMoveEvent(moved, transition)));
    return moved;
  }

  /** Unpauses the queue of an ACTIVE build, unless work of earlier builds is left, which no worker should claim. */
  *#unpause(tx: Tx, { pipeline, queue }: BuildRow): Script<boolean> {
    const isPaused = yield* this.#isWorkLeft(tx, pipeline);
    yield* wait(this.#parts.settings.pause(tx, queue, isPaused));
    if (!isPaused) tx.ready(queue);
    return !isPaused;
  }

  *#act(tx: Tx, type: BuildEventType, build: BuildRow, acted: BuildRow, how: { by: string; more?: object }): Script<void> {
    const { events } = this.#parts;
    yield* this.#record(tx, how.by, type, build, acted, how.more);
    yield* wait(events.record(tx, buildActionEvent(type, acted, yield* wait(events.unique(tx)))));
  }

  *#record(tx: Tx, by: string, action: BuildEventType, build: BuildRow, moved: BuildRow, more: object = {}): Script<void> {
    const [before, after] = [auditedBuild(build), { ...auditedBuild(moved), ...more }];
    yield* this.#parts.audit.add(tx, { by, action, subject: moved.id, before, after });
  }

  #orchestrator(actor: Actor): string {
    return this.#parts.audit.actor ?? actorText(actor);
  }

  *#orchestrated(tx: Tx, build: BuildRow): Script<OrchestratedBuild> {
    const isQueuePaused = yield* this.#isWorkLeft(tx, build.pipeline);
    return { ...build, isQueuePaused, retries: yield* this.#retries.any(tx, build.key) };
  }

  *#isWorkLeft(db: Reads, pipeline: string): Script<boolean> {
    return (yield* db.get(this.#workLeft, { pipeline })) !== undefined;
  }

  *#list(tx: Tx, build: BuildRow, listing: NewJob): Script<void> {
    const [answer] = yield* wait(this.#parts.enqueue.run(tx, [listingOf(build.key, listing)]));
    // A round without a listing would never end.
    if (answer === undefined || !("duplicate" in answer) || answer.duplicate) {
      throw new Error(`the listing of build ${build.id} was not taken in`);
    }
  }

  #write<T>(script: (tx: Tx) => Script<T>, jobs: readonly NewJob[] = []): Promise<T> {
    return this.#access.write("build", script, { builds: true, jobs });
  }
}
