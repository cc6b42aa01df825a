import type { Fence, ProcessId } from "../../core/ids.ts";
import type { SinkHold, SinkStore, SinkView } from "../sinks.ts";
import type { Audit } from "../sql/audit.ts";
import { runAsync } from "../sql/script.ts";
import type { Access } from "./access.ts";
import type { Tx } from "./transaction.ts";
import { NEWEST, type Numbering } from "./numbering.ts";

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

/** How far each sink has got with what happened. */
export class Sinks implements SinkStore {
  readonly #access: Access;
  readonly #audit: Audit;
  readonly #numbering: Numbering;
  readonly #sql: Record<
    "find" | "open" | "rename" | "look" | "take" | "keep" | "advance" | "fail" | "release" | "drop" | "all",
    string
  >;

  constructor(s: string, parts: { audit: Audit; numbering: Numbering }, access: Access) {
    this.#access = access;
    this.#audit = parts.audit;
    this.#numbering = parts.numbering;
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
    this.#sql = {
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
    };
  }

  /** Where it stands. One that is known keeps its place; only what it is may have changed. */
  open(name: string, kind: string): Promise<number> {
    return this.#write("sink", name, async (tx) => {
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
    });
  }

  async hold(name: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null> {
    const refused = await this.#refuses(name, by.token, by.ttl);
    return refused === "no" ? this.#write("hold", name, (tx) => this.#held(tx, name, by)) : refused;
  }

  /** Whether taking or keeping it would be refused; then there is nothing to write. */
  async #refuses(name: string, token: Fence | null, ttl: number): Promise<SinkHold | null | "no"> {
    const [found] = await this.#access.read<[number, Fence, boolean]>(this.#sql.look, this.#access.at(), name, ttl);
    if (found === undefined) return null;
    const [cursor, held, isFree] = found;
    return isFree || held === token ? "no" : { token: null, cursor };
  }

  async #held(tx: Tx, name: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null> {
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

  advance(name: string, token: Fence, seq: number, ttl: number): Promise<boolean> {
    return this.#write("advance", name, (tx) => this.#wrote(tx, tx.rows(this.#sql.advance, tx.at, name, ttl, token, seq)));
  }

  fail(name: string, token: Fence, error: string, ttl: number): Promise<boolean> {
    return this.#write("sink", name, (tx) => this.#wrote(tx, tx.rows(this.#sql.fail, tx.at, name, ttl, token, error)));
  }

  release(name: string, token: Fence): Promise<boolean> {
    return this.#write("sink", name, (tx) => this.#wrote(tx, tx.rows(this.#sql.release, name, token)));
  }

  drop(name: string): Promise<boolean> {
    return this.#write("sink", name, async (tx) => {
      const [row] = await tx.rows<[string, number]>(this.#sql.drop, name);
      if (row === undefined) return false;
      const [kind, cursor] = row;
      await runAsync(this.#audit.record(tx, { action: "sink.forgotten", name, before: { kind, cursor }, after: null }));
      return true;
    });
  }

  async all(): Promise<SinkView[]> {
    const rows = await this.#numbering.numbered((low) => this.#access.read<SinkRow>(this.#sql.all, low));
    return rows.map(([, name, kind, cursor, holder, failures, failedAt, error, deliveredAt, createdAt, behind, oldestAt]) => {
      return { name, kind, cursor, behind, oldestAt, holder, failures, failedAt, error, deliveredAt, createdAt };
    });
  }

  #write<T>(operation: "sink" | "hold" | "advance", name: string, run: (tx: Tx) => Promise<T>): Promise<T> {
    return this.#access.write(operation, run, { row: `sink ${name}` });
  }

  async #wrote(tx: Tx, rows: Promise<unknown[]>): Promise<boolean> {
    const changed = (await rows).length > 0;
    if (changed) tx.wrote();
    return changed;
  }
}
