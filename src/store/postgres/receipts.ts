import { randomUUID } from "node:crypto";
import { codeOf } from "./faults.ts";
import type { Session } from "./session.ts";

/** Nobody asks for one that is as old as this: whoever left it has its answer, or is no more. */
const KEPT = "1 day";

/** What a transaction leaves behind. */
export interface Receipt {
  /** The number that the server gave it. */
  xid: string;
  /** The number that this handle gave it. */
  batch: number;
}

/**
 * Every transaction that writes leaves a receipt in the database: one row for each handle, with the number of its last
 * one. When a commit had no answer because the connection was lost, the row tells whether it took effect. The server's
 * own word for it will not do: after a crash it may give the number of a transaction that it has lost to another one,
 * and then says what became of that.
 */
export class Receipts {
  readonly #handle = randomUUID();
  readonly #sql: Record<"leave" | "leaveFirst" | "left", string>;
  #batch = 0;
  #isFirst = true;

  constructor(s: string) {
    // Where nothing was written, a receipt would be all there is to commit.
    const written = "pg_current_xact_id_if_assigned() is not null";
    const leave = `
      receipt as (
        insert into ${s}.receipts (handle, batch, at) select '${this.#handle}', $1::bigint, now() where ${written}
        on conflict (handle) do update set batch = excluded.batch, at = excluded.at)`;
    const sweep = `
      swept as (
        delete from ${s}.receipts where ${written} and handle in (
          select handle from ${s}.receipts where at < now() - interval '${KEPT}' limit 100 for update skip locked))`;
    this.#sql = {
      leave: `with ${leave}`,
      leaveFirst: `with ${leave}, ${sweep}`,
      left: `select 1 from ${s}.receipts where handle = '${this.#handle}' and batch = $1::bigint`,
    };
  }

  next(): number {
    return ++this.#batch;
  }

  /** How the last statement of a transaction begins; its only value is the number of the batch. */
  leave(): string {
    const { leave, leaveFirst } = this.#sql;
    if (!this.#isFirst) return leave;
    // Once for each handle is often enough to clear away what others have left.
    this.#isFirst = false;
    return leaveFirst;
  }

  /** Whether it was committed; null while that is not decided. */
  async has(session: Session, { xid, batch }: Receipt): Promise<boolean | null> {
    if (await isOpen(session, xid)) return null;
    const rows = await session.rows(this.#sql.left, [batch]);
    return rows.length > 0;
  }
}

/** It may be that the server has not noticed yet that whoever began it is gone. */
async function isOpen(session: Session, xid: string): Promise<boolean> {
  try {
    const [row] = await session.rows<[string | null]>("select pg_xact_status($1::text::xid8)", [xid]);
    return row?.[0] === "in progress";
  } catch (error) {
    // "In the future": the server has crashed since, and knows nothing of it.
    if (codeOf(error) === "22023") return false;
    throw error;
  }
}
