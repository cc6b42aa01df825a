import { type JobKey, parseGeneratedId } from "../../core/ids.ts";
import { type FinishedState, isFinished, type JobState } from "../../core/job.ts";
import { ELSEWHERE, isLarge, publicId, slotOf } from "../job-row.ts";
import type { Enqueued, NewJob } from "../store.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement, Value } from "./driver.ts";
import type { Endings } from "./endings.ts";
import type { Tx } from "./group-commit.ts";
import type { JobEvents } from "./job-events.ts";
import { type Limits, limitsText } from "./limits.ts";
import type { Settings } from "./settings.ts";
import { upstreamEnded, type Waits } from "./waits.ts";

const ROWS = 25;

const COLUMNS = "key, state, gate, lane, priority, policy, run_at, created_at, id, slot, input";
const PLAIN = 10;
const NONE: readonly number[] = [];

/** Jobs in. Checking before inserting is no race: the transaction holds the database's only write lock. */
export class Enqueue {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #limits: Limits;
  readonly #waits: Waits;
  readonly #endings: Endings;
  readonly #events: JobEvents;
  readonly #insert: Statement;
  readonly #insertMany: Statement;
  readonly #insertWhole: Statement;
  readonly #insertInput: Statement;
  readonly #insertId: Statement;
  readonly #byId: Statement;
  readonly #byKey: Statement;
  readonly #bySlot: Statement;

  constructor(
    db: Connection,
    parts: { catalog: Catalog; settings: Settings; limits: Limits; waits: Waits; endings: Endings; events: JobEvents },
  ) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#limits = parts.limits;
    this.#waits = parts.waits;
    this.#endings = parts.endings;
    this.#events = parts.events;
    this.#insert = db.prepare(`insert into holdfast_jobs (${COLUMNS}) values (?, 'pending', ?, ?, ?, ?, ?, ?, ?, ?, ?)`);
    // Many rows a statement: half again as fast as one by one.
    this.#insertMany = db.prepare(
      `insert into holdfast_jobs (${COLUMNS}) values ${Array(ROWS).fill("(?, 'pending', ?, ?, ?, ?, ?, ?, ?, ?, ?)").join(", ")}`,
    );
    // What only some jobs have, so that the others need not carry it.
    this.#insertWhole = db.prepare(
      `insert into holdfast_jobs (${COLUMNS}, scheduled_for, limits, error, finished_at)
       values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    );
    this.#insertInput = db.prepare("insert into holdfast_inputs (job, body) values (?, ?)");
    this.#insertId = db.prepare("insert into holdfast_ids (id, job, name, chosen) values (?, ?, ?, ?)");
    this.#byId = db.prepare("select name, job from holdfast_ids where id = ?");
    this.#byKey = db.prepare("select lane, key from holdfast_jobs where key = ? and created_at = ? and id is null");
    // By holdfast_jobs_slot.
    this.#bySlot = db.prepare(
      `select key, created_at, id from holdfast_jobs
       where slot = ? and slot is not null and (state = 'pending' or state = 'running' or state = 'waiting')`,
    );
  }

  run(tx: Tx, jobs: readonly NewJob[]): Enqueued[] {
    const answers: Enqueued[] = [];
    let plain: Value[] = [];
    /** Ids of jobs that turned out to be there already, under another. */
    const aliases = new Map<string, string>();
    const flush = (): void => {
      this.#write(plain);
      plain = [];
    };
    this.#settings.at(tx.settings);
    for (const job of jobs) {
      // What it comes after, or is the double of, may be in this very batch.
      if (job.key !== undefined || job.after !== undefined) flush();
      const known = job.id !== undefined || job.key !== undefined ? this.#known(job) : undefined;
      const after = job.after?.map((upstream) => aliases.get(upstream) ?? upstream);
      const refused = known ?? (after === undefined ? undefined : this.#missing(after));
      if (refused !== undefined) {
        const given = job.id === undefined ? job.followUpId : "duplicate" in refused ? job.id : undefined;
        if (given !== undefined) aliases.set(given, refused.id);
        answers.push(refused);
        continue;
      }
      const key = tx.nextKey();
      const id = job.id ?? job.followUpId ?? null;
      const runAt = job.runAt ?? tx.now + job.delay;
      const large = isLarge(job.input);
      const lane = this.#catalog.laneFor(tx, job);
      const policy = this.#catalog.policyFor(tx, job.policy);
      const limits = this.#limitsOf(tx, job);
      const slot = job.key === undefined ? null : slotOf(job.name, job.key);
      const input = large ? ELSEWHERE : job.input;
      const gate = runAt > tx.now ? "time" : null;
      let broken = false;
      if (limits === null && after === undefined && job.scheduledFor === undefined) {
        plain.push(key, gate, lane, job.priority, policy, runAt, tx.now, id, slot, input);
        if (plain.length === ROWS * PLAIN) flush();
      } else {
        const { priority, scheduledFor = null } = job;
        const row = { key, gate, lane, priority, policy, runAt, id, slot, input, scheduledFor, limits };
        broken = this.#writeWhole(tx, row, after ?? []) === "cancelled";
      }
      if (large) this.#insertInput.run(key, job.input);
      if (id !== null) this.#insertId.run(id, key, job.name, job.id === undefined ? 0 : 1);
      if (this.#settings.tells(job.queue)) {
        flush();
        this.#events.always(tx, "job.enqueued", key);
        if (broken) this.#events.always(tx, "job.cancelled", key);
      }
      tx.ready(job.queue);
      answers.push({ id: publicId(id, tx.now, key), duplicate: false });
    }
    flush();
    this.#endings.write(tx);
    if (answers.some((answer) => "duplicate" in answer && !answer.duplicate)) tx.wrote();
    return answers;
  }

  /** The first of these that cannot be: its id belongs to a job of another name, or what it comes after is not known. */
  refused(jobs: readonly NewJob[]): Refusal | undefined {
    const owners = new Map<string, string>();
    for (const { id, followUpId, name, after } of jobs) {
      for (const upstream of after ?? []) {
        if (!owners.has(upstream) && this.#stateOf(upstream) === null) return { id: upstream, missing: true, name };
      }
      const own = id ?? followUpId;
      if (own === undefined) continue;
      const owner = owners.get(own) ?? (id === undefined ? undefined : this.#nameOf(id)) ?? name;
      if (owner !== name) return { id: own, taken: owner, name };
      owners.set(own, owner);
    }
    return undefined;
  }

  /** A row with all it may have. A job whose upstream has ended otherwise than succeeded is cancelled from the start. */
  #writeWhole(tx: Tx, row: Row, after: readonly string[]): JobState {
    const { key, lane, priority, limits } = row;
    const upstreams = after.map((id) => ({ id, job: this.#find(id)?.key as JobKey, state: this.#stateOf(id) as JobState }));
    const broken = upstreams.find(({ state }) => isFinished(state) && state !== "succeeded");
    const unfinished = upstreams.filter(({ state }) => !isFinished(state));
    const state: JobState = broken !== undefined ? "cancelled" : unfinished.length > 0 ? "waiting" : "pending";
    let gate: string | null = state === "pending" ? row.gate : null;
    if (state === "pending" && gate === null && limits !== null) gate = this.#limits.admit(tx, { key, lane, priority, limits });
    const error = broken === undefined ? null : upstreamEnded(broken.id, broken.state as FinishedState);
    const values = [key, state, gate, lane, priority, row.policy, row.runAt, tx.now, row.id, row.slot, row.input];
    this.#insertWhole.run(...values, row.scheduledFor, limits, error, error === null ? null : tx.now);
    if (broken !== undefined) this.#endings.add(key, lane, "cancelled");
    if (state === "waiting") for (const { job } of unfinished) this.#waits.add(key, job);
    return state;
  }

  /** What stands in the row: the limits of its definition, and those that hold for everything in its queue. */
  #limitsOf(tx: Tx, job: NewJob): string | null {
    const own = job.declares === undefined ? NONE : this.#settings.declare(tx, job.declares);
    const ofQueue = this.#settings.limited ? this.#settings.ofQueue(job.queue) : NONE;
    if (own.length + ofQueue.length === 0) return null;
    return limitsText([...own, ...ofQueue.filter((rule) => !own.includes(rule))], job.limitKeys ?? []);
  }

  #missing(after: readonly string[]): Enqueued | undefined {
    const id = after.find((upstream) => this.#stateOf(upstream) === null);
    return id === undefined ? undefined : { id, missing: true };
  }

  #stateOf(id: string): JobState | null {
    return this.#waits.stateOf(id, this.#find(id)?.key ?? null);
  }

  #write(values: Value[]): void {
    if (values.length === ROWS * PLAIN) this.#insertMany.run(...values);
    else for (let i = 0; i < values.length; i += PLAIN) this.#insert.run(...values.slice(i, i + PLAIN));
  }

  #known(job: NewJob): Enqueued | undefined {
    if (job.id !== undefined) {
      const name = this.#nameOf(job.id);
      if (name !== undefined) return name === job.name ? { id: job.id, duplicate: true } : { id: job.id, taken: name };
    }
    if (job.key === undefined) return undefined;
    const row = this.#bySlot.row(slotOf(job.name, job.key)) as [JobKey, number, string | null] | undefined;
    return row && { id: publicId(row[2], row[1], row[0]), duplicate: true };
  }

  #nameOf(id: string): string | undefined {
    return this.#find(id)?.name;
  }

  /** A chosen id is remembered after its job is gone. */
  #find(id: string): { name: string; key: JobKey } | undefined {
    const chosen = this.#byId.row(id) as [string, JobKey] | undefined;
    if (chosen !== undefined) return { name: chosen[0], key: chosen[1] };
    const generated = parseGeneratedId(id);
    const row = generated && (this.#byKey.row(generated.key, generated.createdAt) as [number, JobKey] | undefined);
    return row ? { name: this.#catalog.lane(row[0]).name, key: row[1] } : undefined;
  }
}

interface Row {
  key: JobKey;
  gate: string | null;
  lane: number;
  priority: number;
  policy: number;
  runAt: number;
  id: string | null;
  slot: string | null;
  input: string | null;
  scheduledFor: number | null;
  limits: string | null;
}

/** Why a job cannot be; `name` is its own. */
export type Refusal = { id: string; name: string } & ({ taken: string } | { missing: true });
