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
import type { NewJob } from "../../store.ts";
import type { Audit } from "../audit.ts";
import type { Connection } from "../driver.ts";
import type { Enqueue } from "../enqueue.ts";
import type { Events } from "../events.ts";
import type { Settings } from "../settings.ts";
import { Leftovers } from "../work/leftovers.ts";
import type { Access } from "../access.ts";
import type { Tx } from "../group-commit.ts";
import { Leads } from "./leads.ts";
import { Moves } from "./moves.ts";
import { Orchestrate } from "./orchestrate.ts";
import { Oversee } from "./oversee.ts";
import { Runs } from "./runs.ts";
import { Tokens } from "./tokens.ts";

/** Builds in a SQLite file. */
export class Builds implements BuildStore {
  readonly #access: Access;
  readonly #runs: Runs;
  readonly #leads: Leads;
  readonly #orchestrate: Orchestrate;
  readonly #oversee: Oversee;
  /** For burials: the builds that a process leads, within a transaction. */
  readonly led: {
    crash(tx: Tx, holder: ProcessId, reason: BuildReason): BuildRow[];
    ids(holder: ProcessId): string[];
  };

  constructor(db: Connection, parts: { settings: Settings; events: Events; enqueue: Enqueue; audit: Audit }, access: Access) {
    this.#access = access;
    const runs = (this.#runs = new Runs(db));
    const leads = (this.#leads = new Leads(db));
    const tokens = new Tokens(db);
    const { settings, events, enqueue, audit } = parts;
    const leftovers = new Leftovers(db);
    const moves = new Moves({ runs, leads, audit, events, settings, leftovers });
    this.#orchestrate = new Orchestrate({ runs, leads, tokens, moves, enqueue, leftovers, audit });
    const oversee = (this.#oversee = new Oversee({ runs, leads, tokens, moves, audit, events }));
    this.led = {
      crash: (tx, holder, reason) => oversee.crash(tx, holder, reason),
      ids: (holder) => leads.ledBy(holder).map(({ build }) => build),
    };
  }

  start(build: NewBuild): Promise<LedBuild | LockConflict | { paused: string }> {
    return this.#access.write("build", (tx) => this.#orchestrate.start(tx, build));
  }

  resume(build: ResumeBuild): Promise<LedBuild | LockConflict> {
    return this.#access.write("build", (tx) => this.#orchestrate.resume(tx, build));
  }

  letRun(build: string, lock: LockToken): Promise<boolean> {
    return this.#access.write("build", (tx) => this.#orchestrate.letRun(tx, build, lock));
  }

  move(build: string, move: WantedMove, lock: LockToken | { by: string }, mint?: MintedToken): Promise<BuildRow | null> {
    return this.#access.write("build", (tx) => this.#orchestrate.move(tx, build, move, lock, mint));
  }

  abandon(build: string, note: string, by: string): Promise<BuildRow | null> {
    return this.#access.write("build", (tx) => this.#oversee.abandon(tx, build, note, by));
  }

  approve(build: string, approval: Approval, by: string): Promise<BuildRow | null> {
    return this.#access.write("build", (tx) => this.#oversee.approve(tx, build, approval, by));
  }

  mintToken(build: string, minted: MintedToken, by: string): Promise<BuildRow | null> {
    return this.#access.write("build", (tx) => this.#oversee.mintToken(tx, build, minted, by));
  }

  nextRound(build: string, round: number, listing: NewJob, lock: LockToken): Promise<boolean> {
    return this.#access.write("build", (tx) => this.#orchestrate.nextRound(tx, build, round, listing, lock));
  }

  getBuild(id: string): Promise<BuildRow | null> {
    return this.#access.read(() => this.#runs.find(id));
  }

  listBuilds(filter: BuildFilter): Promise<{ items: BuildRow[]; next?: string }> {
    return this.#access.read(() => this.#runs.list(filter));
  }

  newestBuild(pipeline: string, state?: BuildState): Promise<BuildRow | null> {
    return this.#access.read(() => this.#runs.newest(pipeline, state ?? null));
  }

  newestBuilds(): Promise<BuildRow[]> {
    return this.#access.read(() => this.#runs.newestOfEach());
  }

  beat(lock: LockToken): Promise<boolean> {
    return this.#access.write("beat", (tx) => this.#leads.beat(tx, lock));
  }

  getLead(pipeline: string): Promise<LeadView | null> {
    return this.#access.read(() => this.#leads.find(pipeline));
  }

  leads(): Promise<LeadView[]> {
    return this.#access.read(() => this.#leads.all());
  }

  breakLead(pipeline: string, by: string, holder?: ProcessId): Promise<boolean> {
    return this.#access.write("build", (tx) => this.#oversee.breakLead(tx, pipeline, by, holder));
  }

  /** Asked again and again, mostly for nothing: then it takes no write lock. */
  async orphan(known: { dead: readonly ProcessId[]; alive: readonly ProcessId[] }, reason: BuildReason): Promise<BuildRow[]> {
    const found = await this.#access.read(() => this.#leads.unled(known, this.#access.now()));
    return found.length === 0 ? [] : this.#access.write("build", (tx) => this.#oversee.orphan(tx, known, reason));
  }
}
