import { randomUUID } from "node:crypto";
import type { Durability } from "../../store.ts";
import type { Value } from "../connection/driver.ts";
import { codeOf } from "../connection/faults.ts";
import { REFUSED } from "../connection/session-settings.ts";
import type { Session } from "../connection/session.ts";

const RECEIPTS_KEPT = "1 day";
/** How long one question about a lost commit waits for a transaction that has not ended, in milliseconds. */
const ASK_WAIT_MS = 1_000;

interface Assumptions {
  epoch: number;
  lanes: number | null;
  settings: number | null;
}

/** A statement that is a transaction by itself, once the receipt is part of it. */
export interface SingleStatement {
  parts: string;
  values: number;
  /** Selects the columns of `Made`, one row: by them a lost answer is found again. */
  made: string;
  wrote: string;
  /** The settings count that is compared; by default the one of the statement's snapshot. */
  settings?: string;
  /** Its answer; one of its rows or all of them contain the verdict, which rejects the statement. */
  answer: (verdict: string) => string;
}

export interface Made {
  made: number | null;
  madeAt: number | null;
  keys: string | null;
}

export interface Outcome extends Made {
  committed: boolean;
}

/**
 * Every transaction that writes leaves a receipt: one row for each handle, with the number of its last transaction. If a commit
 * got no answer, the row tells whether it took effect. Asking also closes the number, because the server may not have processed
 * the lost transaction yet, and must not commit it later. The xid would not do: after a crash the server may give it to another
 * transaction.
 */
export class Receipts {
  readonly #handle = randomUUID();
  readonly #sql: Record<"end" | "endFirst" | "close", string>;
  readonly #sealed = new Map<SingleStatement, string>();
  readonly #seal: (statement: SingleStatement) => string;
  #batch = 0;
  #isFirst = true;

  constructor(s: string, epoch: { isGone: (known: string) => string }, durability: Durability) {
    const written = "pg_current_xact_id_if_assigned() is not null";
    const receipt = (batch: string, made: string) => `
      receipt as (
        insert into ${s}.receipts as old (handle, batch, made, made_at, keys)
        select '${this.#handle}', ${batch}::bigint, ${made}
        on conflict (handle) do update
        set batch = excluded.batch, made = excluded.made, made_at = excluded.made_at, keys = excluded.keys, at = excluded.at
        where old.closed < excluded.batch
        returning 1)`;
    // `synchronous_commit` was set once for the connection, which an undeclared pooler may have given to another client.
    const unsynced =
      durability === "power" ? `when current_setting('synchronous_commit') <> 'on' then ${s}.refuse('${REFUSED.unsynced}')` : "";
    const refusal = (wrote: string, counted: string, [known, lanes, settings]: readonly string[]) => `case ${unsynced}
        when ${epoch.isGone(`${known}::bigint`)} then ${s}.refuse('${REFUSED.reverted}')
        when lanes <> ${lanes}::integer or ${counted} <> ${settings}::bigint then ${s}.refuse('${REFUSED.stale}')
        when ${wrote} and not exists (select 1 from receipt) then ${s}.refuse('${REFUSED.closed}') end`;
    const nothing = `null, null, null where ${written}`;
    const sweep = `
      swept as (
        delete from ${s}.receipts where ${written} and handle in (
          select handle from ${s}.receipts where at < now() - interval '${RECEIPTS_KEPT}' limit 100 for update skip locked))`;
    const end = (...parts: string[]) => `
      with ${parts.join()}
      select ${written}, ${refusal(written, "settings", ["$2", "$3", "$4"])}
      from ${s}.counter where id = 1`;
    this.#seal = ({ parts, values, made, wrote, settings = "settings", answer }) => {
      const [batch, ...known] = [1, 2, 3, 4].map((n) => `$${values + n}`) as [string, ...string[]];
      const verdict = refusal(wrote, settings, known);
      return `
        with ${parts}, ${receipt(batch, `${made} where ${wrote}`)}
        ${answer(`(select ${verdict} from ${s}.counter where id = 1)`)}`;
    };
    this.#sql = {
      end: end(receipt("$1", nothing)),
      endFirst: end(receipt("$1", nothing), sweep),
      close: `
        insert into ${s}.receipts as old (handle, closed) values ('${this.#handle}', $1::bigint)
        on conflict (handle) do update set closed = greatest(old.closed, excluded.closed) returning batch, made, made_at, keys`,
    };
  }

  next(): number {
    return ++this.#batch;
  }

  /**
   * The last statement of a transaction leaves the receipt, and fails if the epoch, lanes or settings have changed. It answers
   * whether anything was written.
   */
  end(batch: number, { epoch, lanes, settings }: Assumptions): [text: string, ...values: Value[]] {
    const text = this.#isFirst ? this.#sql.endFirst : this.#sql.end;
    this.#isFirst = false;
    return [text, batch, epoch, lanes, settings];
  }

  sealed(statement: SingleStatement): string {
    let text = this.#sealed.get(statement);
    if (text === undefined) this.#sealed.set(statement, (text = this.#seal(statement)));
    return text;
  }

  async ask(session: Session, batch: number): Promise<Outcome | null> {
    await session.command(`begin isolation level read committed; set local lock_timeout = ${ASK_WAIT_MS}`);
    try {
      const [row] = await session.rows<[number, number | null, number | null, string | null]>(this.#sql.close, [batch]);
      await session.command("commit");
      const [last, made, madeAt, keys] = row as [number, number | null, number | null, string | null];
      return { committed: last === batch, made, madeAt, keys };
    } catch (error) {
      if (!session.isLost) await session.command("rollback");
      if (codeOf(error) === "55P03") return null;
      throw error;
    }
  }
}
