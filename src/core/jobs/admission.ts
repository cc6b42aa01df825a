import { idTaken, noUpstream } from "../text/errors.ts";
import type { JobKey } from "../text/ids.ts";
import type { Outcome } from "./retry.ts";
import { type FinishedState, isFinished, type JobError, type JobState, toJobError } from "./job.ts";

/** What became of a job that was handed in. */
export type Enqueued =
  | { id: string; duplicate: boolean }
  /** The id belongs to a job of another name. */
  | { id: string; taken: string }
  /** There is no such job for it to come after. */
  | { id: string; missing: true };

/** Why a job cannot be; `name` is its own. */
export type Refusal = { id: string; name: string } & ({ taken: string } | { missing: true });

/** What decides whether a job may be. */
export interface Newcomer {
  name: string;
  id?: string;
  followUpId?: string;
  key?: string;
  after?: readonly string[];
}

/** What is there already; of a batch, also those of its jobs that were let in so far. */
export interface JobLookup {
  /** The name of the job that has this id; a chosen id is remembered after its job is gone. */
  nameOf(id: string): string | undefined;
  /** The state of the job with this id, or the state in which it ended; undefined: the id is unknown. */
  upstream(id: string): Upstream | undefined;
  /** The id of the unfinished job of this name and key. */
  holderOf(name: string, key: string): string | undefined;
}

/** Lets the jobs of a batch in, one after the other: an id is one job ever, a key one unfinished job of a name. */
export class Admission {
  readonly #existing: JobLookup;
  /** Ids of jobs that turned out to be there already, under another. */
  readonly #aliases = new Map<string, string>();

  constructor(existing: JobLookup) {
    this.#existing = existing;
  }

  /** The answer to a job that is not added; undefined: it may come in. */
  refuse(job: Newcomer): Enqueued | undefined {
    const refused = this.#double(job) ?? this.#missing(job);
    if (refused === undefined) return undefined;
    const given = job.id === undefined ? job.followUpId : "duplicate" in refused ? job.id : undefined;
    if (given !== undefined) this.#aliases.set(given, refused.id);
    return refused;
  }

  /** How one that comes in starts. */
  standing({ after }: Newcomer): Standing {
    return standing((after ?? []).map((id) => this.#existing.upstream(this.#aliases.get(id) ?? id) as Upstream));
  }

  #double({ name, id, key }: Newcomer): Enqueued | undefined {
    const owner = id === undefined ? undefined : this.#existing.nameOf(id);
    if (id !== undefined && owner !== undefined) return owner === name ? { id, duplicate: true } : { id, taken: owner };
    const holder = key === undefined ? undefined : this.#existing.holderOf(name, key);
    return holder === undefined ? undefined : { id: holder, duplicate: true };
  }

  #missing({ after }: Newcomer): Enqueued | undefined {
    for (const given of after ?? []) {
      const id = this.#aliases.get(given) ?? given;
      if (this.#existing.upstream(id) === undefined) return { id, missing: true };
    }
    return undefined;
  }
}

/** Of jobs that are added all or none, the first that cannot be: its id is another's, or what it comes after is not known. */
export function refusal(jobs: readonly Newcomer[], existing: JobLookup): Refusal | undefined {
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

/** The answer to all of them. */
export function refusedWhole(refused: Refusal): Enqueued[] {
  const { id } = refused;
  return ["taken" in refused ? { id, taken: refused.taken } : { id, missing: true }];
}

/** A success and its follow-ups are one; where one of these cannot be, the attempt has failed, and would fail again. */
export function untenable(refused: Refusal): Outcome {
  const { id, name } = refused;
  const why = "taken" in refused ? idTaken(id, refused.taken, name) : noUpstream(id, name);
  return { kind: "error", error: toJobError(why), retry: false };
}

/** A job that another is to come after. */
export interface Upstream {
  id: string;
  job: JobKey;
  state: JobState;
}

/** How a job starts that comes after others. */
export type Standing =
  /** What it was to come after has ended otherwise than succeeded. */
  { state: "cancelled"; error: JobError } | { state: "waiting"; for: readonly Upstream[] } | { state: "pending" };

export function standing(upstreams: readonly Upstream[]): Standing {
  const broken = upstreams.find(({ state }) => isFinished(state) && state !== "succeeded");
  if (broken !== undefined) return { state: "cancelled", error: upstreamEnded(broken.id, broken.state as FinishedState) };
  const unfinished = upstreams.filter(({ state }) => !isFinished(state));
  return unfinished.length > 0 ? { state: "waiting", for: unfinished } : { state: "pending" };
}

/** Why a job was cancelled without anybody asking for it. */
export function upstreamEnded(upstream: string, state: FinishedState): JobError {
  const message = `Job ${upstream}, which it was to come after, ${SAID[state]}.`;
  return { name: "UpstreamError", code: "UPSTREAM_ENDED", message };
}

const SAID: Record<FinishedState, string> = {
  succeeded: "succeeded",
  failed: "failed",
  cancelled: "was cancelled",
  quarantined: "was quarantined",
};

/** `job` comes after `upstream`. */
export interface Wait {
  job: JobKey;
  upstream: JobKey;
}

interface Behind {
  /** Those that are cancelled, each with the job whose end did it; they wait for nothing any more. */
  cancelled: Map<JobKey, JobKey>;
  /** Those that have one thing less to wait for. */
  freer: JobKey[];
}

/** What the end of some jobs means for those that wait for them. */
export function behind(waits: readonly Wait[], ended: ReadonlyMap<JobKey, FinishedState>): Behind {
  const cancelled = new Map<JobKey, JobKey>();
  for (const { job, upstream } of waits) if (ended.get(upstream) !== "succeeded") cancelled.set(job, upstream);
  const freer = new Set<JobKey>();
  for (const { job } of waits) if (!cancelled.has(job)) freer.add(job);
  return { cancelled, freer: [...freer] };
}

/**
 * Whether a job that waits for no other has to wait for its time. One that was to run at once, when it was made, still
 * is, also when the clock was set back since.
 */
export function isEarly(runAt: number, createdAt: number, now: number): boolean {
  return runAt > now && runAt > createdAt;
}
