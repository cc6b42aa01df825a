import { idTaken, upstreamMissing } from "../text/errors.ts";
import type { JobKey } from "../text/ids.ts";
import type { Outcome } from "./retry.ts";
import { type FinishedState, isFinished, type JobError, type JobState, toJobError } from "./job.ts";

export type Enqueued = { id: string; duplicate: boolean } | { id: string; taken: string } | { id: string; missing: true };

export type RejectedJob = { id: string; name: string } & ({ taken: string } | { missing: true });

export interface NewJob {
  name: string;
  id?: string;
  followUpId?: string;
  key?: string;
  after?: readonly string[];
  /** The running job that has this job's key. This job becomes pending when that one has ended or would run again. */
  behind?: { id: string; job: JobKey };
}

export interface JobLookup {
  /** Returns the name of the job with this id. Ids that callers chose are remembered after their job was removed. */
  nameOf(id: string): string | undefined;
  upstream(id: string): Upstream | undefined;
  holderOf(name: string, key: string): string | undefined;
}

/** Admits the jobs of a batch one after the other: an id belongs to one job ever, a key to one unfinished job of a name. */
export class Admission {
  readonly #existing: JobLookup;
  readonly #aliases = new Map<string, string>();

  constructor(existing: JobLookup) {
    this.#existing = existing;
  }

  reject(job: NewJob): Enqueued | undefined {
    const refused = this.#findDuplicate(job) ?? this.#findMissing(job);
    if (refused === undefined) return undefined;
    const given = job.id === undefined ? job.followUpId : "duplicate" in refused ? job.id : undefined;
    if (given !== undefined) this.#aliases.set(given, refused.id);
    return refused;
  }

  initialState({ after, behind }: NewJob): InitialState {
    if (behind !== undefined) return { state: "waiting", for: [{ ...behind, state: "running" }] };
    return initialState((after ?? []).map((id) => this.#existing.upstream(this.#aliases.get(id) ?? id) as Upstream));
  }

  #findDuplicate({ name, id, key, behind }: NewJob): Enqueued | undefined {
    if (behind !== undefined) return undefined;
    const owner = id === undefined ? undefined : this.#existing.nameOf(id);
    if (id !== undefined && owner !== undefined) return owner === name ? { id, duplicate: true } : { id, taken: owner };
    const holder = key === undefined ? undefined : this.#existing.holderOf(name, key);
    return holder === undefined ? undefined : { id: holder, duplicate: true };
  }

  #findMissing({ after }: NewJob): Enqueued | undefined {
    for (const given of after ?? []) {
      const id = this.#aliases.get(given) ?? given;
      if (this.#existing.upstream(id) === undefined) return { id, missing: true };
    }
    return undefined;
  }
}

export function findRejected(jobs: readonly NewJob[], existing: JobLookup): RejectedJob | undefined {
  const owners = new Map<string, string>();
  for (const { id, followUpId, name, after } of jobs) {
    for (const upstream of after ?? []) {
      if (!owners.has(upstream) && existing.upstream(upstream) === undefined) return { id: upstream, missing: true, name };
    }
    const own = id ?? followUpId;
    if (own === undefined) continue;
    const owner = owners.get(own) ?? (id === undefined ? undefined : existing.nameOf(id)) ?? name;
    if (owner !== name) return { id: own, taken: owner, name };
    owners.set(own, owner);
  }
  return undefined;
}

export function rejectAll(refused: RejectedJob): Enqueued[] {
  const { id } = refused;
  return ["taken" in refused ? { id, taken: refused.taken } : { id, missing: true }];
}

/** Fails the attempt: a success commits with its follow-ups, and one of them cannot be added. A retry would fail, too. */
export function rejectedFollowUp(refused: RejectedJob): Outcome {
  const { id, name } = refused;
  const why = "taken" in refused ? idTaken(id, refused.taken, name) : upstreamMissing(id, name);
  return { kind: "error", error: toJobError(why), retry: false };
}

export interface Upstream {
  id: string;
  job: JobKey;
  state: JobState;
}

export type InitialState =
  | { state: "cancelled"; error: JobError }
  | { state: "waiting"; for: readonly Upstream[] }
  | { state: "pending" };

export function initialState(upstreams: readonly Upstream[]): InitialState {
  const broken = upstreams.find(({ state }) => isFinished(state) && state !== "succeeded");
  if (broken !== undefined) return { state: "cancelled", error: upstreamEnded(broken.id, broken.state as FinishedState) };
  const unfinished = upstreams.filter(({ state }) => !isFinished(state));
  return unfinished.length > 0 ? { state: "waiting", for: unfinished } : { state: "pending" };
}

export function upstreamEnded(upstream: string, state: FinishedState): JobError {
  const message = `Job ${upstream}, which this job waited for, ${ENDED_AS[state]}.`;
  return { name: "UpstreamError", code: "UPSTREAM_ENDED", message };
}

const ENDED_AS: Record<FinishedState, string> = {
  succeeded: "succeeded",
  failed: "failed",
  cancelled: "was cancelled",
  quarantined: "was quarantined",
};

export function replacedJob<T extends { state: JobState }>(holder: T | undefined, behind: T | undefined): T | undefined {
  return behind ?? (holder?.state === "running" ? undefined : holder);
}

/** A job that waits for another. With `replaces` it takes the other's place, however that one ends. */
export interface Wait {
  job: JobKey;
  upstream: JobKey;
  replaces?: boolean;
}

interface Dependents {
  cancelled: Map<JobKey, JobKey>;
  unblocked: JobKey[];
}

export function dependentsOf(waits: readonly Wait[], ended: ReadonlyMap<JobKey, FinishedState>): Dependents {
  const cancelled = new Map<JobKey, JobKey>();
  for (const { job, upstream, replaces = false } of waits)
    if (!replaces && ended.get(upstream) !== "succeeded") cancelled.set(job, upstream);
  const freer = new Set<JobKey>();
  for (const { job } of waits) if (!cancelled.has(job)) freer.add(job);
  return { cancelled, unblocked: [...freer] };
}

/** Whether a job may not start yet. A job created to run at once is never early, even if the clock was set back since. */
export function isEarly(runAt: number, createdAt: number, now: number): boolean {
  return runAt > now && runAt > createdAt;
}
