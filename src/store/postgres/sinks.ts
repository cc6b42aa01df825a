import type { Event } from "../../core/event.ts";
import type { Fence, ProcessId } from "../../core/ids.ts";
import { EVENT, type EventRow, toEvent } from "../event-row.ts";
import type { EventQuery, SinkHold, SinkView } from "../store.ts";
import type { Acts } from "./acts.ts";
import { listOf } from "./driver.ts";
import type { Tx } from "./transaction.ts";
import { NEWEST, Numbering } from "./numbering.ts";
import type { Reader } from "./reader.ts";

type SinkRow = [
  isBehind: boolean,
  name: string,
  kind: string,
  cursor: number,
  holder: ProcessId | null,
  failures: number,
  failedAt: number | null,
  error: string | null,
  deliveredAt: number | null,
  createdAt: number,
  behind: number,
  oldestAt: number | null,
];

/** The outbox's outlet: what happened, and how far each sink has got with it. */
export class Sinks {
  readonly #reader: Reader;
  readonly #acts: Acts;
  readonly #numbering: Numbering;
  readonly #databaseId: string;
  readonly #sql: Record<
    | "oldest"
    | "filtered"
    | "last"
    | "find"
    | "open"
    | "rename"
    | "look"
    | "take"
    | "keep"
    | "advance"
    | "fail"
    | "release"
    | "drop"
    | "all"
    | "trimmable"
    | "trim",
    string
  >;

  constructor(s: string, parts: { reader: Reader; acts: Acts; databaseId: string }) {
    this.#reader = parts.reader;
    this.#acts = parts.acts;
    this.#numbering = new Numbering(s, parts.reader);
    this.#databaseId = parts.databaseId;
    // Always at least one row, which says whether something has no number yet: that must be of the same instant.
    const page = (from: string) => `
      select ${this.#numbering.isBehind("$1")}, ${EVENT} from (select) as always left join (${from}) as page on true order by seq`;
    // An operator's look: it may walk the outbox, which holds a week.
    const asked = `seq > $2 and ($4::text is null or job = $4) and ($6::text is null or build = $6) and ($5::text[] is null or exists (
      select 1 from unnest($5::text[]) as asked (type)
      where events.type = asked.type or (asked.type like '%*' and starts_with(events.type, left(asked.type, -1)))))`;
    /**
     * Who may deliver: the one who has it, until its time is over or its process is gone. A time further away than it can
     * be was written before the clock was set back, and counts as over. Whoever is robbed by this loses nothing but its
     * turn: its token moves no cursor any more. The clock is asked where it is compared: who had to wait for another one
     * asks again then, and does not take that one's time for one of the future.
     */
    const now = `${s}.clock($1)`;
    const free = `(
      holder is null or expires_at <= ${now} or expires_at > ${now} + $3
      or not exists (select 1 from ${s}.processes where processes.id = sinks.holder))`;
    // What is oldest, all sinks have passed, and is older than is kept. Or younger than it can be: the clock was wrong
    // then, and what follows must not wait for that instant.
    const gone = `seq <= (
        select max(seq) from (
          select seq from ${s}.events
          where seq <= coalesce((select min(cursor) from ${s}.sinks), ${NEWEST(s)})
          order by seq limit $3) as oldest)
      and at not between ${now} - $2::bigint and ${now} + $2::bigint`;
    this.#sql = {
      // By the primary key, from where the reader stands: it costs what it returns.
      oldest: page(`select ${EVENT} from ${s}.events where seq > $2 order by seq limit $3`),
      filtered: page(`select ${EVENT} from ${s}.events where ${asked} order by seq limit $3`),
      last: page(`select ${EVENT} from ${s}.events where ${asked} order by seq desc limit $3`),
      find: `select cursor, kind from ${s}.sinks where name = $1`,
      open: `
        insert into ${s}.sinks (name, kind, cursor, created_at) values ($2, $3, $4, ${now})
        on conflict (name) do nothing returning cursor`,
      rename: `update ${s}.sinks set kind = $2 where name = $1 and kind <> $2 returning 1`,
      look: `select cursor, token, ${free} from ${s}.sinks where name = $2`,
      // One statement: of two that try at once, one takes it and the other changes nothing.
      take: `
        update ${s}.sinks set holder = $4, token = nextval('${s}.fence'), expires_at = ${now} + $3
        where name = $2 and ${free} returning token, cursor`,
      keep: `
        update ${s}.sinks set expires_at = ${now} + $3 where name = $2 and holder = $4 and token = $5 returning token, cursor`,
      // A cursor never goes back: of two writes in flight the later one counts, whichever comes first.
      advance: `
        update ${s}.sinks set cursor = greatest(cursor, $5), expires_at = ${now} + $3, delivered_at = ${now},
          failures = 0, failed_at = null, error = null
        where name = $2 and token = $4 and holder is not null returning 1`,
      fail: `
        update ${s}.sinks set failures = failures + 1, failed_at = ${now}, error = $5, expires_at = ${now} + $3
        where name = $2 and token = $4 and holder is not null returning 1`,
      release: `
        update ${s}.sinks set holder = null, expires_at = null
        where name = $1 and token = $2 and holder is not null returning 1`,
      drop: `delete from ${s}.sinks where name = $1 returning kind, cursor`,
      // Numbers have no gaps, and what a sink has not passed is not trimmed: nobody has to count.
      all: `
        select ${this.#numbering.isBehind("$1")}, name, kind, cursor, holder, failures, failed_at, error, delivered_at, created_at,
          ${NEWEST(s)} - cursor,
          (select at from ${s}.events where seq > cursor order by seq limit 1)
        from ${s}.sinks order by name collate "C"`,
      trimmable: `select ${this.#numbering.isBehind("$4")}, exists (select 1 from ${s}.events where ${gone})`,
      trim: `
        with gone as (delete from ${s}.events where ${gone} returning seq),
        kept as (
          update ${s}.trimmed set seq = greatest(trimmed.seq, top) from (select max(seq) as top from gone) as highest
          where id = 1 and top is not null)
        select count(*) from gone`,
    };
  }

  async events(query: EventQuery): Promise<Event[]> {
    const { limit, last = false } = query;
    let rows = await this.#page(query);
    // What has no number yet comes after all that have one.
    if (isBehind(rows) && (last || rows.filter(isEvent).length < limit)) {
      await this.#numbering.number(isPlain(query) ? limit : ALL);
      rows = await this.#page(query);
    }
    return rows.filter(isEvent).map(([, ...row]) => toEvent(row, this.#databaseId));
  }

  #page(query: EventQuery): Promise<PageRow[]> {
    const { after, limit, types, job, build, last = false } = query;
    const { oldest, filtered, last: newest } = this.#sql;
    const { low } = this.#numbering;
    if (isPlain(query)) return this.#reader.rows(oldest, low, after, limit);
    const asked = types === undefined ? null : listOf(types);
    return this.#reader.rows(last ? newest : filtered, low, after, limit, job ?? null, asked, build ?? null);
  }

  newest(tx: Tx): Promise<number> {
    return this.#numbering.within(tx);
  }

  /** Where it stands. One that is known keeps its place; only what it is may have changed. */
  async open(tx: Tx, name: string, kind: string): Promise<number> {
    for (;;) {
      const [found] = await tx.rows<[number, string]>(this.#sql.find, name);
      if (found !== undefined) {
        const [cursor, known] = found;
        if (known !== kind) await this.#wrote(tx, tx.rows(this.#sql.rename, name, kind));
        return cursor;
      }
      const cursor = await this.#numbering.within(tx);
      // Somebody else may have entered it just now.
      if (await this.#wrote(tx, tx.rows(this.#sql.open, tx.at, name, kind, cursor))) return cursor;
    }
  }

  /** Whether taking or keeping it would be refused; then there is nothing to write. */
  async refuses(name: string, token: Fence | null, ttl: number, at: number | null): Promise<SinkHold | null | "no"> {
    const [found] = await this.#reader.rows<[number, Fence, boolean]>(this.#sql.look, at, name, ttl);
    if (found === undefined) return null;
    const [cursor, held, isFree] = found;
    return isFree || held === token ? "no" : { token: null, cursor };
  }

  async hold(tx: Tx, name: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null> {
    const { holder, ttl, token } = by;
    type Held = [Fence, number];
    const kept = token === null ? [] : await tx.rows<Held>(this.#sql.keep, tx.at, name, ttl, holder, token);
    const [held] = kept.length > 0 ? kept : await tx.rows<Held>(this.#sql.take, tx.at, name, ttl, holder);
    if (held !== undefined) {
      tx.wrote();
      return { token: held[0], cursor: held[1] };
    }
    const [found] = await tx.rows<[number]>(this.#sql.find, name);
    return found === undefined ? null : { token: null, cursor: found[0] };
  }

  advance(tx: Tx, name: string, token: Fence, seq: number, ttl: number): Promise<boolean> {
    return this.#wrote(tx, tx.rows(this.#sql.advance, tx.at, name, ttl, token, seq));
  }

  fail(tx: Tx, name: string, token: Fence, error: string, ttl: number): Promise<boolean> {
    return this.#wrote(tx, tx.rows(this.#sql.fail, tx.at, name, ttl, token, error));
  }

  release(tx: Tx, name: string, token: Fence): Promise<boolean> {
    return this.#wrote(tx, tx.rows(this.#sql.release, name, token));
  }

  async drop(tx: Tx, name: string): Promise<boolean> {
    const [row] = await tx.rows<[string, number]>(this.#sql.drop, name);
    if (row === undefined) return false;
    const [kind, cursor] = row;
    await this.#acts.add(tx, { action: "sink.forgotten", name, before: { kind, cursor }, after: null });
    return true;
  }

  async all(): Promise<SinkView[]> {
    let rows = await this.#reader.rows<SinkRow>(this.#sql.all, this.#numbering.low);
    if (isBehind(rows)) {
      await this.#numbering.number(ALL);
      rows = await this.#reader.rows<SinkRow>(this.#sql.all, this.#numbering.low);
    }
    return rows.map(([, name, kind, cursor, holder, failures, failedAt, error, deliveredAt, createdAt, behind, oldestAt]) => {
      return { name, kind, cursor, behind, oldestAt, holder, failures, failedAt, error, deliveredAt, createdAt };
    });
  }

  /** Where nobody reads, it is here that what happened is numbered, or it would stay for ever. */
  async hasOld(olderThan: number, at: number | null): Promise<boolean> {
    const look = () => this.#reader.rows<[boolean, boolean]>(this.#sql.trimmable, at, olderThan, 1, this.#numbering.low);
    let rows = await look();
    if (isBehind(rows)) {
      await this.#numbering.number(ALL);
      rows = await look();
    }
    return rows[0]?.[1] === true;
  }

  async trim(tx: Tx, olderThan: number, limit: number): Promise<number> {
    const [[trimmed]] = (await tx.rows<[number]>(this.#sql.trim, tx.at, olderThan, limit)) as [[number]];
    if (trimmed > 0) tx.wrote();
    return trimmed;
  }

  async #wrote(tx: Tx, rows: Promise<unknown[]>): Promise<boolean> {
    const changed = (await rows).length > 0;
    if (changed) tx.wrote();
    return changed;
  }
}

const ALL = Number.POSITIVE_INFINITY;

/** An event, or, where there is none, a row that says so. */
type PageRow = [isBehind: boolean, ...event: EventRow] | [isBehind: boolean, ...nothing: null[]];

function isEvent(row: PageRow): row is [isBehind: boolean, ...event: EventRow] {
  return row[1] !== null;
}

/** Each row says whether something was still without a number when it was read. */
function isBehind(rows: readonly (readonly [boolean, ...unknown[]])[]): boolean {
  return rows[0]?.[0] === true;
}

/** From a place on, whatever it is. */
function isPlain({ types, job, build, last = false }: EventQuery): boolean {
  return types === undefined && job === undefined && build === undefined && !last;
}
