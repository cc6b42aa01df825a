import {
  subjectData,
  commitTransition,
  type EventType,
  jobEvent,
  type JobEventType,
  type NewEvent,
} from "../../core/jobs/event.ts";
import type { Fence, JobKey } from "../../core/text/ids.ts";
import { publicId } from "../job-row.ts";
import { type Reads, type Script, wait } from "../sql/script.ts";
import type { EventNumbers } from "../sql/events.ts";
import type { Reader } from "./connection/connections.ts";
import { listOf, lists } from "./connection/driver.ts";
import { LOCK_WAIT_MS } from "./connection/session-settings.ts";
import { MUTEX } from "./transactions/mutexes.ts";
import type { Access, Tx } from "./transactions/transaction.ts";
import type { JobParts } from "./store-parts.ts";

/** The outbox's inlet: an event is written in the transaction of what it tells, or not at all. */
export class Events {
  readonly #insert: string;
  readonly #number: string;
  #told = 0;

  constructor(s: string) {
    // Its transaction has its number before an event has its id; see `EventNumbering`.
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

  tell(tx: Tx, event: NewEvent): Promise<void> {
    return this.add(tx, [event]);
  }

  async unique(tx: Tx): Promise<string> {
    return String(await this.number(tx));
  }

  /** One that nothing else has. */
  async number(tx: Tx): Promise<Fence> {
    const [[number]] = (await tx.rows<[Fence]>(this.#number)) as [[Fence]];
    return number;
  }

  /** What an operator does. One commit may hold the same twice, e.g. a lock broken, taken and broken again: both are told. */
  async act(tx: Tx, type: EventType, subject: string, data: object = subjectData(type, subject), build?: string): Promise<void> {
    const transition = commitTransition(type, subject, await this.number(tx), ++this.#told);
    await this.add(tx, [{ type, transition, data, ...(build === undefined ? {} : { build }) }]);
  }
}

type Row = [key: JobKey, lane: number, fence: Fence, attempt: number, createdAt: number, id: string | null, error: string | null];

/** What happened to a job. */
export interface Happened {
  type: JobEventType;
  job: JobKey;
  lane: number;
}

type JobEventsParts = Pick<JobParts, "catalog" | "settings" | "outbox">;

/**
 * What happens to jobs, told where their queue asks for it. Payloads are not in it: they may be large, and secret.
 * The jobs' rows are read after the change, so that changes without events need not carry the ids.
 */
export class JobEvents {
  readonly #parts: JobEventsParts;
  readonly #rows: string;

  constructor(s: string, parts: JobEventsParts) {
    this.#parts = parts;
    this.#rows = `select key, lane, fence, attempt, created_at, id, error from ${s}.jobs where key = any($1::bigint[])`;
  }

  /** Told only where it is asked for. */
  async tell(tx: Tx, happened: readonly Happened[]): Promise<void> {
    const asked = happened.filter(({ lane }) => this.#parts.settings.tells(this.#parts.catalog.lane(lane).queue));
    await this.always(tx, asked);
  }

  /** What an operator does is always told. */
  async always(tx: Tx, happened: readonly Omit<Happened, "lane">[]): Promise<void> {
    if (happened.length === 0) return;
    const rows = await tx.rows<Row>(this.#rows, listOf(happened.map(({ job }) => job)));
    const lanes = rows.map((row) => row[1]);
    await this.#parts.catalog.knowLanes(tx.rows, lanes);
    const byKey = new Map(rows.map((row) => [row[0], row]));
    await this.#parts.outbox.add(
      tx,
      happened.map(({ type, job }) => {
        const [, lane, fence, attempt, createdAt, id, error] = byKey.get(job) as Row;
        const told = { key: job, fence, attempt, id: publicId(id, createdAt, job), error };
        return jobEvent(type, told, this.#parts.catalog.lane(lane));
      }),
    );
  }
}

/** How many are numbered in one step, so that no reader waits long for another. */
const STEP = 1_000;
/** How long `low` is believed, in milliseconds: a server that took over from another may know less than was known here. */
const BELIEVED = 60_000;

/**
 * Events get their numbers after their commit, from the first reader: all that can be seen by then, in the
 * order in which they were written, one reader at a time. So
 *
 * - no event is passed over: what is committed later gets a higher number, however early it was written;
 * - of two events of one job the later has the higher number. Its transaction could change the job only after the other
 *   one's was committed, and wrote its event after that: a reader that sees the later one sees the earlier one too, and its id
 *   is lower. So it has its number already, or gets a lower one in the same step;
 * - no reader waits for a writer's transaction, however long it stays open.
 *
 * Numbers of transactions (xid) would give another order: one that wrote something else first has the lower number, and
 * may still come second to a job.
 */
export class EventNumbering implements EventNumbers {
  readonly isBehind: string;
  readonly newest: string;
  readonly #access: Pick<Access, "readInTurn">;
  readonly #reader: Reader;
  readonly #s: string;
  readonly #sql: Record<"lock" | "newest" | "move", string>;
  /** No id up to this one will be seen any more, see `#learn`: what was there lies dead before all that is alive. */
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
      // An event that was read must survive a crash of the server, or another event would get its number.
      // So this is on disk whatever the durability is, and everything that was committed before is, too.
      lock: `
        select set_config('synchronous_commit', 'on', true) from ${s}.mutexes where id = ${MUTEX.numbers} for update`,
      newest: `select ${this.isBehind.replace(":low", "$1::bigint")}, ${this.newest}`,
      move: this.#move("$1::bigint"),
    };
  }

  /** What it is asked with. */
  get low(): number {
    if (performance.now() - this.#lowSince > BELIEVED) this.#low = 0;
    return this.#low;
  }

  /**
   * At least so many, or all there are. It is sent as a whole: a process that is stopped in the middle does not
   * block other readers, and one that dies after it has done no harm.
   */
  async number(atLeast: number): Promise<void> {
    for (let sum = 0, n = STEP; n === STEP && sum < atLeast; sum += n) {
      const results = await this.#reader.script<[number, string, string]>(
        "set transaction isolation level read committed",
        `set local lock_timeout = ${LOCK_WAIT_MS}`,
        // Before the lock, which gives the transaction its number: who took an id up to this one has a lower number.
        `select last_value from ${this.#s}.outbox_id_seq`,
        this.#sql.lock,
        this.#move(String(this.low)),
      );
      const [[[last]], , [[moved, over, xid]]] = results.slice(-3) as [[[number]], unknown, [[number, string, string]]];
      n = moved;
      this.#learn({ isAll: n < STEP, last, over, xid });
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
    for (let n = STEP; n === STEP;) [[n]] = (await tx.rows<[number]>(move, low)) as [[number]];
    const [[, last]] = (await tx.rows<[boolean, number]>(newest, low)) as [[boolean, number]];
    return last;
  }

  /** A statement of its own, so that it sees what there is when the lock is held. */
  #move(low: string): string {
    const s = this.#s;
    return `
      with moved as (
        delete from ${s}.outbox
        where id > ${low} and id <= coalesce((select id from ${s}.outbox where id > ${low} order by id offset ${STEP - 1} limit 1), ${MOST})
        returning id, type, at, transition, job, build, data),
      numbered as (
        insert into ${s}.events (seq, type, at, transition, job, build, data)
        select newest + row_number() over (order by id), type, at, transition, job, build, data
        from moved, (select ${this.newest} as newest) as known)
      select count(*), pg_snapshot_xmin(pg_current_snapshot())::text, pg_current_xact_id()::text from moved`;
  }

  /**
   * What was numbered stays in the index until it is vacuumed, and while a transaction looks at the database as it was an hour
   * ago, it is not: looking for what is new would take longer and longer. But a transaction that took an id up to `last` had a
   * number of its transaction by then, and a lower one than the transaction that looked. When all of these are over,
   * and what can be seen of them is numbered, nothing will come there any more.
   */
  #learn({ isAll, last, over, xid }: { isAll: boolean; last: number; over: string; xid: string }): void {
    if (isAll && this.#mark !== null && BigInt(over) > this.#mark.xid) {
      this.#low = this.#mark.last;
      this.#lowSince = performance.now();
      this.#mark = null;
    }
    this.#mark ??= { last, xid: BigInt(xid) };
  }
}

/** The last id that was taken before the transaction of this number. */
interface Mark {
  last: number;
  xid: bigint;
}

/** The highest id that can be. */
const MOST = "9223372036854775807";
