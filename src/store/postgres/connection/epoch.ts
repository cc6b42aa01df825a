import { RerunTransaction } from "./faults.ts";
import type { Session } from "./session.ts";

/** How far numbers are moved on: further than anybody can have counted in the time that was lost. Ids have room for so many jobs. */
const FAR = 1_000_000_000;
const FAR_JOBS = 100_000_000;
const FAR_PROCESSES = 1_000_000;

/** The database is another than the one that is known here. */
export class DatabaseReverted extends RerunTransaction {
  constructor() {
    super("The database has gone back to what it was before.", { soon: true });
  }
}

/**
 * A database can go back: a server that crashes loses what it had not synced, a replica that takes over may lag, a backup
 * is as old as it is. Processes live on meanwhile, and hold numbers that would be given to others now. A table that is
 * not logged tells: after each of these it is empty. The process that finds it so moves all numbers on and draws a new epoch; a
 * process that knew another one forgets what it knew. Each transaction looks at its end, so none of before is committed after.
 */
export class Epoch {
  /** Whether the row of the counter tells of another one than is known. */
  readonly isGone: (known: string) => string;
  readonly #sql: Record<"wake" | "moveOn" | "draw" | "depose" | "read", string>;
  #known = Number.NaN;

  constructor(s: string) {
    const on = (sequence: string, by: number) => {
      const name = `'${s.replaceAll("'", "''")}.${sequence}'`;
      return `setval(${name}, nextval(${name}) + ${by})`;
    };
    const isAwake = `exists (select 1 from ${s}.awake)`;
    this.isGone = (known) => `epoch <> ${known} or not ${isAwake}`;
    this.#sql = {
      // Of two who come at once the second waits for the first, and finds it done.
      wake: `insert into ${s}.awake (id) values (1) on conflict do nothing returning id`,
      moveOn: `
        select ${on("fence", FAR)}, ${on("job", FAR_JOBS)}, ${on("outbox_id_seq", FAR)}, ${on("processes_id_seq", FAR_PROCESSES)}`,
      // At random: one that was lost with the rest must not come again.
      draw: `update ${s}.counter set epoch = floor(random() * 9007199254740991)::bigint where id = 1`,
      // A process that delivers may be further than the sink is now.
      depose: `update ${s}.sinks set holder = null, expires_at = null, token = nextval('${s.replaceAll("'", "''")}.fence')`,
      read: `select epoch, ${isAwake} from ${s}.counter where id = 1`,
    };
  }

  /** What a transaction notes at its beginning: another transaction may learn of another one before its end. */
  get known(): number {
    return this.#known;
  }

  /** Learns which it is, and sees to it that numbers can be trusted. What was known is forgotten at the same instant. */
  async enter(session: Session, forget: () => void): Promise<void> {
    const [row] = await session.rows<[number, boolean]>(this.#sql.read);
    const [epoch, isAwake] = row as [number, boolean];
    const known = isAwake ? epoch : await this.#wake(session);
    forget();
    this.#known = known;
  }

  /** Synced: what follows builds on it. */
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
