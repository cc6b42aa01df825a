import { damagedRow } from "../../core/errors.ts";
import type { Event } from "../../core/event.ts";
import { EVENT, type EventRow, toEvent } from "../event-row.ts";
import type { EventQuery, EventStore } from "../events.ts";
import type { Access } from "./access.ts";
import { isIntact } from "./checksum.ts";
import type { Connection, Statement } from "./driver.ts";

/** `seq` is never used again, so the newest ever is known even when everything was trimmed. */
export const NEWEST = "coalesce((select seq from sqlite_sequence where name = 'holdfast_events'), 0)";

/** The outbox's outlet: what happened, for as long as it is kept. */
export class Outbox implements EventStore {
  readonly #access: Access;
  readonly #databaseId: string;
  readonly #oldest: Statement;
  readonly #newest: Statement;
  readonly #filtered: Statement;
  readonly #last: Statement;
  readonly #trimmable: Statement;
  readonly #trim: Statement;

  constructor(db: Connection, databaseId: string, access: Access) {
    this.#access = access;
    this.#databaseId = databaseId;
    // By the primary key, from where the reader stands: it costs what it returns.
    this.#oldest = db.prepare(`select ${EVENT}, checksum from holdfast_events where seq > ? order by seq limit ?`);
    this.#newest = db.prepare(`select ${NEWEST}`);
    // An operator's look: it may walk the outbox, which holds a week.
    const asked = `seq > :after and (:job is null or job = :job) and (:build is null or build = :build) and (:types is null or exists (
      select 1 from json_each(:types) as asked
      where holdfast_events.type = asked.value
         or (asked.value like '%*' and substr(holdfast_events.type, 1, length(asked.value) - 1) = substr(asked.value, 1, length(asked.value) - 1))))`;
    this.#filtered = db.prepare(`select ${EVENT}, checksum from holdfast_events where ${asked} order by seq limit :limit`);
    this.#last = db.prepare(
      `select * from (select ${EVENT}, checksum from holdfast_events where ${asked} order by seq desc limit :limit) order by seq`,
    );
    // What is oldest, all sinks have passed, and is older than is kept. Or younger than it can be: the clock was wrong
    // then, and what follows must not wait for that instant.
    const gone = `seq in (
        select seq from holdfast_events
        where seq <= coalesce((select min(cursor) from holdfast_sinks), ${NEWEST}) order by seq limit :limit)
      and at not between :now - :olderThan and :now + :olderThan`;
    this.#trimmable = db.prepare(`select 1 from holdfast_events where ${gone} limit 1`);
    this.#trim = db.prepare(`delete from holdfast_events where ${gone}`);
  }

  page({ after, limit, types, job, build, last }: EventQuery): Promise<Event[]> {
    return this.#access.read(() => {
      if (types === undefined && job === undefined && build === undefined && !last)
        return (this.#oldest.rows(after, limit) as CheckedRow[]).map((row) => this.#event(row));
      const asked = {
        after,
        limit,
        job: job ?? null,
        build: build ?? null,
        types: types === undefined ? null : JSON.stringify(types),
      };
      return (last ? this.#last : this.#filtered).all<Row>(asked).map((row) => this.#event(Object.values(row) as CheckedRow));
    });
  }

  /** A damaged one is delivered to nobody: whoever is to have it stands before it, and says so. */
  #event([seq, type, at, transition, job, build, data, checksum]: CheckedRow): Event {
    if (!isIntact("holdfast_events", { type, at, transition, job, build, data, checksum })) throw damagedRow(`The event ${seq}`);
    return toEvent([seq, type, at, transition, job, build, data], this.#databaseId);
  }

  newest(): Promise<number> {
    return this.#access.read(() => (this.#newest.row() as [number])[0]);
  }

  async trim({ olderThan, limit }: { olderThan: number; limit: number }): Promise<number> {
    const isOld = () => this.#trimmable.get({ olderThan, now: this.#access.now(), limit: 1 }) !== undefined;
    if (!(await this.#access.read(isOld))) return 0;
    return this.#access.write("trim", (tx) => {
      const trimmed = this.#trim.runNamed({ olderThan, limit, now: tx.now });
      if (trimmed > 0) tx.wrote();
      return trimmed;
    });
  }
}

type Row = Record<string, string | number | null>;
type CheckedRow = [...EventRow, checksum: number | null];
