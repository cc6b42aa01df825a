import { randomUUID } from "node:crypto";
import type { Durability } from "../../store.ts";
import type { Value } from "../connection/driver.ts";
import { codeOf } from "../connection/faults.ts";
import { REFUSED } from "../connection/session-settings.ts";
import type { Session } from "../connection/session.ts";

/** Older receipts are deleted: their stores have their answers, or are gone. */
const KEPT = "1 day";
/** How long one question about a lost commit waits for a transaction that has not ended, in milliseconds. */
const WAIT = 1_000;

/** What a transaction has relied on; null: not on that. */
interface Relied {
  epoch: number;
  lanes: number | null;
  settings: number | null;
}

/** A statement that is a transaction by itself, once its end is part of it. */
export interface SingleStatement {
  /** What it does: all that stands behind its `with`. */
  parts: string;
  /** How many values that takes. */
  values: number;
  /** What its answer is found by when it is lost: what a select of what `Made` has is made of, and of one row. */
  made: string;
  /** Whether it has written anything, where that is not always so. */
  wrote: string;
  /** The count of changes of settings that is compared; by itself that of the instant at which it began. */
  settings?: string;
  /** Its answer, a select; every row of it, or one, has the verdict, which ends it where it must not be. */
  answer: (verdict: string) => string;
}

/** What came of a transaction that was one statement. */
export interface Made {
  /** The job, the first of several, or the fence of what was claimed; and when. */
  made: number | null;
  madeAt: number | null;
  /** Of jobs that do not follow each other, a list in JSON. */
  keys: string | null;
}

/** What became of a transaction. */
export interface Outcome extends Made {
  committed: boolean;
}

/**
 * Every transaction that writes leaves a receipt in the database: one row for each handle, with the number of its last one.
 * When a commit had no answer because the connection was lost, the row tells whether it took effect. The question also
 * closes the number: the server may still have the lost transaction before it, and must not commit it later. The server's
 * own word for it will not do: after a crash it may give the number of a transaction that it has lost to another one, and
 * then says what became of that.
 */
export class Receipts {
  readonly #handle = randomUUID();
  readonly #sql: Record<"end" | "endFirst" | "close", string>;
  /** With their ends. */
  readonly #sealed = new Map<SingleStatement, string>();
  readonly #seal: (statement: SingleStatement) => string;
  #batch = 0;
  #isFirst = true;

  constructor(s: string, epoch: { isGone: (known: string) => string }, durability: Durability) {
    // Where nothing was written, a receipt would be all there is to commit.
    const written = "pg_current_xact_id_if_assigned() is not null";
    const receipt = (batch: string, made: string) => `
      receipt as (
        insert into ${s}.receipts as old (handle, batch, made, made_at, keys)
        select '${this.#handle}', ${batch}::bigint, ${made}
        on conflict (handle) do update
        set batch = excluded.batch, made = excluded.made, made_at = excluded.made_at, keys = excluded.keys, at = excluded.at
        where old.closed < excluded.batch
        returning 1)`;
    // It was set once for the connection, which an undeclared pooler may have given to another client by now.
    const unsynced =
      durability === "power" ? `when current_setting('synchronous_commit') <> 'on' then ${s}.refuse('${REFUSED.unsynced}')` : "";
    const refusal = (wrote: string, counted: string, [known, lanes, settings]: readonly string[]) => `case ${unsynced}
        when ${epoch.isGone(`${known}::bigint`)} then ${s}.refuse('${REFUSED.returned}')
        when lanes <> ${lanes}::integer or ${counted} <> ${settings}::bigint then ${s}.refuse('${REFUSED.stale}')
        when ${wrote} and not exists (select 1 from receipt) then ${s}.refuse('${REFUSED.closed}') end`;
    const nothing = `null, null, null where ${written}`;
    const sweep = `
      swept as (
        delete from ${s}.receipts where ${written} and handle in (
          select handle from ${s}.receipts where at < now() - interval '${KEPT}' limit 100 for update skip locked))`;
    const end = (...parts: string[]) => `
      with ${parts.join()}
      select ${written}, ${refusal(written, "settings", ["$2", "$3", "$4"])}
      from ${s}.counter where id = 1`;
    // All of it is of one instant: what others commit later comes after it as a whole.
    this.#seal = ({ parts, values, made, wrote, settings = "settings", answer }) => {
      const [batch, ...known] = [1, 2, 3, 4].map((n) => `$${values + n}`) as [string, ...string[]];
      const verdict = refusal(wrote, settings, known);
      return `
        with ${parts}, ${receipt(batch, `${made} where ${wrote}`)}
        ${answer(`(select ${verdict} from ${s}.counter where id = 1)`)}`;
    };
    this.#sql = {
      end: end(receipt("$1", nothing)),
      // Once for each handle is often enough to clear away what others have left.
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
   * The last statement of a transaction: leaves the receipt, and fails if anything that was relied on is not so any more: at
   * the end, hence also when it was used. Its answer is whether anything was written.
   */
  end(batch: number, { epoch, lanes, settings }: Relied): [text: string, ...values: Value[]] {
    const text = this.#isFirst ? this.#sql.endFirst : this.#sql.end;
    this.#isFirst = false;
    return [text, batch, epoch, lanes, settings];
  }

  /** A statement that is a transaction, with the same end. */
  sealed(statement: SingleStatement): string {
    let text = this.#sealed.get(statement);
    if (text === undefined) this.#sealed.set(statement, (text = this.#seal(statement)));
    return text;
  }

  /** Whether it was committed, for good; null while that is not decided. */
  async ask(session: Session, batch: number): Promise<Outcome | null> {
    await session.command(`begin isolation level read committed; set local lock_timeout = ${WAIT}`);
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
