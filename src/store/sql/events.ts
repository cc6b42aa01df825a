import type { Event } from "../../core/jobs/event.ts";
import type { Fence, ProcessId } from "../../core/text/ids.ts";
import { type Delivery, EVENT, type EventQuery, type EventRow, type SinkHold, type SinkView, toEvent } from "../events.ts";
import { type Flag, isYes } from "../job-row.ts";
import type { Audit } from "./audit.ts";
import { type Access, type Dialect, type Reads, type Script, type Tx, RowGuard } from "./script.ts";
import type { EventStore } from "../store.ts";

/** SQLite numbers an event when it is written; PostgreSQL numbers committed events when they are read, see `EventNumbering`. */
export interface EventNumbers {
  /** SQL: whether there are events above `:low` that have no number yet. */
  readonly isBehind: string;
  readonly low: number;
  readonly newest: string;
  number(atLeast: number): Promise<void>;
  /** Returns the highest number, after all events that this transaction can see are numbered. */
  newestIn(db: Reads): Script<number>;
  /** Returns the same, as of the writes that were submitted before this call. */
  newestNow(): Promise<number>;
  deleted(where: string): string;
}

interface Looked {
  isBehind: boolean;
}

export async function readNumbered<Row extends Looked>(numbers: EventNumbers, read: () => Promise<Row[]>): Promise<Row[]> {
  const rows = await read();
  if (!rows[0]?.isBehind) return rows;
  await numbers.number(Number.POSITIVE_INFINITY);
  return read();
}

interface Parts {
  numbers: EventNumbers;
  databaseId: string;
  audit: Audit;
}

interface Claim {
  holder: ProcessId;
  ttl: number;
  token: Fence | null;
}

interface Cursor {
  cursor: number;
}

export class EventLog implements EventStore {
  readonly #access: Access;
  readonly #parts: Parts;
  readonly #guard: RowGuard;
  readonly #sql: ReturnType<typeof statements> & ReturnType<typeof sinkStatements>;

  constructor(dialect: Dialect, parts: Parts, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#guard = new RowGuard(dialect, "events");
    this.#sql = { ...statements(dialect, parts.numbers, this.#guard), ...sinkStatements(dialect, parts.numbers) };
  }

  async page(query: EventQuery): Promise<Event[]> {
    const { numbers, databaseId } = this.#parts;
    let rows = await this.#page(query);
    if (rows[0]?.isBehind && (query.last || rows.filter(isEvent).length < query.limit)) {
      await numbers.number(isPlain(query) ? query.limit : Number.POSITIVE_INFINITY);
      rows = await this.#page(query);
    }
    return rows.filter(isEvent).map((row) => {
      // A damaged event throws here, so that it reaches no sink.
      this.#guard.check(row, `The event ${row.seq}`);
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

  async trim({ olderThan, limit }: { olderThan: number; limit: number }): Promise<number> {
    const { numbers } = this.#parts;
    // If nothing reads events, they are numbered here, because without a number they would never be trimmed.
    const look = { olderThan, limit: 1, low: numbers.low };
    const [row] = await readNumbered(numbers, () => this.#access.read((db) => db.all<Trimmable>(this.#sql.trimmable, look)));
    if (!row?.isOld) return 0;
    return this.#access.write("trim", (tx) => this.#trim(tx, olderThan, limit));
  }

  *#trim(tx: Tx, olderThan: number, limit: number): Script<number> {
    return (yield* tx.returning(this.#sql.trim, { olderThan, limit })).length;
  }

  position(sink?: { name: string; kind: string }): Promise<number> {
    if (sink === undefined) return this.#parts.numbers.newestNow();
    return this.#write("sink", sink.name, (tx) => this.#open(tx, sink));
  }

  *#open(tx: Tx, { name, kind }: { name: string; kind: string }): Script<number> {
    for (;;) {
      const found = yield* tx.get<Cursor & { kind: string }>(this.#sql.find, { name });
      if (found !== undefined) {
        if (found.kind !== kind) yield* tx.run(this.#sql.setKind, { name, kind });
        return found.cursor;
      }
      const cursor = yield* this.#parts.numbers.newestIn(tx);
      if (yield* tx.run(this.#sql.insert, { name, kind, cursor })) return cursor;
    }
  }

  /** Reads before it writes, because a standby process asks again and again, and a refusal must write nothing. */
  async hold(name: string, claim: Claim): Promise<SinkHold | null> {
    type Seen = Cursor & { token: Fence; isFree: Flag };
    const { ttl, token } = claim;
    const seen = await this.#access.read((db) => db.get<Seen>(this.#sql.look, { name, ttl }));
    if (seen === undefined) return null;
    if (!isYes(seen.isFree) && seen.token !== token) return { token: null, cursor: seen.cursor };
    return this.#write("hold", name, (tx) => this.#hold(tx, name, claim));
  }

  *#hold(tx: Tx, name: string, { holder, ttl, token }: Claim): Script<SinkHold | null> {
    if (token !== null) {
      const [kept] = yield* tx.returning<Cursor>(this.#sql.keep, { name, holder, ttl, token });
      if (kept !== undefined) return { token, cursor: kept.cursor };
    }
    const [taken] = yield* tx.returning<Cursor & { token: Fence }>(this.#sql.take, { name, holder, ttl });
    if (taken !== undefined) return { token: taken.token, cursor: taken.cursor };
    const found = yield* tx.get<Cursor>(this.#sql.find, { name });
    return found === undefined ? null : { token: null, cursor: found.cursor };
  }

  deliver(name: string, token: Fence, delivery: Delivery): Promise<boolean> {
    const { advance, fail, release } = this.#sql;
    if (delivery === null) return this.#write("sink", name, (tx) => tx.run(release, { name, token }));
    const isDelivered = "seq" in delivery;
    const sql = isDelivered ? advance : fail;
    return this.#write(isDelivered ? "advance" : "sink", name, (tx) => tx.run(sql, { name, token, ...delivery }));
  }

  dropSink(name: string): Promise<boolean> {
    return this.#write("sink", name, (tx) => this.#drop(tx, name));
  }

  *#drop(tx: Tx, name: string): Script<boolean> {
    const [before] = yield* tx.returning<object>(this.#sql.drop, { name });
    if (before === undefined) return false;
    yield* this.#parts.audit.record(tx, { action: "sink.forgotten", name, before: { ...before }, after: null });
    return true;
  }

  async sinks(): Promise<SinkView[]> {
    type Row = SinkView & { isBehind: boolean };
    const { numbers } = this.#parts;
    const rows = await readNumbered(numbers, () => this.#access.read((db) => db.all<Row>(this.#sql.sinks, { low: numbers.low })));
    return rows.map(({ name, kind, cursor, behind, oldestAt, holder, failures, failedAt, error, deliveredAt, createdAt }) => {
      return { name, kind, cursor, behind, oldestAt, holder, failures, failedAt, error, deliveredAt, createdAt };
    });
  }

  #write<T>(operation: "sink" | "hold" | "advance", name: string, script: (tx: Tx) => Script<T>): Promise<T> {
    return this.#access.write(operation, script, { row: `sink ${name}` });
  }
}

interface Trimmable extends Looked {
  isOld: boolean;
}

type PageRow = Looked & (EventRow | { seq: null });

function isEvent(row: PageRow): row is Looked & EventRow {
  return row.seq !== null;
}

function isPlain({ types, job, build, last = false }: EventQuery): boolean {
  return types === undefined && job === undefined && build === undefined && !last;
}

function statements(dialect: Dialect, numbers: EventNumbers, guard: RowGuard) {
  const events = dialect.table("events");
  const read = `select ${EVENT}${guard.column} from ${events} as event where`;
  // There is always at least one row, so that `isBehind` is of the same instant.
  const page = (from: string) => `
    select ${numbers.isBehind} as "isBehind", page.* from (select 1 as one) as always left join (${from}) as page on true
    order by page.seq`;
  const asked = `seq > :after and (cast(:job as text) is null or job = :job) and (cast(:build as text) is null or build = :build)
    and (not :isTyped or exists (
      select 1 from ${dialect.items("text", ":types")} as asked
      where event.type = asked.value or (asked.value like '%*'
        and substr(event.type, 1, length(asked.value) - 1) = substr(asked.value, 1, length(asked.value) - 1))))`;
  // All sinks have passed them and they are old. One far in the future has a wrong clock: younger ones must not wait for it.
  const gone = `seq <= (
      select max(seq) from (
        select seq from ${events}
        where seq <= coalesce((select min(cursor) from ${dialect.table("sinks")}), ${numbers.newest})
        order by seq limit :limit) as oldest)
    and at not between :now - cast(:olderThan as bigint) and :now + cast(:olderThan as bigint)`;
  return {
    oldest: page(`${read} seq > :after order by seq limit :limit`),
    filtered: page(`${read} ${asked} order by seq limit :limit`),
    last: page(`${read} ${asked} order by seq desc limit :limit`),
    trimmable: `select ${numbers.isBehind} as "isBehind", exists (select 1 from ${events} where ${gone}) as "isOld"`,
    trim: numbers.deleted(gone),
  };
}

function sinkStatements(dialect: Dialect, numbers: EventNumbers) {
  const { table } = dialect;
  const sinks = table("sinks");
  const held = "name = :name and token = :token and holder is not null";
  // A sink is free if it has no registered holder, or if its time is over, or further away than `ttl` (the clock was set back). A
  // deposed holder's token moves no cursor, so no event is lost. `:clock` is read after a wait for the row's new holder.
  const free = `(
    sink.holder is null or sink.expires_at <= :clock or sink.expires_at > :clock + :ttl
    or not exists (select 1 from ${table("processes")} as process where process.id = sink.holder))`;
  return {
    find: `select cursor, kind from ${sinks} where name = :name`,
    insert: `
      insert into ${sinks} (name, kind, cursor, created_at) values (:name, :kind, :cursor, :clock)
      on conflict (name) do nothing`,
    setKind: `update ${sinks} set kind = :kind where name = :name and kind <> :kind`,
    look: `select cursor, token, ${free} as "isFree" from ${sinks} as sink where name = :name`,
    // One statement, so that of two processes that try at once, one takes the sink and the other changes nothing.
    take: `
      update ${sinks} as sink set holder = :holder, token = ${dialect.fence}, expires_at = :clock + :ttl
      where name = :name and ${free} returning token, cursor`,
    keep: `
      update ${sinks} set expires_at = :clock + :ttl where name = :name and holder = :holder and token = :token
      returning cursor`,
    // Of two writes in flight, the higher number wins, in whichever order they arrive.
    advance: `
      update ${sinks} set cursor = ${dialect.greatest("cursor", ":seq")}, expires_at = :clock + :ttl, delivered_at = :clock,
        failures = 0, failed_at = null, error = null
      where ${held}`,
    fail: `
      update ${sinks} set failures = failures + 1, failed_at = :clock, error = :error, expires_at = :clock + :ttl
      where ${held}`,
    release: `update ${sinks} set holder = null, expires_at = null where ${held}`,
    drop: `delete from ${sinks} where name = :name returning kind, cursor`,
    // Numbers have no gaps, and events that a sink has not passed are not trimmed, so `behind` need not be counted.
    sinks: `
      select ${numbers.isBehind} as "isBehind", name, kind, cursor, holder, failures, failed_at as "failedAt", error,
        delivered_at as "deliveredAt", created_at as "createdAt",
        ${dialect.greatest("0", `(select max(seq) from ${table("events")}) - cursor`)} as behind,
        (select at from ${table("events")} where seq > cursor order by seq limit 1) as "oldestAt"
      from ${sinks} order by ${dialect.byBytes("name")}`,
  };
}
