import { RerunTransaction } from "./faults.ts";
import type { Session } from "./session.ts";
import type { Rows } from "./driver.ts";

/** How far sequences are moved, which is further than any process can have counted in the time that was lost. */
const SEQUENCE_GAP = 1_000_000_000;
const JOB_GAP = 100_000_000;
const PROCESS_GAP = 1_000_000;

export class DatabaseReverted extends RerunTransaction {
  constructor() {
    super("The database has gone back to what it was before.", { soon: true });
  }
}

// After a server crash, a failover or a restore, a database may give out numbers that live processes hold. The unlogged table
// `awake` is empty then: the process that finds it empty moves all sequences and draws a new epoch, and one that knew another
// epoch clears its caches. Each transaction compares the epoch at its end, so none that began before the change commits.
export class Epoch {
  known = Number.NaN;
  readonly isGone: (known: string) => string;
  readonly #sql: Record<"wake" | "moveOn" | "draw" | "depose" | "read", string>;

  constructor(s: string) {
    const on = (sequence: string, by: number) => {
      const name = `'${s.replaceAll("'", "''")}.${sequence}'`;
      return `setval(${name}, nextval(${name}) + ${by})`;
    };
    const isAwake = `exists (select 1 from ${s}.awake)`;
    this.isGone = (known) => `epoch <> ${known} or not ${isAwake}`;
    this.#sql = {
      // If two processes come at once, the second waits for the first, and finds the row.
      wake: `insert into ${s}.awake (id) values (1) on conflict do nothing returning id`,
      moveOn: `
        select ${on("fence", SEQUENCE_GAP)}, ${on("job", JOB_GAP)}, ${on("outbox_id_seq", SEQUENCE_GAP)}, ${on("processes_id_seq", PROCESS_GAP)}`,
      // The epoch is random, because an epoch that was lost must not come again.
      draw: `update ${s}.counter set epoch = floor(random() * 9007199254740991)::bigint where id = 1`,
      // The process that delivers may be further than the stored cursor is now, so it loses the sink.
      depose: `update ${s}.sinks set holder = null, expires_at = null, token = nextval('${s.replaceAll("'", "''")}.fence')`,
      read: `select epoch, ${isAwake} from ${s}.counter where id = 1`,
    };
  }

  /** Reads the epoch, and makes sequences safe. `forget` clears caches at the same instant. */
  async enter(session: Session, forget: () => void): Promise<void> {
    const [row] = await session.rows<[number, boolean]>(this.#sql.read);
    const [epoch, isAwake] = row as [number, boolean];
    const known = isAwake ? epoch : await this.#wake(session);
    forget();
    this.known = known;
  }

  async #wake(session: Session): Promise<number> {
    const { wake, moveOn, draw, depose, read } = this.#sql;
    await session.command("begin isolation level read committed; set local synchronous_commit = on");
    try {
      if ((await session.rows(wake)).length > 0) {
        await session.rows(moveOn);
        await session.rows(draw);
        await session.rows(depose);
      }
      const [row] = await session.rows<[number]>(read);
      await session.command("commit");
      return (row as [number])[0];
    } catch (error) {
      if (!session.isLost) await session.command("rollback").catch(() => {});
      throw error;
    }
  }
}

const ASK_INTERVAL_MS = 1_000;

/** Estimates the database's time without a query. Rows are written in that time, and this host's clock may be an hour off. */
export class ServerTime {
  readonly #sql: string;
  readonly #monotonic: () => number;
  #ahead: number | null = null;
  #askedAt = Number.NEGATIVE_INFINITY;

  constructor(s: string, monotonic: () => number) {
    this.#sql = `select ${s}.clock(null)`;
    this.#monotonic = monotonic;
  }

  now(): number {
    return Math.round(this.#monotonic() + (this.#ahead ?? 0));
  }

  async keep(rows: Rows): Promise<void> {
    if (this.#monotonic() - this.#askedAt >= ASK_INTERVAL_MS) await this.ask(rows);
  }

  async ask(rows: Rows): Promise<void> {
    const before = (this.#askedAt = this.#monotonic());
    const [row] = await rows<[number]>(this.#sql);
    this.learn((row as [number])[0], before, this.#monotonic());
  }

  /** Learns from an answer given between both instants. The estimate moves no further than needed: slow answers do no harm. */
  learn(answer: number, before: number, after: number): void {
    const [least, most] = [answer - after, answer + 1 - before];
    this.#ahead = this.#ahead === null ? (least + most) / 2 : Math.min(most, Math.max(least, this.#ahead));
  }
}
