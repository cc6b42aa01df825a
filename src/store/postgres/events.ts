import {
  commitTransition,
  type EventType,
  jobEvent,
  type JobEventType,
  type NewEvent,
  subjectData,
} from "../../core/jobs/event.ts";
import type { Fence, JobKey } from "../../core/text/ids.ts";
import { publicId } from "../job-row.ts";
import { type Reads, type Script, wait } from "../sql/script.ts";
import type { EventNumbers } from "../sql/events.ts";
import type { Reader } from "./connection/session.ts";
import { listOf, lists } from "./connection/driver.ts";
import { LOCK_WAIT_MS } from "./connection/session-settings.ts";
import { MUTEX } from "./transactions/mutexes.ts";
import type { Access, Tx } from "./transactions/transaction.ts";
import type { JobParts } from "./store-parts.ts";

export class Events {
  readonly #insert: string;
  readonly #number: string;
  #actions = 0;

  constructor(s: string) {
    // The transaction has its xid before an event has its id: see `EventNumbering`.
    this.#insert = `
      with own as materialized (select pg_current_xact_id() as xid)
      insert into ${s}.outbox (at, type, transition, job, build, data)
      select ${s}.clock($1), type, transition, job, build, data
      from own, unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) with ordinality
        as event (type, transition, job, build, data, turn)
      where own.xid is not null
      order by turn`;
    this.#number = `select nextval('${s}.fence')`;
  }

  async add(tx: Tx, events: readonly NewEvent[]): Promise<void> {
    if (events.length === 0) return;
    const rows = events.map(({ type, transition, job = null, build = null, data }) => {
      return { type, transition, job, build, data: JSON.stringify(data) };
    });
    await tx.rows(this.#insert, tx.at, ...lists(rows, "type", "transition", "job", "build", "data"));
    tx.wrote();
  }

  record(tx: Tx, event: NewEvent): Promise<void> {
    return this.add(tx, [event]);
  }

  async unique(tx: Tx): Promise<string> {
    return String(await this.number(tx));
  }

  async number(tx: Tx): Promise<Fence> {
    const [[number]] = (await tx.rows<[Fence]>(this.#number)) as [[Fence]];
    return number;
  }

  async act(tx: Tx, type: EventType, subject: string, data: object = subjectData(type, subject), build?: string): Promise<void> {
    const transition = commitTransition(type, subject, await this.number(tx), ++this.#actions);
    await this.add(tx, [{ type, transition, data, ...(build === undefined ? {} : { build }) }]);
  }
}

type Row = [key: JobKey, lane: number, fence: Fence, attempt: number, createdAt: number, id: string | null, error: string | null];

export interface Happened {
  type: JobEventType;
  job: JobKey;
  lane: number;
}

type JobEventsParts = Pick<JobParts, "catalog" | "settings" | "outbox">;

/** Records events without payloads, which may be large or secret. Rows are read only for events, after the change. */
export class JobEvents {
  readonly #parts: JobEventsParts;
  readonly #rows: string;

  constructor(s: string, parts: JobEventsParts) {
    this.#parts = parts;
    this.#rows = `select key, lane, fence, attempt, created_at, id, error from ${s}.jobs where key = any($1::bigint[])`;
  }

  async recordIfEnabled(tx: Tx, happened: readonly Happened[]): Promise<void> {
    const asked = happened.filter(({ lane }) => this.#parts.settings.view.recordsEvents(this.#parts.catalog.lane(lane).queue));
    await this.record(tx, asked);
  }

  async record(tx: Tx, happened: readonly Omit<Happened, "lane">[]): Promise<void> {
    if (happened.length === 0) return;
    const rows = await tx.rows<Row>(this.#rows, listOf(happened.map(({ job }) => job)));
    const lanes = rows.map((row) => row[1]);
    await this.#parts.catalog.knowLanes(tx.rows, lanes);
    const byKey = new Map(rows.map((row) => [row[0], row]));
    await this.#parts.outbox.add(
      tx,
      happened.map(({ type, job }) => {
        const [, lane, fence, attempt, createdAt, id, error] = byKey.get(job) as Row;
        const ended = { key: job, fence, attempt, id: publicId(id, createdAt, job), error };
        return jobEvent(type, ended, this.#parts.catalog.lane(lane));
      }),
    );
  }
}

const NUMBERED_AT_ONCE = 1_000;
/** How long `low` is trusted, because a server that took over may know less than this process learnt. */
const LOW_TRUSTED_MS = 60_000;

// Events get numbers after their commit, from one reader at a time, in the order of their ids: none is skipped, and no reader
// waits for a writer. In the order of xids, the later of two events of one job could get the lower number.
export class EventNumbering implements EventNumbers {
  readonly isBehind: string;
  readonly newest: string;
  readonly #access: Pick<Access, "readInTurn">;
  readonly #reader: Reader;
  readonly #s: string;
  readonly #sql: Record<"lock" | "newest" | "move", string>;
  /** No event with an id up to this one will appear any more, see `#learn`. */
  #low = 0;
  #lowSince = 0;
  #mark: Mark | null = null;

  constructor(s: string, reader: Reader, access: Pick<Access, "readInTurn">) {
    this.#reader = reader;
    this.#access = access;
    this.#s = s;
    this.isBehind = `(select id from ${s}.outbox where id > :low order by id limit 1) is not null`;
    this.newest = `coalesce((select max(seq) from ${s}.events), (select seq from ${s}.trimmed where id = 1))`;
    this.#sql = {
      // Sync whatever the durability is: after a crash, another event would get the number of one that was read.
      lock: `
        select set_config('synchronous_commit', 'on', true) from ${s}.mutexes where id = ${MUTEX.numbers} for update`,
      newest: `select ${this.isBehind.replace(":low", "$1::bigint")}, ${this.newest}`,
      move: this.#move("$1::bigint"),
    };
  }

  get low(): number {
    if (performance.now() - this.#lowSince > LOW_TRUSTED_MS) this.#low = 0;
    return this.#low;
  }

  /** Numbers events by one script, so that a process that is stopped in the middle does not block other readers. */
  async number(atLeast: number): Promise<void> {
    for (let sum = 0, n = NUMBERED_AT_ONCE; n === NUMBERED_AT_ONCE && sum < atLeast; sum += n) {
      const results = await this.#reader.script<[number, string, string]>(
        "set transaction isolation level read committed",
        `set local lock_timeout = ${LOCK_WAIT_MS}`,
        // Read before the lock gives the transaction its xid: every transaction that took an id up to this one has a lower xid.
        `select last_value from ${this.#s}.outbox_id_seq`,
        this.#sql.lock,
        this.#move(String(this.low)),
      );
      const [[[last]], , [[moved, over, xid]]] = results.slice(-3) as [[[number]], unknown, [[number, string, string]]];
      n = moved;
      this.#learn({ isAll: n < NUMBERED_AT_ONCE, last, over, xid });
    }
  }

  newestIn(tx: Reads): Script<number> {
    return wait(this.#newestIn(tx as Tx));
  }

  newestNow(): Promise<number> {
    return this.#access.readInTurn("sink", (tx) => this.#newestIn(tx));
  }

  deleted(where: string): string {
    const s = this.#s;
    return `
      with gone as (delete from ${s}.events where ${where} returning seq),
      kept as (
        update ${s}.trimmed set seq = greatest(trimmed.seq, top) from (select max(seq) as top from gone) as highest
        where id = 1 and top is not null)
      select seq from gone`;
  }

  async #newestIn(tx: Tx): Promise<number> {
    const { lock, move, newest } = this.#sql;
    const { low } = this;
    const [[isBehind, seq]] = (await tx.rows<[boolean, number]>(newest, low)) as [[boolean, number]];
    if (!isBehind) return seq;
    await tx.rows(lock);
    for (let n = NUMBERED_AT_ONCE; n === NUMBERED_AT_ONCE;) [[n]] = (await tx.rows<[number]>(move, low)) as [[number]];
    const [[, last]] = (await tx.rows<[boolean, number]>(newest, low)) as [[boolean, number]];
    return last;
  }

  /** Returns a separate statement, which sees what was committed when the lock is held. */
  #move(low: string): string {
    const s = this.#s;
    return `
      with moved as (
        delete from ${s}.outbox
        where id > ${low} and id <= coalesce((select id from ${s}.outbox where id > ${low} order by id offset ${NUMBERED_AT_ONCE - 1} limit 1), ${MAX_ID})
        returning id, type, at, transition, job, build, data),
      numbered as (
        insert into ${s}.events (seq, type, at, transition, job, build, data)
        select newest + row_number() over (order by id), type, at, transition, job, build, data
        from moved, (select ${this.newest} as newest) as known)
      select count(*), pg_snapshot_xmin(pg_current_snapshot())::text, pg_current_xact_id()::text from moved`;
  }

  // Numbered events stay in the index until vacuum, so each look would take longer. Transactions with an id up to `last` have
  // lower xids than the one that read `last`: when they have ended and their events are numbered, none appears below.
  #learn({ isAll, last, over, xid }: { isAll: boolean; last: number; over: string; xid: string }): void {
    if (isAll && this.#mark !== null && BigInt(over) > this.#mark.xid) {
      this.#low = this.#mark.last;
      this.#lowSince = performance.now();
      this.#mark = null;
    }
    this.#mark ??= { last, xid: BigInt(xid) };
  }
}

interface Mark {
  last: number;
  xid: bigint;
}

const MAX_ID = "9223372036854775807";
