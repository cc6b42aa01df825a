import type { Tx } from "./group.ts";
import type { Reader } from "./reader.ts";

/** How many are numbered in one step, so that nobody waits long for another's. */
const STEP = 1_000;

/**
 * Events get their numbers after their commit, from whoever wants to read them first: all that can be seen by then, in the
 * order in which they were written, one reader at a time. So
 *
 * - nobody is passed over: what is committed later gets a higher number, however early it was written;
 * - of two events of one job the later has the higher number. Its transaction could change the job only after the other
 *   one's was committed, and wrote its event after that: whoever sees the later one sees the earlier one too, and its id
 *   is lower. So it has its number already, or gets a lower one in the same step;
 * - nobody waits for anybody else's transaction, however long it stays open.
 *
 * Numbers of transactions (xid) would give another order: one that wrote something else first has the lower number, and
 * may still come second to a job.
 */
export class Numbering {
  readonly #reader: Reader;
  readonly #sql: Record<"lock" | "move" | "newest", string>;

  constructor(s: string, reader: Reader) {
    this.#reader = reader;
    this.#sql = {
      // What was read by somebody must not be gone after a crash of the server, or its number would be another's then.
      // So this is on disk whatever the durability is, and everything that was committed before is, too.
      lock: `
        select set_config('synchronous_commit', 'on', true),
          pg_advisory_xact_lock(hashtextextended('holdfast numbers ${s.replaceAll("'", "''")}', 0))`,
      // Sees what there is when the lock is held, since it is a statement of its own.
      move: `
        with moved as (
          delete from ${s}.outbox
          where id <= coalesce((select id from ${s}.outbox order by id offset ${STEP - 1} limit 1), ${MOST})
          returning id, type, at, transition, job, build, data),
        counted as (
          update ${s}.numbered set seq = seq + n from (select count(*) as n from moved) as sum
          where numbered.id = 1 and n > 0 returning seq - n as before),
        numbered as (
          insert into ${s}.events (seq, type, at, transition, job, build, data)
          select before + row_number() over (order by moved.id), type, at, transition, job, build, data from moved, counted)
        select count(*) from moved`,
      newest: `select exists (select 1 from ${s}.outbox), seq from ${s}.numbered where id = 1`,
    };
  }

  /**
   * At least so many, or all there are. It is sent as a whole: whoever is stopped in the middle keeps nobody else from
   * going on, and whoever dies after it has done no harm.
   */
  async number(atLeast: number): Promise<void> {
    const { lock, move } = this.#sql;
    for (let sum = 0, n = STEP; n === STEP && sum < atLeast; sum += n) {
      const [row] = await this.#reader.script<[number]>("set transaction isolation level read committed", lock, move);
      [n] = row as [number];
    }
  }

  /** The newest number, of all that is to be seen from inside this transaction: what was written in it before is, what comes is not. */
  async within(tx: Tx): Promise<number> {
    const { lock, move, newest } = this.#sql;
    const [[isBehind, seq]] = (await tx.rows<[boolean, number]>(newest)) as [[boolean, number]];
    if (!isBehind) return seq;
    await tx.rows(lock);
    for (let n = STEP; n === STEP;) [[n]] = (await tx.rows<[number]>(move)) as [[number]];
    const [[, last]] = (await tx.rows<[boolean, number]>(newest)) as [[boolean, number]];
    return last;
  }
}

/** The highest id that can be. */
const MOST = "9223372036854775807";
