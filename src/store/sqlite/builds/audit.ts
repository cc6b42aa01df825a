import { type AuditColumns, toAuditEntry } from "../../build-row.ts";
import type { AuditEntry } from "../../builds.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

/** Who did what to builds, and how they were before and after it: written in the transaction of the act. */
export class Audit {
  readonly #add: Statement;
  readonly #page: Statement;

  constructor(db: Connection) {
    this.#add = db.prepare(
      `insert into holdfast_audit (at, actor, action, subject, before, after)
       values (:at, :by, :action, :subject, :before, :after) returning seq`,
    );
    // By the primary key, or by holdfast_audit_subject.
    const read = "select seq, at, actor as by, action, subject, before, after from holdfast_audit";
    this.#page = db.prepare(`${read} where seq > :after and (:subject is null or subject = :subject) order by seq limit :limit`);
  }

  /** The entry's number. */
  add(tx: Tx, entry: Omit<AuditEntry, "seq" | "at">): number {
    const { by, action, subject, before, after } = entry;
    const texts = { before: json(before), after: json(after) };
    const { seq } = this.#add.get<{ seq: number }>({ at: tx.now, by, action, subject, ...texts }) as { seq: number };
    tx.wrote();
    return seq;
  }

  page({ after, limit, subject }: { after: number; limit: number; subject?: string }): AuditEntry[] {
    return this.#page.all<AuditColumns>({ after, limit, subject: subject ?? null }).map(toAuditEntry);
  }
}

function json(value: unknown): string | null {
  return value === null || value === undefined ? null : JSON.stringify(value);
}
