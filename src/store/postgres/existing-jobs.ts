import type { JobLookup, Upstream } from "../../core/jobs/admission.ts";
import type { JobState } from "../../core/jobs/job.ts";
import { generatedId, type JobKey, parseGeneratedId } from "../../core/text/ids.ts";
import { publicId, slotOf } from "../job-row.ts";
import type { NewJob } from "../store.ts";
import type { Catalog } from "./catalog.ts";
import { listOf } from "./connection/driver.ts";
import { named } from "./scripts.ts";
import type { Tx } from "./transactions/transaction.ts";

export interface SlotHolder {
  slot: string;
  key: JobKey;
  state: JobState;
  lane: number;
  priority: number;
  gate: string | null;
  limits: string | null;
  createdAt: number;
  id: string | null;
}

interface Found {
  name: string;
  key: JobKey;
  state: JobState | null;
}

/** The jobs that a batch names: by id, by key, or as an upstream. Jobs of the batch are added as they are admitted. */
export class ExistingJobs implements JobLookup {
  readonly #byId = new Map<string, Found>();
  readonly #bySlot = new Map<string, string>();

  nameOf(id: string): string | undefined {
    return this.#byId.get(id)?.name;
  }

  upstream(id: string): Upstream | undefined {
    const found = this.#byId.get(id);
    return found === undefined || found.state === null ? undefined : { id, job: found.key, state: found.state };
  }

  holderOf(name: string, key: string): string | undefined {
    return this.#bySlot.get(slotOf(name, key));
  }

  found(id: string, found: Found): void {
    this.#byId.set(id, found);
  }

  holds(slot: string, id: string): void {
    this.#bySlot.set(slot, id);
  }
}

export class ExistingJobsLookUp {
  readonly #catalog: Catalog;
  readonly #sql: Record<"lock" | "generated" | "chosen" | "slots" | "lockSlots" | "replaced" | "limited", string>;

  constructor(s: string, catalog: Catalog) {
    this.#catalog = catalog;
    const slots = `
      select slot, key, created_at, id, lane, state from ${s}.jobs
      where reserved = any($1::text[])`;
    this.#sql = {
      // Lock upstream jobs, so that they do not end before the jobs that wait for them are known.
      lock: `
        select 1 from ${s}.jobs where key = any($1::bigint[]) or key in (select job from ${s}.ids where id = any($2::text[]))
        order by key for no key update`,
      generated: `select key, created_at, lane, state from ${s}.jobs where key = any($1::bigint[]) and id is null`,
      chosen: `
        select one.id, one.name, one.job, coalesce(job.state, one.ended)
        from ${s}.ids as one left join ${s}.jobs as job on job.key = one.job where one.id = any($1::text[])`,
      // Uses jobs_slot. The statement that locks has its own name, because its plan differs.
      slots,
      lockSlots: `${slots} order by key for no key update`,
      replaced: `
        select slot, key, state, lane, priority, gate, limits, created_at as "createdAt", id from ${s}.jobs
        where reserved = any($1::text[]) order by key for update`,
      limited: `select distinct lane from ${s}.jobs where reserved = any($1::text[]) and limits is not null`,
    };
  }

  async lockSlots(tx: Tx, slots: readonly string[]): Promise<Map<string, SlotHolder>> {
    const rows = named<SlotHolder>(await tx.rows(this.#sql.replaced, listOf([...slots])));
    const lanes = rows.map(({ lane }) => lane);
    await this.#catalog.knowLanes(tx.rows, lanes);
    return new Map(rows.map((row) => [row.slot, row]));
  }

  async limitedLanes(tx: Tx, slots: readonly string[]): Promise<number[]> {
    const lanes = (await tx.rows<[number]>(this.#sql.limited, listOf([...slots]))).map(([lane]) => lane);
    await this.#catalog.knowLanes(tx.rows, lanes);
    return lanes;
  }

  async of(tx: Tx, jobs: readonly NewJob[]): Promise<ExistingJobs> {
    const known = new ExistingJobs();
    const upstreams = new Set(jobs.flatMap(({ after }) => after ?? []));
    const ids = [...new Set([...upstreams, ...jobs.flatMap(({ id }) => id ?? [])])];
    const slots = new Set(jobs.flatMap(({ name, key }) => (key === undefined ? [] : [slotOf(name, key)])));
    if (upstreams.size > 0) await tx.rows(this.#sql.lock, listOf(keysIn(upstreams)), listOf([...upstreams]));
    if (ids.length > 0) {
      await this.#generated(tx, ids, known);
      for (const [id, name, key, state] of await tx.rows<[string, string, JobKey, JobState | null]>(
        this.#sql.chosen,
        listOf(ids),
      ))
        known.found(id, { name, key, state });
    }
    if (slots.size > 0) await this.#holders(tx, slots, upstreams.size > 0, known);
    return known;
  }

  async #holders(tx: Tx, slots: ReadonlySet<string>, lock: boolean, known: ExistingJobs): Promise<void> {
    const rows = await tx.rows<[string, JobKey, number, string | null, number, JobState]>(
      lock ? this.#sql.lockSlots : this.#sql.slots,
      listOf([...slots]),
    );
    const lanes = rows.map((row) => row[4]);
    await this.#catalog.knowLanes(tx.rows, lanes);
    for (const [slot, key, createdAt, id, lane, state] of rows) {
      const own = publicId(id, createdAt, key);
      known.holds(slot, own);
      known.found(own, { name: this.#catalog.lane(lane).name, key, state });
    }
  }

  async #generated(tx: Tx, ids: readonly string[], known: ExistingJobs): Promise<void> {
    const keys = keysIn(ids);
    if (keys.length === 0) return;
    const asked = new Set(ids);
    const rows = await tx.rows<[JobKey, number, number, JobState]>(this.#sql.generated, listOf(keys));
    const lanes = rows.map((row) => row[2]);
    await this.#catalog.knowLanes(tx.rows, lanes);
    for (const [key, createdAt, lane, state] of rows) {
      const id = generatedId(createdAt, key);
      if (asked.has(id)) known.found(id, { name: this.#catalog.lane(lane).name, key, state });
    }
  }
}

function keysIn(ids: Iterable<string>): JobKey[] {
  return [...ids].flatMap((id) => parseGeneratedId(id)?.key ?? []);
}
