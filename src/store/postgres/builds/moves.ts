import { auditedBuild } from "../../../core/audit.ts";
import type { Budget } from "../../../core/budget.ts";
import { type BuildFacts, moveBuild, type WantedMove } from "../../../core/build.ts";
import { buildAct, type BuildEventType, buildMoved, EVENT_OF_MOVE } from "../../../core/build-event.ts";
import type { BuildRow } from "../../builds.ts";
import type { Audit } from "../audit.ts";
import type { Events } from "../events.ts";
import type { Settings } from "../settings.ts";
import type { Tx } from "../transaction.ts";
import type { Leftovers } from "../work/leftovers.ts";
import type { Leads } from "./leads.ts";
import type { Runs } from "./runs.ts";

/**
 * Transitions of builds, each with all that belongs to it: number, audit entry, event, the lock, and whether its queue rests.
 * The build's row is locked by then.
 */
export class Moves {
  readonly #runs: Runs;
  readonly #leads: Leads;
  readonly #audit: Audit;
  readonly #events: Events;
  readonly #settings: Settings;
  readonly #leftovers: Leftovers;

  constructor(parts: { runs: Runs; leads: Leads; audit: Audit; events: Events; settings: Settings; leftovers: Leftovers }) {
    this.#runs = parts.runs;
    this.#leads = parts.leads;
    this.#audit = parts.audit;
    this.#events = parts.events;
    this.#settings = parts.settings;
    this.#leftovers = parts.leftovers;
  }

  /** Throws what core says against it. `budget`: a new one, with the move. `more` is for the audit. */
  async make(
    tx: Tx,
    build: BuildRow,
    wanted: WantedMove,
    facts: BuildFacts,
    how: { by: string; budget?: Budget; more?: object },
  ): Promise<BuildRow> {
    const transition = moveBuild(build, wanted, facts);
    const moved = await this.#runs.move(tx, build, transition, how.budget ?? build.budget);
    const active = moved.state === "ACTIVE";
    if (!active) await this.#leads.release(tx, build.key);
    if (active) await this.letRun(tx, moved);
    else await this.#settings.pause(tx, build.queue, true);
    await this.#record(tx, how.by, EVENT_OF_MOVE[wanted.move], build, moved, how.more);
    await this.#events.add(tx, [buildMoved(moved, transition)]);
    return moved;
  }

  /** The queue of an ACTIVE build goes on, unless work is left of builds before it: nobody is to claim that. */
  async letRun(tx: Tx, { pipeline, queue }: BuildRow): Promise<boolean> {
    const rests = await this.#leftovers.any(tx.rows, pipeline);
    await this.#settings.pause(tx, queue, rests);
    if (!rests) tx.ready(queue);
    return !rests;
  }

  /** What is done to a build without moving it. */
  async act(tx: Tx, type: BuildEventType, build: BuildRow, acted: BuildRow, how: { by: string; more?: object }): Promise<void> {
    await this.#record(tx, how.by, type, build, acted, how.more);
    await this.#events.add(tx, [buildAct(type, acted, await this.#events.number(tx))]);
  }

  #record(tx: Tx, by: string, action: BuildEventType, before: BuildRow, after: BuildRow, more: object = {}): Promise<void> {
    const told = { before: auditedBuild(before), after: { ...auditedBuild(after), ...more } };
    return this.#audit.add(tx, { by, action, subject: after.id, ...told });
  }
}
