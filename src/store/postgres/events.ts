import { about, change, type NewEvent } from "../../core/event.ts";
import type { Fence } from "../../core/ids.ts";
import { listOf } from "./driver.ts";
import type { Tx } from "./transaction.ts";

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
