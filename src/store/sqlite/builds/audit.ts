import { type AuditColumns, toAuditEntry } from "../../build-row.ts";
import type { AuditEntry } from "../../builds.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

/** Who did what to builds, and how they were before and after it: written in the transaction of the act. */
export class Audit {
  readonly #add: Statement;
  readonly #page: Statement;
  readonly #about: Statement;

  constructor(db: Connection) {
    this.#add = db.prepare(
      `insert into holdfast_audit (at, actor, action, subject, before, after)
       values (:at, :by, :action, :subject, :before, :after) returning seq`,
    );
    const read = "select seq, at, actor as by, action, subject, before, after from holdfast_audit";
    this.#page = db.prepare(`${read} where seq > :after order by seq limit :limit`);
    // By holdfast_audit_subject.
    this.#about = db.prepare(`${read} where subject = :subject and seq > :after order by seq limit :limit`);
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
    const rows =
      subject === undefined
        ? this.#page.all<AuditColumns>({ after, limit })
        : this.#about.all<AuditColumns>({ after, limit, subject });
    return rows.map(toAuditEntry);
  }
}

function json(value: unknown): string | null {
  return value === null || value === undefined ? null : JSON.stringify(value);
}
