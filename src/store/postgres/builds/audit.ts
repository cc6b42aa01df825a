import { type AuditColumns, toAuditEntry } from "../../build-row.ts";
import type { AuditEntry } from "../../builds.ts";
import type { Rows } from "../driver.ts";
import type { Tx } from "../transaction.ts";

type Row = [
  seq: number,
  at: number,
  by: string,
  action: string,
  subject: string,
  before: AuditColumns["before"],
  after: AuditColumns["after"],
];

/**
 * Who did what to builds, and how they were before and after it: written in the transaction of the act, in the turn of
 * builds. So whoever has read up to a number has missed none before it.
 */
export class Audit {
  readonly #sql: Record<"add" | "page" | "about", string>;

  constructor(s: string) {
    const read = `select seq, at, actor, action, subject, before, after from ${s}.audit`;
    this.#sql = {
      add: `
        insert into ${s}.audit (at, actor, action, subject, before, after) values ($1, $2, $3, $4, $5, $6) returning seq`,
      page: `${read} where seq > $1 order by seq limit $2`,
      // By audit_subject.
      about: `${read} where subject = $3 and seq > $1 order by seq limit $2`,
    };
  }

  /** The entry's number. */
  async add(tx: Tx, entry: Omit<AuditEntry, "seq" | "at">): Promise<number> {
    const { by, action, subject, before, after } = entry;
    const now = await tx.now();
    const added = await tx.rows<[number]>(this.#sql.add, now, by, action, subject, json(before), json(after));
    tx.wrote();
    return (added as [[number]])[0][0];
  }

  async page(rows: Rows, { after, limit, subject }: { after: number; limit: number; subject?: string }): Promise<AuditEntry[]> {
    const found = await (subject === undefined
      ? rows<Row>(this.#sql.page, after, limit)
      : rows<Row>(this.#sql.about, after, limit, subject));
    return found.map(([seq, at, by, action, about, was, is]) =>
      toAuditEntry({ seq, at, by, action, subject: about, before: was, after: is }),
    );
  }
}

function json(value: unknown): string | null {
  return value === null || value === undefined ? null : JSON.stringify(value);
}
