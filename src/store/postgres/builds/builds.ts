import type { BuildReason, BuildState, WantedMove } from "../../../core/build.ts";
import type { ProcessId } from "../../../core/ids.ts";
import type {
  Approval,
  BuildFilter,
  BuildRow,
  BuildStore,
  LeadView,
  LedBuild,
  LockConflict,
  LockToken,
  MintedToken,
  NewBuild,
  ResumeBuild,
} from "../../builds.ts";
import type { Operation } from "../../points.ts";
import type { NewJob } from "../../store.ts";
import type { Audit } from "../audit.ts";
import type { Rows } from "../driver.ts";
import type { Enqueue } from "../enqueue.ts";
import type { Events } from "../events.ts";
import type { Limits } from "../limits.ts";
import type { Settings } from "../settings.ts";
import type { Tx } from "../transaction.ts";
import { Leftovers } from "../work/leftovers.ts";
import type { Access } from "../access.ts";
import { type Known, Leads } from "./leads.ts";
import { Moves } from "./moves.ts";
import { Orchestrate } from "./orchestrate.ts";
import { Oversee } from "./oversee.ts";
import { Runs } from "./runs.ts";
import { Tokens } from "./tokens.ts";
import type { Turn } from "./turn.ts";

/** Builds on a PostgreSQL server. */
export class Builds implements BuildStore {
  readonly #access: Access;
  readonly #settings: Settings;
  readonly #limits: Limits;
  readonly #turn: Turn;
  readonly #runs: Runs;
  readonly #leads: Leads;
  readonly #orchestrate: Orchestrate;
  readonly #oversee: Oversee;
  /** For burials: the builds that a process leads, and the turn in which they are moved and the audit is written. */
  readonly led: {
    act<T>(operation: Operation, run: (tx: Tx) => Promise<T>): Promise<T>;
    crash(tx: Tx, holder: ProcessId, reason: BuildReason): Promise<BuildRow[]>;
    ids(rows: Rows, holder: ProcessId): Promise<string[]>;
  };

  constructor(
    s: string,
    parts: { settings: Settings; limits: Limits; events: Events; enqueue: Enqueue; turn: Turn; audit: Audit },
    access: Access,
  ) {
    this.#access = access;
    const { events, enqueue, audit } = parts;
    const settings = (this.#settings = parts.settings);
    this.#limits = parts.limits;
    this.#turn = parts.turn;
    const runs = (this.#runs = new Runs(s));
    const leads = (this.#leads = new Leads(s));
    const tokens = new Tokens(s);
    const leftovers = new Leftovers(s);
    const moves = new Moves({ runs, leads, audit, events, settings, leftovers });
    this.#orchestrate = new Orchestrate({ runs, leads, tokens, moves, enqueue, leftovers, audit });
    const oversee = (this.#oversee = new Oversee({ runs, leads, tokens, moves, audit, events }));
    this.led = {
      act: (operation, run) => this.#act(run, [], operation),
      crash: (tx, holder, reason) => oversee.crash(tx, holder, reason),
      ids: async (rows, holder) => (await leads.ledBy(rows, holder)).map(({ build }) => build),
    };
  }

  start(build: NewBuild): Promise<LedBuild | LockConflict | { paused: string }> {
    return this.#act((tx) => this.#orchestrate.start(tx, build), [build.listing]);
  }

  resume(build: ResumeBuild): Promise<LedBuild | LockConflict> {
    return this.#act((tx) => this.#orchestrate.resume(tx, build));
  }

  letRun(build: string, lock: LockToken): Promise<boolean> {
    return this.#act((tx) => this.#orchestrate.letRun(tx, build, lock));
  }

  move(build: string, move: WantedMove, lock: LockToken | { by: string }, mint?: MintedToken): Promise<BuildRow | null> {
    return this.#act((tx) => this.#orchestrate.move(tx, build, move, lock, mint));
  }

  abandon(build: string, note: string, by: string): Promise<BuildRow | null> {
    return this.#act((tx) => this.#oversee.abandon(tx, build, note, by));
  }

  approve(build: string, approval: Approval, by: string): Promise<BuildRow | null> {
    return this.#act((tx) => this.#oversee.approve(tx, build, approval, by));
  }

  mintToken(build: string, minted: MintedToken, by: string): Promise<BuildRow | null> {
    return this.#act((tx) => this.#oversee.mintToken(tx, build, minted, by));
  }

  nextRound(build: string, round: number, listing: NewJob, lock: LockToken): Promise<boolean> {
    return this.#act((tx) => this.#orchestrate.nextRound(tx, build, round, listing, lock), [listing]);
  }

  getBuild(id: string): Promise<BuildRow | null> {
    return this.#runs.find(this.#access.read, id);
  }

  async listBuilds(filter: BuildFilter): Promise<{ items: BuildRow[]; next?: string }> {
    return this.#runs.list(this.#access.read, filter);
  }

  newestBuild(pipeline: string, state?: BuildState): Promise<BuildRow | null> {
    return this.#runs.newest(this.#access.read, pipeline, state ?? null);
  }

  newestBuilds(): Promise<BuildRow[]> {
    return this.#runs.newestOfEach(this.#access.read);
  }

  beat(lock: LockToken): Promise<boolean> {
    return this.#access.write("beat", (tx) => this.#leads.beat(tx, lock));
  }

  getLead(pipeline: string): Promise<LeadView | null> {
    return this.#leads.find(this.#access.read, pipeline);
  }

  leads(): Promise<LeadView[]> {
    return this.#leads.all(this.#access.read);
  }

  breakLead(pipeline: string, by: string, holder?: ProcessId): Promise<boolean> {
    return this.#act((tx) => this.#oversee.breakLead(tx, pipeline, by, holder));
  }

  /** Asked again and again, mostly for nothing: then nothing is written. */
  async orphan(known: Known, reason: BuildReason): Promise<BuildRow[]> {
    const found = await this.#leads.unled(this.#access.read, this.#access.at(), known);
    return found.length === 0 ? [] : this.#act((tx) => this.#oversee.orphan(tx, known, reason));
  }

  /** In the turn of builds; before it come the locks of the queues of jobs that it adds. */
  #act<T>(run: (tx: Tx) => Promise<T>, jobs: readonly NewJob[] = [], operation: Operation = "build"): Promise<T> {
    const act = async (tx: Tx) => {
      await this.#limits.lock(tx, this.#limits.queuesOf(jobs));
      await this.#turn.take(tx);
      await this.#settings.refresh(tx);
      return run(tx);
    };
    return this.#access.write(operation, act, { wants: () => this.#limits.queuesOf(jobs) });
  }
}
