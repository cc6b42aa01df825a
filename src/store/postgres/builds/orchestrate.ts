import { type Actor, actorText } from "../../../core/audit.ts";
import { hasEnded, type WantedMove } from "../../../core/build.ts";
import { budgetOf, factsOf, LOST, REPLACED, resumption, STARTED, startsNothing, tokenUse } from "../../build-moves.ts";
import { listingOf, noSuchBuild } from "../../build-row.ts";
import type { BuildRow, LedBuild, LockConflict, LockToken, MintedToken, NewBuild, ResumeBuild } from "../../builds.ts";
import type { NewJob } from "../../store.ts";
import type { Audit } from "../audit.ts";
import type { Enqueue } from "../enqueue.ts";
import type { Tx } from "../transaction.ts";
import type { Leftovers } from "../work/leftovers.ts";
import type { Leads } from "./leads.ts";
import type { Moves } from "./moves.ts";
import type { Runs } from "./runs.ts";
import type { Tokens } from "./tokens.ts";

/** What an orchestrator does to builds: under the lock of their pipeline, every time, and in the turn of builds. */
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

  async start(tx: Tx, wanted: NewBuild): Promise<LedBuild | LockConflict | { paused: string }> {
    const { pipeline, lead } = wanted;
    const by = this.#leader(lead);
    const conflict = await this.#leads.held(tx.rows, pipeline);
    if (conflict !== null) return { conflict };
    const found = await this.#runs.lockUnended(tx, pipeline);
    const left = found && (await this.#crashUnled(tx, found, by));
    if (left?.state === "BUDGET_PAUSE") return { paused: left.id };
    if (left !== null) await this.#moves.make(tx, left, REPLACED, {}, { by });
    const made = await this.#runs.insert(tx, wanted);
    const build = await this.#moves.make(tx, made, STARTED, { holdsLock: true }, { by });
    await this.#leads.take(tx, pipeline, build.key, lead);
    await this.#list(tx, build, wanted.listing);
    return this.#led(tx, await this.#runs.get(tx.rows, build.key));
  }

  async resume(tx: Tx, wanted: ResumeBuild): Promise<LedBuild | LockConflict> {
    const found = await this.#runs.lock(tx, wanted.build);
    if (found === null) throw noSuchBuild(wanted.build);
    const { pipeline, key } = found;
    const by = this.#leader(wanted.lead);
    const conflict = hasEnded(found.state) ? null : await this.#leads.held(tx.rows, pipeline);
    if (conflict !== null) return { conflict };
    const build = await this.#crashUnled(tx, found, by);
    const { move, facts } = resumption(build, wanted);
    const { approval } = wanted;
    const budget = approval === undefined ? budgetOf(build) : await this.#tokens.use(tx, build, approval);
    const resumed = await this.#moves.make(tx, build, move, facts, { by, budget, ...tokenUse(wanted) });
    await this.#leads.take(tx, pipeline, key, wanted.lead);
    return this.#led(tx, resumed);
  }

  async letRun(tx: Tx, id: string, lock: LockToken): Promise<boolean> {
    const build = await this.#runs.lock(tx, id);
    if (build === null || build.state !== "ACTIVE" || (await this.#leads.holding(tx.rows, build.key, lock)) === null)
      return false;
    // What has stopped it since is none of this.
    return startsNothing(build) || this.#moves.letRun(tx, build);
  }

  async move(
    tx: Tx,
    id: string,
    wanted: WantedMove,
    lock: LockToken | { by: string },
    mint?: MintedToken,
  ): Promise<BuildRow | null> {
    const build = await this.#runs.lock(tx, id);
    if (build === null) return null;
    const lead = "token" in lock ? await this.#leads.holding(tx.rows, build.key, lock) : null;
    if (lead === null && "token" in lock) return null;
    const by = "token" in lock ? this.#leader(lead as NonNullable<typeof lead>) : lock.by;
    const running = await this.#runs.running(tx.rows, build);
    const facts = factsOf(build, { holdsLock: lead !== null, running, tokenMinted: mint !== undefined });
    const moved = await this.#moves.make(tx, build, wanted, facts, { by });
    if (wanted.move === "pause" && mint !== undefined) await this.#tokens.mint(tx, moved, mint);
    return moved;
  }

  async nextRound(tx: Tx, id: string, round: number, listing: NewJob, lock: LockToken): Promise<boolean> {
    const build = await this.#runs.lock(tx, id);
    if (build === null || (await this.#leads.holding(tx.rows, build.key, lock)) === null) return false;
    if (!(await this.#runs.nextRound(tx, build, round))) return false;
    await this.#list(tx, build, listing);
    return true;
  }

  /** It is always the leader itself that writes, and it may be known by more than its process. */
  #leader(lead: Actor): string {
    return this.#audit.actor ?? actorText(lead);
  }

  /** Whoever takes the lock of one that is gone finds its build as that one has left it: nobody who lives leads it. */
  async #crashUnled(tx: Tx, build: BuildRow, by: string): Promise<BuildRow> {
    if (build.state !== "ACTIVE") return build;
    return this.#moves.make(tx, build, LOST, { holderGone: true }, { by });
  }

  async #led(tx: Tx, build: BuildRow): Promise<LedBuild> {
    return { ...build, rests: await this.#leftovers.any(tx.rows, build.pipeline) };
  }

  async #list(tx: Tx, build: BuildRow, listing: NewJob): Promise<void> {
    const [answer] = await this.#enqueue.run(tx, [listingOf(build.key, listing)]);
    // A round that nobody lists would never end.
    if (answer === undefined || !("duplicate" in answer) || answer.duplicate) {
      throw new Error(`the listing of build ${build.id} was not taken in`);
    }
  }
}
