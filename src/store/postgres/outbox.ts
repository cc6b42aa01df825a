import type { Event } from "../../core/event.ts";
import { EVENT, type EventRow, toEvent } from "../event-row.ts";
import type { EventQuery, EventStore } from "../events.ts";
import type { Access } from "./access.ts";
import { listOf } from "./driver.ts";
import { ALL, isBehind, NEWEST, type Numbering } from "./numbering.ts";

/** The outbox's outlet: what happened, for as long as it is kept. */
export class Outbox implements EventStore {
  readonly #access: Access;
  readonly #numbering: Numbering;
  readonly #databaseId: string;
  readonly #sql: Record<"oldest" | "filtered" | "last" | "trimmable" | "trim", string>;

  constructor(s: string, parts: { numbering: Numbering; databaseId: string }, access: Access) {
    this.#access = access;
    this.#numbering = parts.numbering;
    this.#databaseId = parts.databaseId;
    // Always at least one row, which says whether something has no number yet: that must be of the same instant.
    const page = (from: string) => `
      select ${this.#numbering.isBehind("$1")}, ${EVENT} from (select) as always left join (${from}) as page on true order by seq`;
    // An operator's look: it may walk the outbox, which holds a week.
    const asked = `seq > $2 and ($4::text is null or job = $4) and ($6::text is null or build = $6) and ($5::text[] is null or exists (
      select 1 from unnest($5::text[]) as asked (type)
      where events.type = asked.type or (asked.type like '%*' and starts_with(events.type, left(asked.type, -1)))))`;
    const now = `${s}.clock($1)`;
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
      trimmable: `select ${this.#numbering.isBehind("$4")}, exists (select 1 from ${s}.events where ${gone})`,
      trim: `
        with gone as (delete from ${s}.events where ${gone} returning seq),
        kept as (
          update ${s}.trimmed set seq = greatest(trimmed.seq, top) from (select max(seq) as top from gone) as highest
          where id = 1 and top is not null)
        select count(*) from gone`,
    };
  }

  async page(query: EventQuery): Promise<Event[]> {
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
    if (isPlain(query)) return this.#access.read(oldest, low, after, limit);
    const asked = types === undefined ? null : listOf(types);
    return this.#access.read(last ? newest : filtered, low, after, limit, job ?? null, asked, build ?? null);
  }

  /** In its turn among the writes: what is handed in after this call comes after this number. */
  newest(): Promise<number> {
    return this.#access.readInTurn("sink", (tx) => this.#numbering.within(tx));
  }

  async trim({ olderThan, limit }: { olderThan: number; limit: number }): Promise<number> {
    if (!(await this.#hasOld(olderThan))) return 0;
    return this.#access.write("trim", async (tx) => {
      const [[trimmed]] = (await tx.rows<[number]>(this.#sql.trim, tx.at, olderThan, limit)) as [[number]];
      if (trimmed > 0) tx.wrote();
      return trimmed;
    });
  }

  /** Where nobody reads, it is here that what happened is numbered, or it would stay for ever. */
  async #hasOld(olderThan: number): Promise<boolean> {
    const at = this.#access.at();
    const [row] = await this.#numbering.numbered((low) =>
      this.#access.read<[boolean, boolean]>(this.#sql.trimmable, at, olderThan, 1, low),
    );
    return row?.[1] === true;
  }
}

/** An event, or, where there is none, a row that says so. */
type PageRow = [isBehind: boolean, ...event: EventRow] | [isBehind: boolean, ...nothing: null[]];

function isEvent(row: PageRow): row is [isBehind: boolean, ...event: EventRow] {
  return row[1] !== null;
}

/** From a place on, whatever it is. */
function isPlain({ types, job, build, last = false }: EventQuery): boolean {
  return types === undefined && job === undefined && build === undefined && !last;
}
