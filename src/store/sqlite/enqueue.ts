import { generatedId, type JobKey, parseGeneratedId } from "../../core/ids.ts";
import type { Enqueued, NewJob } from "../store.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement, Value } from "./driver.ts";
import type { Tx } from "./group-commit.ts";

/** Inputs above this many characters have a row of their own, so that a claim or a renewal does not rewrite them. */
const LARGE_INPUT = 2_000;
/** Stands in the job's row for an input that is in holdfast_inputs; no JSON text is empty. */
export const ELSEWHERE = "";
const ROWS = 25;

const COLUMNS = "key, state, gate, lane, priority, policy, run_at, created_at, id, slot, input, scheduled_for";

/** Jobs in. Checking before inserting is no race: the transaction holds the database's only write lock. */
export class Enqueue {
  readonly #catalog: Catalog;
  readonly #insert: Statement;
  readonly #insertMany: Statement;
  readonly #insertInput: Statement;
  readonly #insertId: Statement;
  readonly #byId: Statement;
  readonly #byKey: Statement;
  readonly #bySlot: Statement;

  constructor(db: Connection, catalog: Catalog) {
    this.#catalog = catalog;
    this.#insert = db.prepare(`insert into holdfast_jobs (${COLUMNS}) values (?, 'pending', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`);
    // Many rows a statement: half again as fast as one by one.
    this.#insertMany = db.prepare(
      `insert into holdfast_jobs (${COLUMNS}) values ${Array(ROWS).fill("(?, 'pending', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)").join(", ")}`,
    );
    this.#insertInput = db.prepare("insert into holdfast_inputs (job, body) values (?, ?)");
    this.#insertId = db.prepare("insert into holdfast_ids (id, job, name, chosen) values (?, ?, ?, ?)");
    this.#byId = db.prepare("select name from holdfast_ids where id = ?");
    this.#byKey = db.prepare("select lane from holdfast_jobs where key = ? and created_at = ? and id is null");
    // By holdfast_jobs_slot.
    this.#bySlot = db.prepare(
      `select key, created_at, id from holdfast_jobs
       where slot = ? and slot is not null and (state = 'pending' or state = 'running' or state = 'waiting')`,
    );
  }

  run(tx: Tx, jobs: readonly NewJob[]): Enqueued[] {
    const answers: Enqueued[] = [];
    let plain: Value[] = [];
    let rows = 0;
    for (const job of jobs) {
      const known = job.id !== undefined || job.key !== undefined ? this.#known(job) : undefined;
      if (known !== undefined) {
        answers.push(known);
        continue;
      }
      const key = tx.nextKey();
      const id = job.id ?? job.followUpId ?? null;
      const runAt = job.runAt ?? tx.now + job.delay;
      const large = job.input !== null && job.input.length > LARGE_INPUT;
      const lane = this.#catalog.laneFor(tx, job);
      const policy = this.#catalog.policyFor(tx, job.policy);
      plain.push(key, runAt > tx.now ? "time" : null, lane, job.priority, policy, runAt, tx.now, id);
      plain.push(
        job.key === undefined ? null : slotOf(job.name, job.key),
        large ? ELSEWHERE : job.input,
        job.scheduledFor ?? null,
      );
      if (large) this.#insertInput.run(key, job.input);
      if (id !== null) this.#insertId.run(id, key, job.name, job.id === undefined ? 0 : 1);
      tx.ready(job.queue);
      answers.push({ id: id ?? generatedId(tx.now, key), duplicate: false });
      // A key must be seen by the next job of the same batch, so such rows are written at once.
      if (++rows === ROWS || job.key !== undefined) {
        this.#write(plain, rows);
        plain = [];
        rows = 0;
      }
    }
    this.#write(plain, rows);
    if (answers.some((answer) => "duplicate" in answer && !answer.duplicate)) tx.wrote();
    return answers;
  }

  /** The first of these whose id belongs to a job of another name, be it one of these themselves. */
  taken(jobs: readonly NewJob[]): { id: string; owner: string; name: string } | undefined {
    const owners = new Map<string, string>();
    for (const { id, name } of jobs) {
      if (id === undefined) continue;
      const owner = owners.get(id) ?? this.#nameOf(id) ?? name;
      if (owner !== name) return { id, owner, name };
      owners.set(id, owner);
    }
    return undefined;
  }

  #write(values: Value[], rows: number): void {
    if (rows === ROWS) this.#insertMany.run(...values);
    else for (let i = 0; i < rows; i++) this.#insert.run(...values.slice(i * 11, i * 11 + 11));
  }

  #known(job: NewJob): Enqueued | undefined {
    if (job.id !== undefined) {
      const name = this.#nameOf(job.id);
      if (name !== undefined) return name === job.name ? { id: job.id, duplicate: true } : { id: job.id, taken: name };
    }
    if (job.key === undefined) return undefined;
    const row = this.#bySlot.row(slotOf(job.name, job.key)) as [JobKey, number, string | null] | undefined;
    return row && { id: row[2] ?? generatedId(row[1], row[0]), duplicate: true };
  }

  #nameOf(id: string): string | undefined {
    const chosen = this.#byId.row(id);
    if (chosen !== undefined) return chosen[0] as string;
    const generated = parseGeneratedId(id);
    const row = generated && this.#byKey.row(generated.key, generated.createdAt);
    return row ? this.#catalog.lane(row[0] as number).name : undefined;
  }
}

/** A name and a key as one text, for one index; names hold no line break. */
export function slotOf(name: string, key: string): string {
  return `${name}\n${key}`;
}

export function keyOfSlot(slot: string): string {
  return slot.slice(slot.indexOf("\n") + 1);
}
