import type { Model } from "./model.ts";
import { inTurn, type ModelJob } from "./model-job.ts";

/** No more of one lane stand ready behind a limit than this. */
const WINDOW = 100;

/** A claim that is being looked at: what it took, and the one of these that a job was left out for. */
interface Taking {
  chosen: readonly ModelJob[];
  taken?: ModelJob | undefined;
}

/**
 * Whether one of its limits does not let a job start: there is no room, or as many as there is room for come before it
 * in its lane and are held back themselves, by another limit or because no worker may take them.
 */
export function isHeldBack(model: Model, at: number, job: ModelJob, { chosen, taken }: Taking = { chosen: [] }): boolean {
  const ahead = (counter: string) => countAhead(model, at, job, counter, chosen);
  return job.counters.some((counter) => {
    // A job that shares a limit with it and comes later cannot have had its room, unless the room was another's before it.
    if (taken?.counters.includes(counter)) return ahead(counter) > 0;
    const room = model.limits.room(counter) - chosen.filter((one) => one.counters.includes(counter)).length;
    return room < 1 || ahead(counter) >= Math.min(WINDOW, room);
  });
}

function countAhead(model: Model, at: number, job: ModelJob, counter: string, chosen: readonly ModelJob[]): number {
  let ahead = 0;
  for (const other of model.jobs.values()) {
    if (other.state !== "pending" || !isOfLane(other, job) || !other.counters.includes(counter)) continue;
    if (inTurn(other, job) < 0 && other.readyAt(at) !== "no" && !chosen.includes(other)) ahead++;
  }
  return ahead;
}

export function isOfLane(a: ModelJob, b: ModelJob): boolean {
  return a.name === b.name && a.queue === b.queue && a.version === b.version;
}
