import { UNNAMED } from "../../core/audit.ts";
import { type AuditHead, followAudit, NO_ENTRY, unguarded } from "../../core/audit-chain.ts";
import type { AuditCheck, AuditEntry, AuditQuery, AuditVerification, NewAuditEntry } from "../audit.ts";
import { CHECKED, type CheckedRow, ENTRY, type EntryRow, headless, nextRecord, toAuditEntry, toChecked } from "../audit-row.ts";
import { listOf, type Rows } from "./driver.ts";
import { GUARDS } from "./schema/audit.ts";
import type { Tx } from "./transaction.ts";

/**
 * The audit's table, and the row that is its head. Whoever writes entries locks that row: so they are one chain, and are
 * committed in the order of their numbers. All of them want it, and they come with rows of all kinds; so it is locked
 * last, when a transaction needs nothing else any more, and nobody who holds it waits for anything.
 */
export class Audit {
  /** Whoever has the store open; null: that was not said. */
  readonly actor: string | null;
  readonly #sql: Record<"lock" | "add" | "move" | "head" | "page" | "last" | "about" | "lastAbout" | "check" | "guards", string>;
  readonly #s: string;

  constructor(s: string, actor: string | null) {
    this.actor = actor;
    this.#s = s;
    const read = `select ${ENTRY} from ${s}.audit`;
    this.#sql = {
      lock: `select seq, hash, ${s}.clock($1) from ${s}.audit_head where id = 1 for no key update`,
      add: `
        insert into ${s}.audit (${ENTRY}, hash)
        select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
          as entry (${ENTRY}, hash) order by seq`,
      move: `update ${s}.audit_head set seq = $1, hash = $2 where id = 1`,
      head: `select seq, hash from ${s}.audit_head where id = 1`,
      page: `${read} where seq > $1 order by seq limit $2`,
      last: `select * from (${read} where seq > $1 order by seq desc limit $2) as newest order by seq`,
      // By audit_subject.
      about: `${read} where subject = $3 and seq > $1 order by seq limit $2`,
      lastAbout: `select * from (${read} where subject = $3 and seq > $1 order by seq desc limit $2) as newest order by seq`,
      check: CHECKED({ entries: `${s}.audit`, head: `${s}.audit_head`, after: "$1", limit: "$2" }),
      guards: `
        select name from unnest($1::text[]) with ordinality as guard (name, place)
        where not exists (
          select 1 from pg_trigger
          where tgrelid in ($2::regclass, $3::regclass) and tgname = name and tgenabled in ('O', 'A') and not tgisinternal)
        order by place`,
    };
  }

  /** It is written when all else is. */
  async add(tx: Tx, entry: NewAuditEntry): Promise<void> {
    tx.wrote();
    tx.atLast(entry);
  }

  /** All that a transaction has to write, behind everything else. */
  async write(tx: Pick<Tx, "at" | "rows">, entries: readonly NewAuditEntry[]): Promise<void> {
    const [row] = await tx.rows<[seq: number, hash: string, now: number]>(this.#sql.lock, tx.at);
    if (row === undefined) throw headless();
    const [seq, hash, now] = row;
    let head: AuditHead = { seq, hash };
    const chained = entries.map((entry) => {
      const [record, next] = nextRecord(head, entry, now, this.actor ?? UNNAMED);
      head = next;
      return { ...record, hash: next.hash };
    });
    const columns = (["seq", "at", "by", "action", "subject", "before", "after", "hash"] as const).map((column) =>
      listOf(chained.map((record) => record[column])),
    );
    // One right behind the other: the head moves to what is there.
    await Promise.all([tx.rows(this.#sql.add, ...columns), tx.rows(this.#sql.move, head.seq, head.hash)]);
  }

  async head(rows: Rows): Promise<AuditHead> {
    const [row] = await rows<[number, string]>(this.#sql.head);
    return row === undefined ? NO_ENTRY : { seq: row[0], hash: row[1] };
  }

  async page(rows: Rows, { after, limit, subject, last = false }: AuditQuery): Promise<AuditEntry[]> {
    const { page, last: newest, about, lastAbout } = this.#sql;
    const found = await (subject === undefined
      ? rows<EntryRow>(last ? newest : page, after, limit)
      : rows<EntryRow>(last ? lastAbout : about, after, limit, subject));
    return found.map(toAuditEntry);
  }

  async verify(rows: Rows, { from = NO_ENTRY, limit, known = [] }: AuditVerification): Promise<AuditCheck> {
    // What was put in before the first entry would else be passed by.
    const after = from.seq === 0 ? Number.MIN_SAFE_INTEGER : from.seq;
    const { entries, head, more } = toChecked(await rows<CheckedRow>(this.#sql.check, after, limit + 1), limit);
    const followed = followAudit({ from, rows: entries, isLast: !more, head, known });
    const missing = more || followed.fault !== null ? [] : await this.#unguarded(rows);
    const fault = missing.length > 0 ? unguarded(followed.head.seq, missing) : followed.fault;
    return { head: followed.head, entries: entries.length, more: more && fault === null, fault };
  }

  /** The names of what keeps entries from being changed, as far as it is gone or put out of action. */
  async #unguarded(rows: Rows): Promise<string[]> {
    const tables = [`${this.#s}.audit`, `${this.#s}.audit_head`] as const;
    return (await rows<[string]>(this.#sql.guards, listOf(GUARDS), ...tables)).map(([name]) => name);
  }
}
