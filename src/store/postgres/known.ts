import { generatedId, type JobKey, parseGeneratedId } from "../../core/ids.ts";
import type { JobState } from "../../core/job.ts";
import { publicId, slotOf } from "../job-row.ts";
import type { Enqueued, NewJob } from "../store.ts";
import type { Catalog } from "./catalog.ts";
import { listOf } from "./driver.ts";
import type { Tx } from "./group.ts";

/** Why a job cannot be; `name` is its own. */
export type Refusal = { id: string; name: string } & ({ taken: string } | { missing: true });

/** A job that is there already, or was; a pruned one has the state in which it ended. */
interface Found {
  id: string;
  name: string;
  key: JobKey;
  state: JobState | null;
}

/**
 * What the database knows of the jobs that a batch names, by id, by key, or as what comes before; those of the batch are
 * added as they are decided. Those that others come after are locked, so that they cannot end before they know of them.
 */
export class Known {
  readonly #byId = new Map<string, Found>();
  readonly #bySlot = new Map<string, string>();
  /** Ids of jobs that turned out to be there already, under another. */
  readonly #aliases = new Map<string, string>();

  static async of(s: string, tx: Tx, jobs: readonly NewJob[], catalog: Catalog): Promise<Known> {
    const known = new Known();
    const upstreams = new Set(jobs.flatMap(({ after }) => after ?? []));
    const ids = new Set([...upstreams, ...jobs.flatMap(({ id }) => id ?? [])]);
    const slots = new Set(jobs.flatMap(({ name, key }) => (key === undefined ? [] : [slotOf(name, key)])));
    if (upstreams.size > 0) await known.#lock(s, tx, upstreams);
    if (ids.size > 0) await known.#lookUp(s, tx, ids, catalog);
    if (slots.size > 0) await known.#lookUpSlots(s, tx, slots);
    return known;
  }

  /** What is to be answered instead of adding it. */
  refuses(job: NewJob): Enqueued | undefined {
    const refused = this.#isThere(job) ?? this.#missing(job);
    if (refused === undefined) return undefined;
    const given = job.id === undefined ? job.followUpId : "duplicate" in refused ? job.id : undefined;
    if (given !== undefined) this.#aliases.set(given, refused.id);
    return refused;
  }

  upstreamsOf({ after = [] }: NewJob): { id: string; key: JobKey; state: JobState }[] {
    return after.map((given) => {
      const { id, key, state } = this.#found(given) as Found;
      return { id, key, state: state as JobState };
    });
  }

  /** One of the batch. */
  add(
    { name, key: slot, id: chosen, followUpId }: NewJob,
    { id, key, state }: { id: string; key: JobKey; state: JobState },
  ): void {
    if (chosen !== undefined || followUpId !== undefined) this.#byId.set(id, { id, name, key, state });
    if (slot !== undefined && state !== "cancelled") this.#bySlot.set(slotOf(name, slot), id);
  }

  /** The first that cannot be: its id belongs to a job of another name, or what it comes after is not known. */
  refused(jobs: readonly NewJob[]): Refusal | undefined {
    const owners = new Map<string, string>();
    for (const { id, followUpId, name, after } of jobs) {
      for (const upstream of after ?? []) {
        if (!owners.has(upstream) && (this.#byId.get(upstream)?.state ?? null) === null)
          return { id: upstream, missing: true, name };
      }
      const own = id ?? followUpId;
      if (own === undefined) continue;
      const owner = owners.get(own) ?? (id === undefined ? undefined : this.#byId.get(id)?.name) ?? name;
      if (owner !== name) return { id: own, taken: owner, name };
      owners.set(own, owner);
    }
    return undefined;
  }

  #isThere(job: NewJob): Enqueued | undefined {
    const found = job.id === undefined ? undefined : this.#byId.get(job.id);
    if (found !== undefined) {
      const id = job.id as string;
      return found.name === job.name ? { id, duplicate: true } : { id, taken: found.name };
    }
    const same = job.key === undefined ? undefined : this.#bySlot.get(slotOf(job.name, job.key));
    return same === undefined ? undefined : { id: same, duplicate: true };
  }

  #missing({ after }: NewJob): Enqueued | undefined {
    const given = after?.find((upstream) => (this.#found(upstream)?.state ?? null) === null);
    return given === undefined ? undefined : { id: this.#aliases.get(given) ?? given, missing: true };
  }

  #found(id: string): Found | undefined {
    return this.#byId.get(this.#aliases.get(id) ?? id);
  }

  async #lock(s: string, tx: Tx, ids: ReadonlySet<string>): Promise<void> {
    const generated = [...ids].flatMap((id) => parseGeneratedId(id)?.key ?? []);
    await tx.rows(
      `select 1 from ${s}.jobs where key = any($1::bigint[]) or key in (select job from ${s}.ids where id = any($2::text[]))
       order by key for no key update`,
      listOf(generated),
      listOf([...ids]),
    );
  }

  async #lookUp(s: string, tx: Tx, ids: ReadonlySet<string>, catalog: Catalog): Promise<void> {
    const generated = [...ids].flatMap((id) => parseGeneratedId(id) ?? []);
    const made = await tx.rows<[JobKey, number, number, JobState]>(
      `select key, created_at, lane, state from ${s}.jobs where key = any($1::bigint[]) and id is null`,
      listOf(generated.map(({ key }) => key)),
    );
    await catalog.knowLanes(
      tx.rows,
      made.map((row) => row[2]),
    );
    for (const [key, createdAt, lane, state] of made) {
      const id = generatedId(createdAt, key);
      if (ids.has(id)) this.#byId.set(id, { id, name: catalog.lane(lane).name, key, state });
    }
    // A chosen id is remembered after its job is gone.
    const chosen = await tx.rows<[string, string, JobKey, JobState | null]>(
      `select one.id, one.name, one.job, coalesce(job.state, one.ended)
       from ${s}.ids as one left join ${s}.jobs as job on job.key = one.job where one.id = any($1::text[])`,
      listOf([...ids]),
    );
    for (const [id, name, key, state] of chosen) this.#byId.set(id, { id, name, key, state });
  }

  async #lookUpSlots(s: string, tx: Tx, slots: ReadonlySet<string>): Promise<void> {
    const rows = await tx.rows<[string, JobKey, number, string | null]>(
      `select slot, key, created_at, id from ${s}.jobs
       where slot = any($1::text[]) and slot is not null and state in ('pending', 'running', 'waiting')`,
      listOf([...slots]),
    );
    for (const [slot, key, createdAt, id] of rows) this.#bySlot.set(slot, publicId(id, createdAt, key));
  }
}
