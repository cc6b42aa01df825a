import { auditedBuild } from "../../../core/recovery/audit.ts";
import type { Budget } from "../../../core/pipelines/budget.ts";
import { type BuildFacts, moveBuild, type WantedMove } from "../../../core/pipelines/build.ts";
import { buildAct, type BuildEventType, buildMoved, EVENT_OF_MOVE } from "../../../core/pipelines/build-view.ts";
import type { BuildRow } from "../../builds.ts";
import { type Events, type Reads, type Script, type Settings, type Tx, wait } from "../script.ts";
import type { Audit } from "../audit.ts";
import type { OrchestratorLocks } from "./orchestrator-locks.ts";
import type { Retries } from "./retries.ts";
import type { Runs } from "./runs.ts";

export interface MoveParts {
  runs: Runs;
  leads: OrchestratorLocks;
  retries: Retries;
  audit: Audit;
  events: Events;
  settings: Settings;
  /** Whether work is left of builds of this pipeline that have ended. */
  isWorkLeft(db: Reads, pipeline: string): Script<boolean>;
}

/**
 * Transitions of builds, each with everything that belongs to it: its number, the audit entry, the event, the lead, and
 * whether the build's queue is paused. The build's row has been locked before.
 */
export class Moves {
  readonly #parts: MoveParts;

  constructor(parts: MoveParts) {
    this.#parts = parts;
  }

  /** Throws if core does not allow the move. `budget`: the build's new budget, if it gets one. `more`: for the audit. */
  *make(
    tx: Tx,
    build: BuildRow,
    wanted: WantedMove,
    facts: BuildFacts,
    how: { by: string; budget?: Budget; more?: object },
  ): Script<BuildRow> {
    const { runs, leads, retries, settings, events } = this.#parts;
    const transition = moveBuild(build, wanted, facts);
    if (transition.move === "resume") yield* retries.begin(tx, build);
    else if (build.state === "ACTIVE") yield* retries.end(tx, build);
    const moved = yield* runs.move(tx, build, transition, how.budget ?? build.budget);
    if (moved.state === "ACTIVE") {
      yield* this.letRun(tx, moved);
    } else {
      yield* leads.release(tx, build.key);
      yield* wait(settings.pause(tx, build.queue, true));
    }
    yield* this.#record(tx, how.by, EVENT_OF_MOVE[wanted.move], build, moved, how.more);
    yield* wait(events.tell(tx, buildMoved(moved, transition)));
    return moved;
  }

  /** Unpauses the queue of an ACTIVE build, unless work of earlier builds is left, which no worker should claim. */
  *letRun(tx: Tx, { pipeline, queue }: BuildRow): Script<boolean> {
    const { settings, isWorkLeft } = this.#parts;
    const pauses = yield* isWorkLeft(tx, pipeline);
    yield* wait(settings.pause(tx, queue, pauses));
    if (!pauses) tx.ready(queue);
    return !pauses;
  }

  /** Something that is done to a build without moving it. */
  *act(tx: Tx, type: BuildEventType, build: BuildRow, acted: BuildRow, how: { by: string; more?: object }): Script<void> {
    const { events } = this.#parts;
    yield* this.#record(tx, how.by, type, build, acted, how.more);
    yield* wait(events.tell(tx, buildAct(type, acted, yield* wait(events.unique(tx)))));
  }

  *#record(tx: Tx, by: string, action: BuildEventType, before: BuildRow, after: BuildRow, more: object = {}): Script<void> {
    const told = { before: auditedBuild(before), after: { ...auditedBuild(after), ...more } };
    yield* this.#parts.audit.add(tx, { by, action, subject: after.id, ...told });
  }
}
