import type { JobContext } from "../../core/context.ts";
import { NOTHING } from "../../core/cost.ts";
import type { ResultKey } from "../../core/ids.ts";
import { GONE } from "../../core/segment.ts";
import type { TargetRow } from "../../store/work.ts";
import type { Attempt } from "../attempt.ts";
import { hasChildren, segmentBelow } from "./enlister.ts";
import type { Parent } from "./live-targets.ts";
import type { Place } from "./model.ts";
import type { BuildScope } from "./scope.ts";
import { carryOn } from "./supersession.ts";
import { listedTarget, type Walked } from "./walker.ts";
import type { Worksite } from "./worksite.ts";

/** What is to be removed. `gone`: with its target; else the stage does not match that any more. */
export interface Unwanted {
  result: ResultKey;
  gone: boolean;
}

/** What a job's input says of it; undefined: the stage is to be run. */
export function unwanted({ claimed }: Attempt): Unwanted | undefined {
  return (JSON.parse(claimed.input as string) as { remove?: Unwanted }).remove;
}

/** Has a stage remove what it once made of a target, which then is forgotten, or goes on without. */
export class Removal {
  readonly #site: Worksite;
  readonly #scope: BuildScope;
  readonly #place: Place;

  constructor(site: Worksite, scope: BuildScope, place: Place) {
    this.#site = site;
    this.#scope = scope;
    this.#place = place;
  }

  async run(attempt: Attempt, job: JobContext<unknown>, row: TargetRow, { result, gone }: Unwanted): Promise<void> {
    attempt.work = { cost: NOTHING, result: null, target: null };
    // It has come back meanwhile.
    if (gone && row.done !== GONE) return;
    const traveller = await this.#site.targets.of(row);
    const { id, hash, parent } = traveller.target;
    const [made] = await this.#site.engine.store.work.results([result]);
    await this.#place.stage.remove?.({
      target: { id, hash, ...(parent === undefined ? {} : { parent }) },
      output: made === undefined ? undefined : await this.#site.values.load(made.output),
      idempotencyKey: `${job.idempotencyKey}:remove`,
      signal: job.signal,
    });
    if (!gone)
      attempt.work.target = listedTarget(traveller, row.rev, carryOn(attempt, await this.#walk(attempt, traveller, row)));
    else if (await this.#hasChildren(row)) attempt.work.target = listedTarget(traveller, row.rev, this.#waits(row));
    else attempt.work.forget = { path: row.path, rev: row.rev };
  }

  /** From here on, as one of which this stage has made nothing. */
  async #walk(attempt: Attempt, traveller: Parent, row: TargetRow): Promise<Walked> {
    const { stage, segment, index } = this.#place;
    const { walker } = this.#site.enlister(this.#scope, attempt.claimed, this.#site.reader);
    const trail = row.trail.filter((step) => !this.#site.model.isFrom(step.stage, this.#place));
    const walked = await walker.walk(traveller, segment, index, trail, this.#without(row));
    const [here, ...behind] = walked.passed;
    // What it had of this stage it has no more.
    const isPassed = here?.stage === stage.name && here.as === "passed";
    return isPassed ? { ...walked, passed: [{ ...here, result: null }, ...behind] } : walked;
  }

  /** Its children need it. The next listing finds it gone again, and this stage has nothing more to remove then. */
  #waits(row: TargetRow): Walked {
    return { flow: { to: "end", trail: this.#without(row), done: GONE, group: null, member: null }, passed: [] };
  }

  #without({ trail }: TargetRow): TargetRow["trail"] {
    return trail.filter(({ stage }) => stage !== this.#place.stage.name);
  }

  async #hasChildren({ path }: TargetRow): Promise<boolean> {
    const below = segmentBelow(this.#site.model, this.#place.segment);
    return below !== null && hasChildren(this.#scope, path, below);
  }
}
