import {
  subjectData,
  commitTransition,
  type EventType,
  jobEvent,
  type JobEventType,
  type NewEvent,
} from "../../../core/jobs/event.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { publicId } from "../../job-row.ts";
import type { Access } from "../../sql/script.ts";
import type { EventNumbers } from "../../sql/events.ts";
import type { JobParts } from "./enqueue.ts";
import { rowChecksum } from "../checksum.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

export class Events {
  readonly #insert: Statement;
  #count = 0;

  constructor(db: Connection) {
    this.#insert = db.prepare(
      "insert into holdfast_events (type, at, transition, job, build, data, checksum) values (?, ?, ?, ?, ?, ?, ?)",
    );
  }

  record(tx: Tx, { type, transition, job, build, data }: NewEvent): void {
    const row = { type, at: tx.now, transition, job: job ?? null, build: build ?? null, data: JSON.stringify(data) };
    this.#insert.run(type, tx.now, transition, row.job, row.build, row.data, rowChecksum("holdfast_events", row));
    tx.wrote();
  }

  unique(tx: Tx): string {
    return `${tx.commit}:${++this.#count}`;
  }

  /** Records an operator's action. A count keeps the events apart if one commit contains the same action twice. */
  act(tx: Tx, type: EventType, subject: string, data = subjectData(type, subject), build?: string): void {
    const transition = commitTransition(type, subject, tx.commit, ++this.#count);
    this.record(tx, { type, transition, data, ...(build === undefined ? {} : { build }) });
  }
}

export function eventNumbers(access: Access): EventNumbers {
  // Numbers are never reused, so the sequence knows the newest even after every event was trimmed.
  const newest = "coalesce((select seq from sqlite_sequence where name = 'holdfast_events'), 0)";
  const sql = `select ${newest} as newest`;
  const numbers: EventNumbers = {
    isBehind: "false",
    low: 0,
    newest,
    number: async () => {},
    *newestIn(db) {
      return ((yield* db.get<{ newest: number }>(sql)) as { newest: number }).newest;
    },
    newestNow: () => access.read((db) => numbers.newestIn(db)),
    deleted: (where) => `delete from holdfast_events where ${where} returning seq`,
  };
  return numbers;
}

type Row = [lane: number, fence: Fence, attempt: number, createdAt: number, id: string | null, error: string | null];

/** Records events of jobs. Except for new jobs, it reads the row after the change, so that callers need not pass its values. */
export class JobEvents {
  readonly #parts: JobParts;
  readonly #row: Statement;

  constructor(db: Connection, parts: JobParts) {
    this.#parts = parts;
    this.#row = db.prepare("select lane, fence, attempt, created_at, id, error from holdfast_jobs where key = ?");
  }

  isEnabled(tx: Tx, lane: number): boolean {
    const settings = this.#parts.settings.at(tx.settings);
    return settings.hasEvents && settings.recordsEvents(this.#parts.catalog.lane(lane).queue);
  }

  addIfEnabled(tx: Tx, type: JobEventType, lane: number, job: JobKey): void {
    if (this.isEnabled(tx, lane)) this.add(tx, type, job);
  }

  addNew(tx: Tx, { key, id }: { key: JobKey; id: string }, lane: number): void {
    const row = { key, fence: tx.commit, attempt: 0, id, error: null };
    this.#parts.events.record(tx, jobEvent("job.enqueued", row, this.#parts.catalog.lane(lane)));
  }

  add(tx: Tx, type: JobEventType, job: JobKey): void {
    const [lane, fence, attempt, createdAt, id, error] = this.#row.row(job) as Row;
    const row = { key: job, fence, attempt, id: publicId(id, createdAt, job), error };
    this.#parts.events.record(tx, jobEvent(type, row, this.#parts.catalog.lane(lane)));
  }
}
