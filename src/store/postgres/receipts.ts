import { randomUUID } from "node:crypto";
import type { Value } from "./driver.ts";
import { codeOf } from "./faults.ts";
import type { Session } from "./session.ts";

/** Nobody asks for one that is as old as this: whoever left it has its answer, or is no more. */
const KEPT = "1 day";
/** So long whoever asks waits for a transaction of which nobody knows yet how it ends, in milliseconds. */
const WAIT = 1_000;

/** What the end of a transaction is refused with. */
export const REFUSED = { returned: "HF001", stale: "HF002", closed: "HF003" } as const;

/** What a transaction has relied on; null: not on that. */
export interface Relied {
  epoch: number;
  lanes: number | null;
  settings: number | null;
}

/** What a transaction makes whose answer can be found by it. */
export type Made = "job" | "fence";

/** The fence of a claim, and the instant of an enqueue, are kept for the end of their transaction. */
const KEPT_FENCE = "holdfast.fence";
const KEPT_NOW = "holdfast.now";

/** A number that is drawn here, and kept. */
export const keepFence = (fence: string): string => `set_config('${KEPT_FENCE}', ${fence}::text, true)::bigint`;
export const keepNow = (now: string): string => `set_config('${KEPT_NOW}', ${now}::text, true)::bigint`;
const kept = (name: string): string => `nullif(current_setting('${name}', true), '')::bigint`;

/** What became of a transaction. */
export interface Outcome {
  committed: boolean;
  made: number | null;
  madeAt: number | null;
}

/**
 * Every transaction that writes leaves a receipt in the database: one row for each handle, with the number of its last one.
 * When a commit had no answer because the connection was lost, the row tells whether it took effect. Whoever asks also
 * closes the number: the server may still have the lost transaction before it, and must not commit it later. The server's
 * own word for it will not do: after a crash it may give the number of a transaction that it has lost to another one, and
 * then says what became of that.
 */
export class Receipts {
  readonly #handle = randomUUID();
  readonly #sql: Record<"end" | "endFirst" | "close" | Made, string>;
  #batch = 0;
  #isFirst = true;

  constructor(s: string, epoch: { isGone: (known: string) => string }) {
    // Where nothing was written, a receipt would be all there is to commit.
    const written = "pg_current_xact_id_if_assigned() is not null";
    const receipt = (made: string) => `
      receipt as (
        insert into ${s}.receipts as old (handle, batch, made, made_at)
        select '${this.#handle}', $1::bigint, ${made} where ${written}
        on conflict (handle) do update
        set batch = excluded.batch, made = excluded.made, made_at = excluded.made_at, at = excluded.at
        where old.closed < excluded.batch
        returning 1)`;
    const sweep = `
      swept as (
        delete from ${s}.receipts where ${written} and handle in (
          select handle from ${s}.receipts where at < now() - interval '${KEPT}' limit 100 for update skip locked))`;
    const end = (...parts: string[]) => `
      with ${parts.join()}
      select ${written}, case
        when ${epoch.isGone("$2::bigint")} then ${s}.refuse('${REFUSED.returned}')
        when lanes <> $3::integer or settings <> $4::bigint then ${s}.refuse('${REFUSED.stale}')
        when ${written} and not exists (select 1 from receipt) then ${s}.refuse('${REFUSED.closed}') end
      from ${s}.counter where id = 1`;
    this.#sql = {
      end: end(receipt("null, null")),
      // Once for each handle is often enough to clear away what others have left.
      endFirst: end(receipt("null, null"), sweep),
      job: end(receipt(`currval('${s}.job'), ${kept(KEPT_NOW)}`)),
      fence: end(receipt(`${kept(KEPT_FENCE)}, null`)),
      close: `
        insert into ${s}.receipts as old (handle, closed) values ('${this.#handle}', $1::bigint)
        on conflict (handle) do update set closed = greatest(old.closed, excluded.closed) returning batch, made, made_at`,
    };
  }

  next(): number {
    return ++this.#batch;
  }

  /**
   * The last statement of a transaction: leaves the receipt, and fails if anything that was relied on is not so any more: at
   * the end, hence also when it was used. Its answer is whether anything was written.
   */
  end(batch: number, { epoch, lanes, settings }: Relied, made: Made | null): [text: string, ...values: Value[]] {
    const text = made !== null ? this.#sql[made] : this.#isFirst ? this.#sql.endFirst : this.#sql.end;
    if (made === null) this.#isFirst = false;
    return [text, batch, epoch, lanes, settings];
  }

  /** Whether it was committed, for good; null while that is not decided. */
  async ask(session: Session, batch: number): Promise<Outcome | null> {
    await session.command(`begin isolation level read committed; set local lock_timeout = ${WAIT}`);
    try {
      const [row] = await session.rows<[number, number | null, number | null]>(this.#sql.close, [batch]);
      await session.command("commit");
      const [last, made, madeAt] = row as [number, number | null, number | null];
      return { committed: last === batch, made, madeAt };
    } catch (error) {
      if (!session.isLost) await session.command("rollback");
      if (codeOf(error) === "55P03") return null;
      throw error;
    }
  }
}
