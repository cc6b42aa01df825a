import type { Fence, ProcessId } from "../../core/text/ids.ts";
import { type Flag, isYes } from "../job-row.ts";
import type { Delivery, SinkHold, SinkStore, SinkView } from "../sinks.ts";
import type { Access, Dialect, Script, Tx } from "./script.ts";
import type { Audit } from "./audit.ts";
import { type EventNumbers, readNumbered } from "./event-log.ts";

interface Claim {
  holder: ProcessId;
  ttl: number;
  token: Fence | null;
}

interface Cursor {
  cursor: number;
}

/** How far each sink has delivered events, and which process delivers them. */
export class Sinks implements SinkStore {
  readonly #access: Access;
  readonly #parts: { audit: Audit; numbers: EventNumbers };
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, parts: { audit: Audit; numbers: EventNumbers }, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#sql = statements(dialect, parts.numbers);
  }

  open(name: string, kind: string): Promise<number> {
    return this.#write("sink", name, (tx) => this.#open(tx, name, kind));
  }

  /** A sink that exists keeps its cursor; only its kind may change. */
  *#open(tx: Tx, name: string, kind: string): Script<number> {
    for (;;) {
      const found = yield* tx.get<Cursor & { kind: string }>(this.#sql.find, { name });
      if (found !== undefined) {
        if (found.kind !== kind) yield* tx.run(this.#sql.setKind, { name, kind });
        return found.cursor;
      }
      const cursor = yield* this.#parts.numbers.newestIn(tx);
      // Another transaction may have inserted the sink since it was looked up.
      if (yield* tx.run(this.#sql.insert, { name, kind, cursor })) return cursor;
    }
  }

  /** A process on standby asks again and again: a refusal writes nothing. */
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

  update(name: string, token: Fence, delivery: Delivery): Promise<boolean> {
    const { advance, fail, release } = this.#sql;
    if (delivery === null) return this.#write("sink", name, (tx) => tx.run(release, { name, token }));
    const isDelivered = "seq" in delivery;
    const sql = isDelivered ? advance : fail;
    return this.#write(isDelivered ? "advance" : "sink", name, (tx) => tx.run(sql, { name, token, ...delivery }));
  }

  drop(name: string): Promise<boolean> {
    return this.#write("sink", name, (tx) => this.#drop(tx, name));
  }

  *#drop(tx: Tx, name: string): Script<boolean> {
    const [before] = yield* tx.returning<object>(this.#sql.drop, { name });
    if (before === undefined) return false;
    yield* this.#parts.audit.record(tx, { action: "sink.forgotten", name, before: { ...before }, after: null });
    return true;
  }

  async list(): Promise<SinkView[]> {
    type Row = SinkView & { isBehind: boolean };
    const { numbers } = this.#parts;
    const rows = await readNumbered(numbers, () => this.#access.read((db) => db.all<Row>(this.#sql.list, { low: numbers.low })));
    return rows.map(({ name, kind, cursor, behind, oldestAt, holder, failures, failedAt, error, deliveredAt, createdAt }) => {
      return { name, kind, cursor, behind, oldestAt, holder, failures, failedAt, error, deliveredAt, createdAt };
    });
  }

  #write<T>(operation: "sink" | "hold" | "advance", name: string, script: (tx: Tx) => Script<T>): Promise<T> {
    return this.#access.write(operation, script, { row: `sink ${name}` });
  }
}

function statements(dialect: Dialect, numbers: EventNumbers) {
  const { table } = dialect;
  const sinks = table("sinks");
  const held = "name = :name and token = :token and holder is not null";
  // A sink is free if no process holds it, its time is over, or its holder is not registered any more. A time further away
  // than `ttl` was written before the clock was set back, and counts as over. A holder that loses its sink this way
  // loses no event: its token moves the cursor no more. `:clock`, because a statement that waited for the row compares
  // the new holder's time.
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
    // One statement: of two processes that try at once, one takes the sink and the other changes nothing.
    take: `
      update ${sinks} as sink set holder = :holder, token = ${dialect.fence}, expires_at = :clock + :ttl
      where name = :name and ${free} returning token, cursor`,
    keep: `
      update ${sinks} set expires_at = :clock + :ttl where name = :name and holder = :holder and token = :token
      returning cursor`,
    // Of two writes in flight the one with the higher number counts, in whichever order they arrive.
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
    list: `
      select ${numbers.isBehind} as "isBehind", name, kind, cursor, holder, failures, failed_at as "failedAt", error,
        delivered_at as "deliveredAt", created_at as "createdAt",
        ${dialect.greatest("0", `(select max(seq) from ${table("events")}) - cursor`)} as behind,
        (select at from ${table("events")} where seq > cursor order by seq limit 1) as "oldestAt"
      from ${sinks} order by ${dialect.byBytes("name")}`,
  };
}
