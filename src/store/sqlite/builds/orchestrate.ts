import { type Actor, actorText } from "../../../core/audit.ts";
import type { Budget } from "../../../core/budget.ts";
import { hasEnded, type WantedMove } from "../../../core/build.ts";
import { budgetOf, factsOf, LOST, REPLACED, resumption, STARTED, startsNothing, tokenUse } from "../../build-moves.ts";
import { listingOf, noSuchBuild } from "../../build-row.ts";
import type { BuildRow, LedBuild, LockConflict, LockToken, MintedToken, NewBuild, ResumeBuild } from "../../builds.ts";
import type { NewJob } from "../../store.ts";
import type { Audit } from "../audit.ts";
import type { Enqueue } from "../enqueue.ts";
import type { Tx } from "../group-commit.ts";
import type { Leftovers } from "../work/leftovers.ts";
import type { Leads } from "./leads.ts";
import type { Moves } from "./moves.ts";
import type { Runs } from "./runs.ts";
import type { Tokens } from "./tokens.ts";

/** What an orchestrator does to builds: under the lock of their pipeline, every time. */
export class Orchestrate {
  readonly #runs: Runs;
  readonly #leads: Leads;
  readonly #tokens: Tokens;
  readonly #moves: Moves;
  readonly #enqueue: Enqueue;
  readonly #leftovers: Leftovers;
  readonly #audit: Audit;

  constructor(parts: {
    runs: Runs;
    leads: Leads;
    tokens: Tokens;
    moves: Moves;
    enqueue: Enqueue;
    leftovers: Leftovers;
    audit: Audit;
  }) {
    this.#runs = parts.runs;
    this.#leads = parts.leads;
    this.#tokens = parts.tokens;
    this.#moves = parts.moves;
    this.#enqueue = parts.enqueue;
    this.#leftovers = parts.leftovers;
    this.#audit = parts.audit;
  }

  start(tx: Tx, wanted: NewBuild): LedBuild | LockConflict | { paused: string } {
    const { pipeline, lead } = wanted;
    const by = this.#leader(lead);
    const conflict = this.#leads.held(pipeline);
    if (conflict !== null) return { conflict };
    this.#crashUnled(tx, pipeline, by);
    const left = this.#runs.unended(pipeline);
    if (left?.state === "BUDGET_PAUSE") return { paused: left.id };
    if (left !== null) this.#moves.make(tx, left, REPLACED, {}, { by });
    const made = this.#runs.insert(tx, wanted);
    const build = this.#moves.make(tx, made, STARTED, { holdsLock: true }, { by });
    this.#leads.take(tx, pipeline, build.key, lead);
    this.#list(tx, build, wanted.listing);
    return this.#led(this.#runs.get(build.key));
  }

  resume(tx: Tx, wanted: ResumeBuild): LedBuild | LockConflict {
    const found = this.#runs.find(wanted.build);
    if (found === null) throw noSuchBuild(wanted.build);
    const { pipeline, key } = found;
    const by = this.#leader(wanted.lead);
    const conflict = hasEnded(found.state) ? null : this.#leads.held(pipeline);
    if (conflict !== null) return { conflict };
    this.#crashUnled(tx, pipeline, by);
    const build = this.#runs.get(key);
    const { move, facts } = resumption(build, wanted);
    const budget = this.#budget(tx, build, wanted);
    const resumed = this.#moves.make(tx, build, move, facts, { by, budget, ...tokenUse(wanted) });
    this.#leads.take(tx, pipeline, key, wanted.lead);
    return this.#led(resumed);
  }

  letRun(tx: Tx, id: string, lock: LockToken): boolean {
    const build = this.#runs.find(id);
    if (build === null || build.state !== "ACTIVE" || this.#leads.holding(build.key, lock) === null) return false;
    // What has stopped it since is none of this.
    return startsNothing(build) || this.#moves.letRun(tx, build);
  }

  move(tx: Tx, id: string, wanted: WantedMove, lock: LockToken | { by: string }, mint?: MintedToken): BuildRow | null {
    const build = this.#runs.find(id);
    if (build === null) return null;
    const lead = "token" in lock ? this.#leads.holding(build.key, lock) : null;
    if (lead === null && "token" in lock) return null;
    const by = "token" in lock ? this.#leader(lead as NonNullable<typeof lead>) : lock.by;
    const running = this.#runs.running(build);
    const facts = factsOf(build, { holdsLock: lead !== null, running, tokenMinted: mint !== undefined });
    const moved = this.#moves.make(tx, build, wanted, facts, { by });
    if (wanted.move === "pause" && mint !== undefined) this.#tokens.mint(tx, moved, mint);
    return moved;
  }

  nextRound(tx: Tx, id: string, round: number, listing: NewJob, lock: LockToken): boolean {
    const build = this.#runs.find(id);
    if (build === null || this.#leads.holding(build.key, lock) === null) return false;
    if (!this.#runs.nextRound(tx, build, round)) return false;
    this.#list(tx, build, listing);
    return true;
  }

  /** It is always the leader itself that writes, and it may be known by more than its process. */
  #leader(lead: Actor): string {
    return this.#audit.actor ?? actorText(lead);
  }

  /** Whoever takes the lock of one that is gone finds its build as that one has left it. */
  #crashUnled(tx: Tx, pipeline: string, by: string): void {
    for (const key of this.#leads.unledOf(pipeline)) {
      this.#moves.make(tx, this.#runs.get(key), LOST, { holderGone: true }, { by });
    }
  }

  #led(build: BuildRow): LedBuild {
    return { ...build, rests: this.#leftovers.any(build.pipeline) };
  }

  #budget(tx: Tx, build: BuildRow, { approval }: ResumeBuild): Budget {
    return approval === undefined ? budgetOf(build) : this.#tokens.use(tx, build, approval);
  }

  #list(tx: Tx, build: BuildRow, listing: NewJob): void {
    const [answer] = this.#enqueue.run(tx, [listingOf(build.key, listing)]);
    // A round that nobody lists would never end.
    if (answer === undefined || !("duplicate" in answer) || answer.duplicate) {
      throw new Error(`the listing of build ${build.id} was not taken in`);
    }
  }
}
