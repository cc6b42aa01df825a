import { damagedRow } from "../../../core/text/errors.ts";
import { about, change, type EventType, jobEvent, type JobEventType, type NewEvent } from "../../../core/jobs/event.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { publicId } from "../../job-row.ts";
import type { Access } from "../../sql/script.ts";
import type { EventGuard, EventNumbers } from "../../sql/events.ts";
import type { Catalog, Settings } from "./catalog.ts";
import { type CheckedRow, isIntact, rowChecksum } from "../checksum.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

/** The outbox's inlet: an event is written in the transaction of what it tells, or not at all. */
export class Events {
  readonly #insert: Statement;
  #told = 0;

  constructor(db: Connection) {
    this.#insert = db.prepare(
      "insert into holdfast_events (type, at, transition, job, build, data, checksum) values (?, ?, ?, ?, ?, ?, ?)",
    );
  }

  add(tx: Tx, { type, transition, job, build, data }: NewEvent): void {
    const row = { type, at: tx.now, transition, job: job ?? null, build: build ?? null, data: JSON.stringify(data) };
    this.#insert.run(type, tx.now, transition, row.job, row.build, row.data, rowChecksum("holdfast_events", row));
    tx.wrote();
  }

  tell(tx: Tx, event: NewEvent): void {
    this.add(tx, event);
  }

  /** No other commit has its number, and no other event of this one the second. */
  unique(tx: Tx): string {
    return `${tx.commit}:${++this.#told}`;
  }

  /** What an operator does. One commit may hold the same twice, e.g. a lock broken, taken and broken again: both are told. */
  act(tx: Tx, type: EventType, subject: string, data = about(type, subject), build?: string): void {
    const transition = change(type, subject, tx.commit, ++this.#told);
    this.add(tx, { type, transition, data, ...(build === undefined ? {} : { build }) });
  }
}

export const EVENT_GUARD: EventGuard = {
  columns: ", checksum",
  check(row) {
    const checked = { ...row } as unknown as CheckedRow<"holdfast_events">;
    if (!isIntact("holdfast_events", checked)) throw damagedRow(`The event ${row.seq}`);
  },
};

export function eventNumbers(access: Access): EventNumbers {
  // A number is never used again, so the newest is known even when every event was trimmed.
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

/**
 * What happens to jobs, told where their queue asks for it. The job's row is read after the change, so that no other code
 * pays for carrying its id about.
 */
export class JobEvents {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #events: Events;
  readonly #row: Statement;

  constructor(db: Connection, parts: { catalog: Catalog; settings: Settings; events: Events }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#events = parts.events;
    this.#row = db.prepare("select lane, fence, attempt, created_at, id, error from holdfast_jobs where key = ?");
  }

  /** Whether the queue of this lane asks for events. */
  asked(tx: Tx, lane: number): boolean {
    const settings = this.#settings.at(tx.settings);
    return settings.telling && settings.tells(this.#catalog.lane(lane).queue);
  }

  /** Told only where it is asked for. */
  tell(tx: Tx, type: JobEventType, lane: number, job: JobKey): void {
    if (this.asked(tx, lane)) this.always(tx, type, job);
  }

  /** What an operator does is always told. */
  always(tx: Tx, type: JobEventType, job: JobKey): void {
    const [lane, fence, attempt, createdAt, id, error] = this.#row.row(job) as Row;
    const told = { key: job, fence, attempt, id: publicId(id, createdAt, job), error };
    this.#events.add(tx, jobEvent(type, told, this.#catalog.lane(lane)));
  }
}
