import { NOTHING } from "../../core/cost.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Segment } from "../../core/segment.ts";
import { childrenOf, stepOf } from "../../core/trail.ts";
import type { FoundResult } from "../../store/work.ts";
import type { Attempt } from "../attempt.ts";
import { childrenIn } from "./expansion.ts";
import { asParent } from "./live-targets.ts";
import type { Task } from "./stage-runner.ts";
import { carryOn } from "./supersession.ts";
import { listedTarget, type Walked } from "./walker.ts";
import type { Worksite } from "./worksite.ts";
import { said } from "../trouble.ts";

/** Of an artifact: it will not be there again, nor as it was. */
const LOST = new Set(["ARTIFACT_MISSING", "ARTIFACT_DAMAGED"]);

/**
 * Makes targets of what an expand has yielded, now or once. What it yields is kept with its result, and is seen by nobody
 * before that is committed; then a job of its own makes targets of it, batch by batch, however often it has to begin anew.
 */
export class Offspring {
  readonly #site: Worksite;
  readonly #task: Task;
  /** The expand itself ran just before, and was counted then. */
  readonly #isOwn: boolean;

  constructor(site: Worksite, task: Task) {
    this.#site = site;
    this.#task = task;
    this.#isOwn = isChildren(task.attempt);
  }

  /** The way of a target whose expand has just run. */
  get next(): Walked {
    const { scope, place, row, trail } = this.#task;
    const steps = [...trail, { stage: place.stage.name, result: null, output: "none" as const }];
    const job = this.#site.model.childrenJob(place, { build: scope.build.key, path: row.path });
    return { flow: { to: "work", trail: steps, job }, passed: [] };
  }

  /** What was yielded; null: the expand has to run. */
  async find(): Promise<FoundResult | null> {
    const { attempt, scope, place, context, row } = this.#task;
    const { walker } = this.#site.enlister(scope, attempt.claimed, this.#site.reader);
    const found = await walker.lookUpChildren(place, context, row.trail, this.#isOwn);
    if (found === null || found.output.artifact === null) return found;
    try {
      await (await this.#site.artifacts()).path(found.output.artifact);
      return found;
    } catch (error) {
      if (!(error instanceof HoldfastError) || !LOST.has(error.code)) throw error;
      this.#site.engine.log.warn("what an expand had yielded cannot be read; it is run again", said(error));
      return null;
    }
  }

  /** All of them are known then, and their parent is at its end. */
  async enlist(found: FoundResult): Promise<void> {
    const { attempt, scope, place, row, traveller, trail, context } = this.#task;
    await this.#children(found);
    const stage = place.stage.name;
    const { walker } = this.#site.enlister(scope, attempt.claimed, this.#site.reader);
    const steps = [...trail, { stage, result: found.key, output: childrenOf(context.hash) }];
    const walked = await walker.walk(traveller, place.segment, place.index + 1, steps, row.trail);
    const isOther = stepOf(row.trail, stage)?.result !== found.key;
    if (!this.#isOwn) walked.passed.unshift({ stage, as: "cached", ...(isOther ? { result: found.key } : {}) });
    attempt.work = { cost: NOTHING, result: null, target: listedTarget(traveller, row.rev, carryOn(attempt, walked)) };
  }

  /** Those that were there before and are not among them are gone. */
  async #children({ output }: FoundResult): Promise<void> {
    const { attempt, scope, traveller, trail } = this.#task;
    const parent = asParent(traveller, trail);
    const segment = this.#site.model.segments[parent.segment + 1] as Segment;
    const enlister = this.#site.enlister(scope, attempt.claimed, this.#site.reader);
    const there = new Set<string>();
    for await (const found of childrenIn(output, parent, this.#site, this.#site.values)) {
      attempt.signal.throwIfAborted();
      for (const { id } of found) there.add(id);
      const paths = found.map(({ path }) => path);
      await enlister.enlist(segment, found, await enlister.rows(segment, paths));
    }
    await enlister.goneBut(segment, parent.path, there);
  }
}

function isChildren({ claimed }: Attempt): boolean {
  return (JSON.parse(claimed.input as string) as { children?: boolean }).children === true;
}
