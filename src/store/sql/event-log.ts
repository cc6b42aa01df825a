import type { Event } from "../../core/jobs/event.ts";
import { EVENT, type EventQuery, type EventRow, type EventStore, toEvent } from "../events.ts";
import type { Access, Dialect, Reads, Script, Tx } from "./script.ts";

/**
 * The numbers of events. SQLite numbers an event when it is written; PostgreSQL numbers committed events when they are
 * read, see `Numbering`.
 */
export interface EventNumbers {
  /** SQL: whether there are events without a number, with an id above `:low`. */
  readonly isBehind: string;
  readonly low: number;
  /** SQL: the highest number that an event ever had. */
  readonly newest: string;
  /** Numbers at least so many events. */
  number(atLeast: number): Promise<void>;
  /** The highest number after all events that this transaction can see are numbered. */
  newestIn(db: Reads): Script<number>;
  /** The same, as of the writes that were submitted before this call. */
  newestNow(): Promise<number>;
  /** SQL: deletes events and returns their numbers. */
  deleted(where: string): string;
}

/** What a store adds to the rows of events so that damage to them is noticed. */
export interface EventGuard {
  /** Begins with a comma. */
  columns: string;
  /** Throws if a row is not what was written. A damaged event is delivered to no sink. */
  check(row: EventRow): void;
}

/** Each row says whether events without a number existed when it was read. */
interface Looked {
  isBehind: boolean;
}

/** Reads rows; if there were events without a number, numbers them all and reads again. */
export async function readNumbered<Row extends Looked>(numbers: EventNumbers, read: () => Promise<Row[]>): Promise<Row[]> {
  const rows = await read();
  if (!rows[0]?.isBehind) return rows;
  await numbers.number(Number.POSITIVE_INFINITY);
  return read();
}

/** The events that are kept, in the order of their commits. */
export class EventLog implements EventStore {
  readonly #access: Access;
  readonly #parts: { numbers: EventNumbers; guard: EventGuard; databaseId: string };
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, parts: { numbers: EventNumbers; guard: EventGuard; databaseId: string }, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#sql = statements(dialect, parts);
  }

  async page(query: EventQuery): Promise<Event[]> {
    const { numbers, guard, databaseId } = this.#parts;
    let rows = await this.#page(query);
    // Events without a number come after all that have one.
    if (rows[0]?.isBehind && (query.last || rows.filter(isEvent).length < query.limit)) {
      await numbers.number(isPlain(query) ? query.limit : Number.POSITIVE_INFINITY);
      rows = await this.#page(query);
    }
    return rows.filter(isEvent).map((row) => {
      guard.check(row);
      return toEvent(row, databaseId);
    });
  }

  #page(query: EventQuery): Promise<PageRow[]> {
    const { after, limit, types = [], job = null, build = null, last = false } = query;
    const sql = isPlain(query) ? this.#sql.oldest : last ? this.#sql.last : this.#sql.filtered;
    const { low } = this.#parts.numbers;
    const params = { low, after, limit, types, isTyped: query.types !== undefined, job, build };
    return this.#access.read((db) => db.all<PageRow>(sql, params));
  }

  newest(): Promise<number> {
    return this.#parts.numbers.newestNow();
  }

  async trim({ olderThan, limit }: { olderThan: number; limit: number }): Promise<number> {
    const { numbers } = this.#parts;
    // If nothing reads events, they are numbered here; without a number they would never be trimmed.
    const look = { olderThan, limit: 1, low: numbers.low };
    const [row] = await readNumbered(numbers, () => this.#access.read((db) => db.all<Trimmable>(this.#sql.trimmable, look)));
    if (!row?.isOld) return 0;
    return this.#access.write("trim", (tx) => this.#trim(tx, olderThan, limit));
  }

  *#trim(tx: Tx, olderThan: number, limit: number): Script<number> {
    return (yield* tx.returning(this.#sql.trim, { olderThan, limit })).length;
  }
}

interface Trimmable extends Looked {
  isOld: boolean;
}

type PageRow = Looked & (EventRow | { seq: null });

function isEvent(row: PageRow): row is Looked & EventRow {
  return row.seq !== null;
}

/** Everything after a number, of any kind. */
function isPlain({ types, job, build, last = false }: EventQuery): boolean {
  return types === undefined && job === undefined && build === undefined && !last;
}

function statements(dialect: Dialect, { numbers, guard }: { numbers: EventNumbers; guard: EventGuard }) {
  const events = dialect.table("events");
  const read = `select ${EVENT}${guard.columns} from ${events} as event where`;
  // There is always at least one row, so that `isBehind` is of the same instant.
  const page = (from: string) => `
    select ${numbers.isBehind} as "isBehind", page.* from (select 1 as one) as always left join (${from}) as page on true
    order by page.seq`;
  // For operators; it may read all events.
  const asked = `seq > :after and (cast(:job as text) is null or job = :job) and (cast(:build as text) is null or build = :build)
    and (not :isTyped or exists (
      select 1 from ${dialect.items("text", ":types")} as asked
      where event.type = asked.value or (asked.value like '%*'
        and substr(event.type, 1, length(asked.value) - 1) = substr(asked.value, 1, length(asked.value) - 1))))`;
  // The oldest events that all sinks have passed and that are older than is kept. An event further in the future than
  // that was written while the clock was wrong; younger events must not wait for it.
  const gone = `seq <= (
      select max(seq) from (
        select seq from ${events}
        where seq <= coalesce((select min(cursor) from ${dialect.table("sinks")}), ${numbers.newest})
        order by seq limit :limit) as oldest)
    and at not between :now - cast(:olderThan as bigint) and :now + cast(:olderThan as bigint)`;
  return {
    // By the primary key: it costs what it returns.
    oldest: page(`${read} seq > :after order by seq limit :limit`),
    filtered: page(`${read} ${asked} order by seq limit :limit`),
    last: page(`${read} ${asked} order by seq desc limit :limit`),
    trimmable: `select ${numbers.isBehind} as "isBehind", exists (select 1 from ${events} where ${gone}) as "isOld"`,
    trim: numbers.deleted(gone),
  };
}
