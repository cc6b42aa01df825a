import { about, change, jobEvent, type JobEventType, type NewEvent } from "../../../core/jobs/event.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { publicId } from "../../job-row.ts";
import type { Catalog } from "../catalog.ts";
import { listOf } from "../connection/driver.ts";
import type { Settings } from "../settings.ts";
import type { Tx } from "../transactions/transaction.ts";

/** The outbox's inlet: an event is written in the transaction of what it tells, or not at all. */
export class Events {
  readonly #insert: string;
  readonly #number: string;
  #told = 0;

  constructor(s: string) {
    // Its transaction has its number before an event has its id; see `Numbering`.
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
    await tx.rows(
      this.#insert,
      tx.at,
      listOf(events.map(({ type }) => type)),
      listOf(events.map(({ transition }) => transition)),
      listOf(events.map(({ job }) => job ?? null)),
      listOf(events.map(({ build }) => build ?? null)),
      listOf(events.map(({ data }) => JSON.stringify(data))),
    );
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
  async act(tx: Tx, type: string, subject: string, data: object = about(type, subject), build?: string): Promise<void> {
    const transition = change(type, subject, await this.number(tx), ++this.#told);
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

/**
 * What happens to jobs, told where their queue asks for it. Payloads are not in it: they may be large, and secret.
 * The jobs' rows are read after the change, so that nobody else pays for carrying their ids about.
 */
export class JobEvents {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #events: Events;
  readonly #rows: string;

  constructor(s: string, parts: { catalog: Catalog; settings: Settings; events: Events }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#events = parts.events;
    this.#rows = `select key, lane, fence, attempt, created_at, id, error from ${s}.jobs where key = any($1::bigint[])`;
  }

  /** Told only where it is asked for. */
  async tell(tx: Tx, happened: readonly Happened[]): Promise<void> {
    const asked = happened.filter(({ lane }) => this.#settings.tells(this.#catalog.lane(lane).queue));
    await this.always(tx, asked);
  }

  /** What an operator does is always told. */
  async always(tx: Tx, happened: readonly Omit<Happened, "lane">[]): Promise<void> {
    if (happened.length === 0) return;
    const rows = await tx.rows<Row>(this.#rows, listOf(happened.map(({ job }) => job)));
    await this.#catalog.knowLanes(
      tx.rows,
      rows.map((row) => row[1]),
    );
    const byKey = new Map(rows.map((row) => [row[0], row]));
    await this.#events.add(
      tx,
      happened.map(({ type, job }) => {
        const [, lane, fence, attempt, createdAt, id, error] = byKey.get(job) as Row;
        const told = { key: job, fence, attempt, id: publicId(id, createdAt, job), error };
        return jobEvent(type, told, this.#catalog.lane(lane));
      }),
    );
  }
}
