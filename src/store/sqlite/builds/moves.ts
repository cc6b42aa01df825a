import { auditedBuild } from "../../../core/audit.ts";
import type { Budget } from "../../../core/budget.ts";
import { type BuildFacts, moveBuild, type WantedMove } from "../../../core/build.ts";
import { buildAct, type BuildEventType, buildMoved, EVENT_OF_MOVE } from "../../../core/build-event.ts";
import type { BuildRow } from "../../builds.ts";
import type { Audit } from "../audit.ts";
import type { Events } from "../events.ts";
import type { Tx } from "../group-commit.ts";
import type { Settings } from "../settings.ts";
import type { Leftovers } from "../work/leftovers.ts";
import type { Leads } from "./leads.ts";
import type { Runs } from "./runs.ts";

/** Transitions of builds, each with all that belongs to it: number, audit entry, event, the lock, and whether its queue rests. */
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
  make(
    tx: Tx,
    build: BuildRow,
    wanted: WantedMove,
    facts: BuildFacts,
    how: { by: string; budget?: Budget; more?: object },
  ): BuildRow {
    const transition = moveBuild(build, wanted, facts);
    const moved = this.#runs.move(tx, build, transition, how.budget ?? build.budget);
    const active = moved.state === "ACTIVE";
    if (!active) this.#leads.release(tx, build.key);
    if (active) this.letRun(tx, moved);
    else this.#settings.pause(tx, build.queue, true);
    this.#record(tx, how.by, EVENT_OF_MOVE[wanted.move], build, moved, how.more);
    this.#events.add(tx, buildMoved(moved, transition));
    return moved;
  }

  /** The queue of an ACTIVE build goes on, unless work is left of builds before it: nobody is to claim that. */
  letRun(tx: Tx, { pipeline, queue }: BuildRow): boolean {
    const rests = this.#leftovers.any(pipeline);
    this.#settings.pause(tx, queue, rests);
    if (!rests) tx.ready(queue);
    return !rests;
  }

  /** What is done to a build without moving it. */
  act(tx: Tx, type: BuildEventType, build: BuildRow, acted: BuildRow, how: { by: string; more?: object }): void {
    const number = this.#record(tx, how.by, type, build, acted, how.more);
    this.#events.add(tx, buildAct(type, acted, number));
  }

  #record(tx: Tx, by: string, action: BuildEventType, before: BuildRow, after: BuildRow, more: object = {}): number {
    const told = { before: auditedBuild(before), after: { ...auditedBuild(after), ...more } };
    return this.#audit.add(tx, { by, action, subject: after.id, ...told });
  }
}
