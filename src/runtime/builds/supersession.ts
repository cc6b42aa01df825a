import { HoldfastError } from "../../core/errors.ts";
import type { Fingerprint } from "../../core/fingerprint.ts";
import { toJobError } from "../../core/job.ts";
import { CALM, type Unrest, waitAfter } from "../../core/unrest.ts";
import type { ListedTarget } from "../../store/work.ts";
import { type Attempt, Ending } from "../attempt.ts";
import { failForGood } from "../outcome.ts";
import { fingerprintFile, statNow } from "../sources/fingerprint-file.ts";
import type { Task } from "./stage-runner.ts";
import { listedTarget, type Walked } from "./walker.ts";
import type { Worksite } from "./worksite.ts";

/** What a work item knows of earlier changes of its target's bytes. */
export function unrestOf({ claimed }: Attempt): Unrest {
  return (JSON.parse(claimed.input as string) as { unrest?: Unrest }).unrest ?? CALM;
}

/** The same way on after a step that went well; the next work item knows how often the bytes have changed so far. */
export function carryOn(attempt: Attempt, walked: Walked): Walked {
  return withUnrest(walked, { ...unrestOf(attempt), waited: false });
}

function withUnrest(walked: Walked, unrest: Unrest, when: { delay?: number; priority?: number } = {}): Walked {
  const { flow } = walked;
  if (flow.to !== "work" || unrest.times === 0) return walked;
  const input = JSON.stringify({ ...(JSON.parse(flow.job.input as string) as object), unrest });
  return { ...walked, flow: { ...flow, job: { ...flow.job, ...when, input } } };
}

/** A file has other bytes than those that its work is for: they get work of their own, from the first stage on. */
export class Supersession {
  readonly #site: Worksite;
  readonly #task: Task;

  constructor(site: Worksite, task: Task) {
    this.#site = site;
    this.#task = task;
  }

  /** It changed while it was worked on. The answer is the target as it goes on: later, the more often that was. */
  async during(): Promise<ListedTarget> {
    const { attempt, row } = this.#task;
    const times = unrestOf(attempt).times + 1;
    const delay = waitAfter(times);
    if (delay === null) throw new Ending(failForGood(toJobError(restless(row.id, times))));
    return this.#as(await this.#fingerprint(), { times, waited: true }, { delay });
  }

  /** It changed while its work waited, which is why it had to wait: what it is by now is worked on before anything else. */
  async afterWait(): Promise<ListedTarget> {
    const { times } = unrestOf(this.#task.attempt);
    const priority = 2 * this.#site.model.definition.stages.length;
    return this.#as(await this.#fingerprint(), { times, waited: false }, { priority });
  }

  async #as(fingerprint: Fingerprint | null, unrest: Unrest, when: { delay?: number; priority?: number }): Promise<ListedTarget> {
    const { attempt, scope, row, place, traveller } = this.#task;
    if (fingerprint === null) {
      // It is gone; the next listing finds that, and has it removed.
      const flow = { to: "end" as const, trail: row.trail, done: null, group: null, member: null };
      return listedTarget(traveller, row.rev, { flow, passed: [] });
    }
    const now = this.#site.targets.file(row.id, fingerprint);
    const { walker } = this.#site.enlister(scope, attempt.claimed, this.#site.reader);
    const walked = await walker.walk(now, place.segment, 0, [], row.trail);
    return listedTarget(now, row.rev, withUnrest(walked, unrest, when));
  }

  /** Of the file as it is now; null: it is gone. */
  async #fingerprint(): Promise<Fingerprint | null> {
    const path = this.#site.pathOf(this.#task.row.id);
    const stat = statNow(path);
    // A link that leads out of the root by now is no file of it.
    if (stat === null || !this.#site.isInside(path)) return null;
    return fingerprintFile(path, stat, this.#site.engine.clock);
  }
}

function restless(id: string, times: number): HoldfastError {
  return new HoldfastError(
    "BYTES_CHANGED",
    `${id} changed while it was worked on, ${times} times; the next build takes it up again.`,
    "Leave files that never hold still out of the source, or take `snapshot: true`.",
  );
}
