import { standing, type Standing, type Upstream } from "./dependency.ts";
import { idTaken, noUpstream } from "./errors.ts";
import { toJobError } from "./job.ts";
import type { Outcome } from "./retry.ts";

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
export interface Residents {
  /** The name of the job that has this id; a chosen id is remembered after its job is gone. */
  nameOf(id: string): string | undefined;
  /** How the job of this id stands, or ended; undefined: nobody knows it. */
  upstream(id: string): Upstream | undefined;
  /** The id of the unfinished job of this name and key. */
  holderOf(name: string, key: string): string | undefined;
}

/** Lets the jobs of a batch in, one after the other: an id is one job ever, a key one unfinished job of a name. */
export class Admission {
  readonly #residents: Residents;
  /** Ids of jobs that turned out to be there already, under another. */
  readonly #aliases = new Map<string, string>();

  constructor(residents: Residents) {
    this.#residents = residents;
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
    return standing((after ?? []).map((id) => this.#residents.upstream(this.#aliases.get(id) ?? id) as Upstream));
  }

  #double({ name, id, key }: Newcomer): Enqueued | undefined {
    const owner = id === undefined ? undefined : this.#residents.nameOf(id);
    if (id !== undefined && owner !== undefined) return owner === name ? { id, duplicate: true } : { id, taken: owner };
    const holder = key === undefined ? undefined : this.#residents.holderOf(name, key);
    return holder === undefined ? undefined : { id: holder, duplicate: true };
  }

  #missing({ after }: Newcomer): Enqueued | undefined {
    for (const given of after ?? []) {
      const id = this.#aliases.get(given) ?? given;
      if (this.#residents.upstream(id) === undefined) return { id, missing: true };
    }
    return undefined;
  }
}

/** Of jobs that are added all or none, the first that cannot be: its id is another's, or what it comes after is not known. */
export function refusal(jobs: readonly Newcomer[], residents: Residents): Refusal | undefined {
  const owners = new Map<string, string>();
  for (const { id, followUpId, name, after } of jobs) {
    for (const upstream of after ?? []) {
      if (!owners.has(upstream) && residents.upstream(upstream) === undefined) return { id: upstream, missing: true, name };
    }
    const own = id ?? followUpId;
    if (own === undefined) continue;
    const owner = owners.get(own) ?? (id === undefined ? undefined : residents.nameOf(id)) ?? name;
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
