import { type Actor, actorText } from "../../../core/recovery/audit.ts";
import { hasEnded, type WantedMove } from "../../../core/pipelines/build.ts";
import {
  budgetOf,
  type BuildRow,
  factsOf,
  type OrchestratedBuild,
  listingOf,
  type LockConflict,
  type LockToken,
  LOST,
  type MintedToken,
  type NewBuild,
  noSuchBuild,
  REPLACED,
  type ResumeBuild,
  resumption,
  STARTED,
  startsNothing,
  tokenUse,
} from "../../builds.ts";
import type { NewJob } from "../../store.ts";
import { type Enqueue, type Script, type Tx, wait } from "../script.ts";
import type { Audit } from "../audit.ts";
import type { OrchestratorLocks } from "./orchestrator-locks.ts";
import type { MoveParts, Moves } from "./moves.ts";
import type { Retries } from "./retries.ts";
import type { Runs } from "./runs.ts";
import type { Tokens } from "./tokens.ts";

interface Parts {
  runs: Runs;
  leads: OrchestratorLocks;
  tokens: Tokens;
  moves: Moves;
  retries: Retries;
  enqueue: Enqueue;
  audit: Audit;
  isWorkLeft: MoveParts["isWorkLeft"];
}

/** What orchestrators do to builds, always as the leader of the pipeline. */
export class Orchestrate {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  *start(tx: Tx, wanted: NewBuild): Script<OrchestratedBuild | LockConflict | { paused: string }> {
    const { runs, leads, moves } = this.#parts;
    const { pipeline, lead } = wanted;
    const by = this.#leader(lead);
    const conflict = yield* leads.held(tx, pipeline);
    if (conflict !== null) return { conflict };
    const found = yield* runs.lockUnended(tx, pipeline);
    const left = found && (yield* this.#crashed(tx, found, by));
    if (left?.state === "BUDGET_PAUSE") return { paused: left.id };
    if (left !== null) yield* moves.make(tx, left, REPLACED, {}, { by });
    const made = yield* runs.insert(tx, wanted);
    const build = yield* moves.make(tx, made, STARTED, { holdsLock: true }, { by, more: { programHash: lead.programHash } });
    yield* leads.take(tx, pipeline, build.key, lead);
    yield* this.#list(tx, build, wanted.listing);
    return yield* this.#led(tx, yield* runs.get(tx, build.key));
  }

  *resume(tx: Tx, wanted: ResumeBuild): Script<OrchestratedBuild | LockConflict> {
    const { runs, leads, tokens, moves } = this.#parts;
    const found = yield* runs.lock(tx, wanted.build);
    if (found === null) throw noSuchBuild(wanted.build);
    const { pipeline, key } = found;
    const by = this.#leader(wanted.lead);
    const conflict = hasEnded(found.state) ? null : yield* leads.held(tx, pipeline);
    if (conflict !== null) return { conflict };
    const build = yield* this.#crashed(tx, found, by);
    const { move, facts } = resumption(build, wanted);
    const { approval } = wanted;
    const budget = approval === undefined ? budgetOf(build) : yield* tokens.use(tx, build, approval);
    const more = { programHash: wanted.lead.programHash, ...tokenUse(wanted).more };
    const resumed = yield* moves.make(tx, build, move, facts, { by, budget, more });
    yield* leads.take(tx, pipeline, key, wanted.lead);
    return yield* this.#led(tx, resumed);
  }

  *letRun(tx: Tx, id: string, lock: LockToken): Script<boolean> {
    const { runs, leads, moves } = this.#parts;
    const build = yield* runs.lock(tx, id);
    if (build === null || build.state !== "ACTIVE" || (yield* leads.holding(tx, build.key, lock)) === null) return false;
    // If the budget or failures have stopped it since, its queue stays paused.
    return startsNothing(build) || (yield* moves.letRun(tx, build));
  }

  *move(tx: Tx, id: string, wanted: WantedMove, lock: LockToken | { by: string }, mint?: MintedToken): Script<BuildRow | null> {
    const { runs, leads, tokens, moves, retries } = this.#parts;
    const build = yield* runs.lock(tx, id);
    if (build === null) return null;
    const lead = "token" in lock ? yield* leads.holding(tx, build.key, lock) : null;
    if (lead === null && "token" in lock) return null;
    const by = "token" in lock ? this.#leader(lead as NonNullable<typeof lead>) : lock.by;
    const running = yield* runs.running(tx, build);
    const isRetrying = yield* retries.any(tx, build.key);
    const facts = factsOf(build, { holdsLock: lead !== null, running, isRetrying, tokenMinted: mint !== undefined });
    const moved = yield* moves.make(tx, build, wanted, facts, { by });
    if (wanted.move === "pause" && mint !== undefined) yield* tokens.mint(tx, moved, mint);
    return moved;
  }

  *nextRound(tx: Tx, id: string, round: number, listing: NewJob, lock: LockToken): Script<boolean> {
    const { runs, leads } = this.#parts;
    const build = yield* runs.lock(tx, id);
    if (build === null || (yield* leads.holding(tx, build.key, lock)) === null) return false;
    if (!(yield* runs.nextRound(tx, build, round))) return false;
    yield* this.#list(tx, build, listing);
    return true;
  }

  /** It is always the leader itself that writes, and it may be known by more than its process. */
  #leader(lead: Actor): string {
    return this.#parts.audit.actor ?? actorText(lead);
  }

  /** An ACTIVE build without an orchestrator is CRASHED before another one takes it over. */
  *#crashed(tx: Tx, build: BuildRow, by: string): Script<BuildRow> {
    if (build.state !== "ACTIVE") return build;
    return yield* this.#parts.moves.make(tx, build, LOST, { holderGone: true }, { by });
  }

  *#led(tx: Tx, build: BuildRow): Script<OrchestratedBuild> {
    const { isWorkLeft, retries } = this.#parts;
    return { ...build, rests: yield* isWorkLeft(tx, build.pipeline), retries: yield* retries.any(tx, build.key) };
  }

  *#list(tx: Tx, build: BuildRow, listing: NewJob): Script<void> {
    const [answer] = yield* wait(this.#parts.enqueue.run(tx, [listingOf(build.key, listing)]));
    // A round without a listing would never end.
    if (answer === undefined || !("duplicate" in answer) || answer.duplicate) {
      throw new Error(`the listing of build ${build.id} was not taken in`);
    }
  }
}
