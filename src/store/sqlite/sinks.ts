import { damagedRow } from "../../core/errors.ts";
import type { Event } from "../../core/event.ts";
import type { Fence, ProcessId } from "../../core/ids.ts";
import { EVENT, type EventRow, toEvent } from "../event-row.ts";
import type { EventQuery, SinkHold, SinkView } from "../store.ts";
import type { Acts } from "./acts.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import { isSame, rowSum } from "./row-sum.ts";

/** `seq` is never used again, so the newest ever is known even when everything was trimmed. */
const NEWEST = "coalesce((select seq from sqlite_sequence where name = 'holdfast_events'), 0)";

/**
 * Who may deliver: the one who has it, until its time is over or its process is gone. A time further away than it can be
 * was written before the clock was set back, and counts as over. Whoever is robbed by this loses nothing but its turn:
 * its token moves no cursor any more.
 */
const FREE = `(
  holder is null or expires_at <= :now or expires_at > :now + :ttl
  or not exists (select 1 from holdfast_processes where id = holder))`;

/** The outbox's outlet: what happened, and how far each sink has got with it. */
export class Sinks {
  readonly #acts: Acts;
  readonly #databaseId: string;
  readonly #oldest: Statement;
  readonly #newest: Statement;
  readonly #filtered: Statement;
  readonly #last: Statement;
  readonly #open: Statement;
  readonly #look: Statement;
  readonly #take: Statement;
  readonly #keep: Statement;
  readonly #advance: Statement;
  readonly #fail: Statement;
  readonly #release: Statement;
  readonly #drop: Statement;
  readonly #all: Statement;
  readonly #trimmable: Statement;
  readonly #trim: Statement;

  constructor(db: Connection, parts: { acts: Acts; databaseId: string }) {
    this.#acts = parts.acts;
    this.#databaseId = parts.databaseId;
    // By the primary key, from where the reader stands: it costs what it returns.
    this.#oldest = db.prepare(`select ${EVENT}, sum from holdfast_events where seq > ? order by seq limit ?`);
    this.#newest = db.prepare(`select ${NEWEST}`);
    // An operator's look: it may walk the outbox, which holds a week.
    const asked = `seq > :after and (:job is null or job = :job) and (:build is null or build = :build) and (:types is null or exists (
      select 1 from json_each(:types) as asked
      where holdfast_events.type = asked.value
         or (asked.value like '%*' and substr(holdfast_events.type, 1, length(asked.value) - 1) = substr(asked.value, 1, length(asked.value) - 1))))`;
    this.#filtered = db.prepare(`select ${EVENT}, sum from holdfast_events where ${asked} order by seq limit :limit`);
    this.#last = db.prepare(
      `select * from (select ${EVENT}, sum from holdfast_events where ${asked} order by seq desc limit :limit) order by seq`,
    );
    // One that is known keeps its place; only what it is may have changed.
    this.#open = db.prepare(
      `insert into holdfast_sinks (name, kind, cursor, created_at) values (:name, :kind, ${NEWEST}, :now)
       on conflict (name) do update set kind = excluded.kind where kind <> excluded.kind`,
    );
    this.#look = db.prepare(`select cursor, token, ${FREE} as free from holdfast_sinks where name = :name`);
    // One statement: of two that try at once, one takes it and the other changes nothing.
    this.#take = db.prepare(
      `update holdfast_sinks set holder = :holder, token = :commit, expires_at = :now + :ttl
       where name = :name and ${FREE} returning cursor`,
    );
    this.#keep = db.prepare(
      "update holdfast_sinks set expires_at = :now + :ttl where name = :name and token = :token and holder = :holder",
    );
    // A cursor never goes back: of two writes in flight the later one counts, whichever comes first.
    this.#advance = db.prepare(
      `update holdfast_sinks
       set cursor = max(cursor, :seq), expires_at = :now + :ttl, delivered_at = :now, failures = 0, failed_at = null, error = null
       where name = :name and token = :token and holder is not null`,
    );
    this.#fail = db.prepare(
      `update holdfast_sinks set failures = failures + 1, failed_at = :now, error = :error, expires_at = :now + :ttl
       where name = :name and token = :token and holder is not null`,
    );
    this.#release = db.prepare(
      "update holdfast_sinks set holder = null, expires_at = null where name = :name and token = :token and holder is not null",
    );
    this.#drop = db.prepare("delete from holdfast_sinks where name = :name returning kind, cursor");
    // Numbers have no gaps, and what a sink has not passed is not trimmed: nobody has to count.
    this.#all = db.prepare(
      `select sink.name, sink.kind, sink.cursor, sink.holder, sink.failures, sink.error, sink.created_at as createdAt,
              sink.delivered_at as deliveredAt, sink.failed_at as failedAt,
              max(0, coalesce((select max(seq) from holdfast_events), 0) - sink.cursor) as behind,
              (select at from holdfast_events where seq > sink.cursor order by seq limit 1) as oldestAt
       from holdfast_sinks as sink order by sink.name`,
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

  events({ after, limit, types, job, build, last }: EventQuery): Event[] {
    if (types === undefined && job === undefined && build === undefined && !last)
      return (this.#oldest.rows(after, limit) as SummedRow[]).map((row) => this.#event(row));
    const asked = {
      after,
      limit,
      job: job ?? null,
      build: build ?? null,
      types: types === undefined ? null : JSON.stringify(types),
    };
    return (last ? this.#last : this.#filtered).all<Row>(asked).map((row) => this.#event(Object.values(row) as SummedRow));
  }

  /** A damaged one is delivered to nobody: whoever is to have it stands before it, and says so. */
  #event([seq, type, at, transition, job, build, data, sum]: SummedRow): Event {
    if (!isSame(sum, rowSum(type, at, transition, job, build, data))) throw damagedRow(`The event ${seq}`);
    return toEvent([seq, type, at, transition, job, build, data], this.#databaseId);
  }

  newest(): number {
    return (this.#newest.row() as [number])[0];
  }

  /** Where it stands. */
  open(tx: Tx, name: string, kind: string): number {
    if (this.#open.runNamed({ name, kind, now: tx.now }) > 0) tx.wrote();
    return (this.#look.get<{ cursor: number }>({ name, now: tx.now, ttl: 0 }) as { cursor: number }).cursor;
  }

  /** Whether taking or keeping it would be refused; then there is nothing to write. */
  refuses(name: string, token: Fence | null, ttl: number, now: number): SinkHold | null | "no" {
    const found = this.#look.get<{ cursor: number; token: Fence; free: 0 | 1 }>({ name, ttl, now });
    if (found === undefined) return null;
    return found.free === 1 || found.token === token ? "no" : { token: null, cursor: found.cursor };
  }

  hold(tx: Tx, name: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): SinkHold | null {
    const { holder, ttl, token } = by;
    if (token !== null && this.#keep.runNamed({ name, holder, ttl, token, now: tx.now }) > 0) {
      tx.wrote();
      return { token, cursor: this.#cursor(name, tx.now) as number };
    }
    const taken = this.#take.get<{ cursor: number }>({ name, holder, ttl, commit: tx.commit, now: tx.now });
    if (taken !== undefined) {
      tx.wrote();
      return { token: tx.commit, cursor: taken.cursor };
    }
    const cursor = this.#cursor(name, tx.now);
    return cursor === null ? null : { token: null, cursor };
  }

  advance(tx: Tx, name: string, token: Fence, seq: number, ttl: number): boolean {
    return this.#wrote(tx, this.#advance.runNamed({ name, token, seq, ttl, now: tx.now }));
  }

  fail(tx: Tx, name: string, token: Fence, error: string, ttl: number): boolean {
    return this.#wrote(tx, this.#fail.runNamed({ name, token, error, ttl, now: tx.now }));
  }

  release(tx: Tx, name: string, token: Fence): boolean {
    return this.#wrote(tx, this.#release.runNamed({ name, token }));
  }

  drop(tx: Tx, name: string): boolean {
    const [before] = this.#drop.all<{ kind: string; cursor: number }>({ name });
    if (before === undefined) return false;
    this.#acts.add(tx, { action: "sink.forgotten", name, before: { ...before }, after: null });
    return true;
  }

  all(): SinkView[] {
    return this.#all.all<SinkView>().map((row) => Object.assign({}, row));
  }

  hasOld(olderThan: number, now: number): boolean {
    return this.#trimmable.get({ olderThan, now, limit: 1 }) !== undefined;
  }

  trim(tx: Tx, olderThan: number, limit: number): number {
    const trimmed = this.#trim.runNamed({ olderThan, limit, now: tx.now });
    this.#wrote(tx, trimmed);
    return trimmed;
  }

  #cursor(name: string, now: number): number | null {
    return this.#look.get<{ cursor: number }>({ name, now, ttl: 0 })?.cursor ?? null;
  }

  #wrote(tx: Tx, changes: number): boolean {
    if (changes > 0) tx.wrote();
    return changes > 0;
  }
}

type Row = Record<string, string | number | null>;
type SummedRow = [...EventRow, sum: number | null];
