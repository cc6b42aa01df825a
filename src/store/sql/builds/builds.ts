import type { BuildReason, WantedMove } from "../../../core/pipelines/build.ts";
import type { ProcessId } from "../../../core/text/ids.ts";
import type {
  Approval,
  BuildFilter,
  BuildRow,
  BuildStore,
  OrchestratorLockRow,
  OrchestratedBuild,
  LockConflict,
  LockToken,
  MintedToken,
  NewBuild,
  ResumeBuild,
} from "../../builds.ts";
import type { NewJob } from "../../store.ts";
import type { Access, Dialect, Enqueue, Events, Reads, Script, Settings, Tx } from "../script.ts";
import type { KnownProcesses } from "../../processes.ts";
import type { Audit } from "../audit.ts";
import type { RecoveryLog } from "../reports.ts";
import { OrchestratorLocks } from "./orchestrator-locks.ts";
import { endedWithWork } from "./leftovers.ts";
import { Moves } from "./moves.ts";
import { Orchestrate } from "./orchestrate.ts";
import { Oversee } from "./oversee.ts";
import { Retries } from "./retries.ts";
import { type BuildGuard, Runs } from "./runs.ts";
import { Tokens } from "./tokens.ts";

interface Parts {
  settings: Settings;
  events: Events;
  enqueue: Enqueue;
  audit: Audit;
  recoveryLog: RecoveryLog;
  guard: BuildGuard;
}

export class Builds implements BuildStore {
  readonly #access: Access;
  readonly #runs: Runs;
  readonly #locks: OrchestratorLocks;
  readonly #orchestrate: Orchestrate;
  readonly #oversee: Oversee;

  constructor(dialect: Dialect, parts: Parts, access: Access) {
    this.#access = access;
    const workLeft = `select 1 from (${endedWithWork(dialect)}) as ended where pipeline = :pipeline limit 1`;
    const own = {
      ...parts,
      runs: (this.#runs = new Runs(dialect, parts.guard)),
      leads: (this.#locks = new OrchestratorLocks(dialect)),
      tokens: new Tokens(dialect),
      retries: new Retries(dialect),
      *isWorkLeft(db: Reads, pipeline: string): Script<boolean> {
        return (yield* db.get(workLeft, { pipeline })) !== undefined;
      },
    };
    const moves = new Moves(own);
    this.#orchestrate = new Orchestrate({ ...own, moves });
    this.#oversee = new Oversee({ ...own, moves });
  }

  start(build: NewBuild): Promise<OrchestratedBuild | LockConflict | { paused: string }> {
    return this.#write((tx) => this.#orchestrate.start(tx, build), [build.listing]);
  }

  resume(build: ResumeBuild): Promise<OrchestratedBuild | LockConflict> {
    return this.#write((tx) => this.#orchestrate.resume(tx, build));
  }

  letRun(build: string, lock: LockToken): Promise<boolean> {
    return this.#write((tx) => this.#orchestrate.letRun(tx, build, lock));
  }

  move(build: string, move: WantedMove, lock: LockToken | { by: string }, mint?: MintedToken): Promise<BuildRow | null> {
    return this.#write((tx) => this.#orchestrate.move(tx, build, move, lock, mint));
  }

  abandon(build: string, note: string, by: string): Promise<BuildRow | null> {
    return this.#write((tx) => this.#oversee.abandon(tx, build, note, by));
  }

  approve(build: string, approval: Approval, by: string): Promise<BuildRow | null> {
    return this.#write((tx) => this.#oversee.approve(tx, build, approval, by));
  }

  mintToken(build: string, minted: MintedToken, by: string): Promise<BuildRow | null> {
    return this.#write((tx) => this.#oversee.mintToken(tx, build, minted, by));
  }

  nextRound(build: string, round: number, listing: NewJob, lock: LockToken): Promise<boolean> {
    return this.#write((tx) => this.#orchestrate.nextRound(tx, build, round, listing, lock), [listing]);
  }

  list(filter: BuildFilter): Promise<{ items: BuildRow[]; next?: string }> {
    return this.#access.read((db) => this.#runs.list(db, filter));
  }

  beat(lock: LockToken): Promise<boolean> {
    return this.#access.write("beat", (tx) => this.#locks.beat(tx, lock));
  }

  orchestratorLocks(pipeline?: string): Promise<OrchestratorLockRow[]> {
    return this.#access.read((db) => this.#locks.list(db, pipeline));
  }

  breakLead(pipeline: string, by: string, holder?: ProcessId): Promise<boolean> {
    return this.#write((tx) => this.#oversee.breakLead(tx, pipeline, by, holder));
  }

  /** Called again and again, mostly for nothing: then nothing is written. */
  async orphan(known: KnownProcesses, reason: BuildReason): Promise<BuildRow[]> {
    const found = await this.#access.read((db) => this.#locks.withoutOrchestrator(db, known));
    return found.length === 0 ? [] : this.#write((tx) => this.#oversee.orphan(tx, known, reason));
  }

  /** For burials: crashes the builds that a dead process leads, within a transaction. */
  crash(tx: Tx, holder: ProcessId, reason: BuildReason, recovery: number): Script<BuildRow[]> {
    return this.#oversee.crash(tx, holder, reason, recovery);
  }

  /** For burials: the ids of the builds that a process leads. */
  *orchestratedBy(db: Reads, holder: ProcessId): Script<string[]> {
    return (yield* this.#locks.orchestratedBy(db, holder)).map(({ build }) => build);
  }

  /** For recoveries: ACTIVE builds without a live orchestrator, and the pipelines whose lock their orchestrators have left. */
  *withoutOrchestrator(db: Reads, known: KnownProcesses): Script<{ builds: string[]; orchestratorLocks: string[] }> {
    const left = yield* this.#locks.withoutOrchestrator(db, known);
    return { builds: left.map(({ id }) => id), orchestratorLocks: left.flatMap(({ lock }) => lock ?? []) };
  }

  #write<T>(script: (tx: Tx) => Script<T>, jobs: readonly NewJob[] = []): Promise<T> {
    return this.#access.write("build", script, { builds: true, jobs });
  }
}
