import { describeValue, invalidOption, rejectSurplus } from "../core/text/options.ts";
import { isDeepStrictEqual } from "node:util";
import type { Job, JobState } from "../core/jobs/job.ts";
import type { Holdfast } from "../holdfast.ts";

/** A job before the crash: all of it, or only its id. */
export type JobBefore = Pick<Job, "id"> & Partial<Job>;

export interface RecoveryVerdict {
  ok: boolean;
  /** One sentence for each difference. */
  reasons: string[];
}

const PAGE_SIZE = 1_000;
const FINISHED: ReadonlySet<JobState> = new Set(["succeeded", "failed", "cancelled", "quarantined"]);
const IMMUTABLE_PARTS = ["name", "queue", "key", "input", "priority", "createdAt"] as const;

/**
 * Returns every job in creation order, to compare the jobs before a crash with those after it.
 *
 * ```ts
 * const before = await everyJob(hf);
 * ```
 */
export async function everyJob(hf: Holdfast): Promise<Job[]> {
  rejectSurplus(arguments, 1, "everyJob");
  checkHandle(hf, "everyJob");
  const jobs: Job[] = [];
  let after: string | undefined;
  do {
    const { items, next } = await hf.jobs.list({ limit: PAGE_SIZE, after });
    jobs.push(...items);
    after = next;
  } while (after !== undefined);
  return jobs;
}

/**
 * Compares the jobs before a crash with those after its recovery: every job still exists as it was given, none still runs in its
 * old attempt, and finished jobs have the same outcome. Progress since then is no difference.
 *
 * ```ts
 * assert.deepEqual(validateRecovery(before, await everyJob(hf)), { ok: true, reasons: [] });
 * ```
 */
export function validateRecovery(before: readonly JobBefore[], after: readonly Job[]): RecoveryVerdict {
  rejectSurplus(arguments, 2, "validateRecovery");
  checkJobs(before, "before");
  checkJobs(after, "after");
  const found = new Map(after.map((job) => [job.id, job]));
  const reasons = before.flatMap((was) => {
    const is = found.get(was.id);
    return is === undefined ? [`job ${was.id} is missing`] : compare(was, is).map((reason) => `job ${was.id} ${reason}`);
  });
  if (found.size < after.length) {
    const twice = new Set(after.filter((job) => found.get(job.id) !== job).map(({ id }) => id));
    reasons.push(...[...twice].map((id) => `job ${id} is there twice`));
  }
  return { ok: reasons.length === 0, reasons };
}

function checkJobs(jobs: unknown, name: string): void {
  const wrong = Array.isArray(jobs) ? jobs.find((one) => !isJob(one)) : jobs;
  if (Array.isArray(jobs) && jobs.every(isJob)) return;
  throw invalidOption(
    `\`${name}\` of validateRecovery must be an array of jobs, got ${describeValue(wrong)}${Array.isArray(jobs) ? " in it" : ""}.`,
    "Give what everyJob(hf) returned, or what enqueue returned in an array.",
  );
}

function isJob(one: unknown): boolean {
  return typeof (one as { id?: unknown } | null)?.id === "string";
}

/** Checks the shape, because the handle may come from another copy of this package. */
export function checkHandle(hf: unknown, call: string): void {
  if (typeof hf === "object" && hf !== null && "engine" in hf && "jobs" in hf) return;
  throw invalidOption(`${call} needs a handle, got ${describeValue(hf)}.`, "Give what open() returned.");
}

function compare(was: JobBefore, is: Job): string[] {
  const reasons: string[] = IMMUTABLE_PARTS.filter((part) => part in was && !isDeepStrictEqual(was[part], is[part])).map(
    (part) => `has another ${part} than before`,
  );
  if (was.state === undefined) return reasons;
  if (FINISHED.has(was.state)) return [...reasons, ...compareFinished(was, is)];
  const { attempt = 0, crashes = 0 } = was;
  if (was.state === "running" && is.state === "running" && is.attempt === attempt) {
    reasons.push(`still runs in attempt ${attempt}, which the crash has ended`);
  }
  if (was.state !== "waiting" && is.state === "waiting") reasons.push(`was ${was.state}, and waits for others now`);
  if (is.attempt < attempt) reasons.push(`has had ${attempt} attempts, and now ${is.attempt}`);
  if (is.crashes < crashes) reasons.push(`was charged ${crashes} crashes, and now ${is.crashes}`);
  return reasons;
}

function compareFinished({ state, attempt, finishedAt, output }: JobBefore, is: Job): string[] {
  if (is.state !== state) return [`had ${stateText(state)}, and is ${is.state} now`];
  if (is.attempt !== attempt || is.finishedAt !== finishedAt) return [`had ${stateText(state)}, and was done again`];
  return isDeepStrictEqual(is.output, output) ? [] : ["has another output than before"];
}

function stateText(state: JobState | undefined): string {
  return state === "cancelled" || state === "quarantined" ? `been ${state}` : String(state);
}
