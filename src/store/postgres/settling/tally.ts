import type { FinishedState } from "../../../core/jobs/job.ts";
import { COUNTED, type Tallied } from "../../job-row.ts";
import { listOf, type Rows } from "../connection/driver.ts";
import type { Tx } from "../transactions/transaction.ts";

/**
 * So many handles can settle at once without waiting for each other. A lane and state have three times as many rows at most:
 * second connections and users' own transactions have theirs.
 */
const SHARES = 64;

/** Counts of finished jobs, kept with each change of one, so that counting never walks history. */
export class Tally {
  readonly #sql: Record<"share" | "add" | "subtract" | "all", string>;
  #share: number;

  /** `apart`: in somebody else's transaction, which may stay open for long. */
  constructor(s: string, options: { apart: boolean; random: () => number }) {
    this.#share = (options.apart ? SHARES : 0) + Math.floor(options.random() * SHARES);
    this.#sql = {
      share: `select nextval('${s}.share')`,
      add: `
        insert into ${s}.tally as old (share, lane, state, n, ended, fresh, since)
        select $1, lane, state, n, n, n, $2 from unnest($3::integer[], $4::text[], $5::bigint[]) as new (lane, state, n)
        order by lane, state
        on conflict (share, lane, state) do update set ${COUNTED}`,
      subtract: `
        insert into ${s}.tally as old (share, lane, state, n)
        select $1, lane, state, -n from unnest($2::integer[], $3::text[], $4::bigint[]) as new (lane, state, n)
        order by lane, state
        on conflict (share, lane, state) do update set n = old.n + excluded.n`,
      all: `select lane, state, n, ended, since, fresh, before from ${s}.tally`,
    };
  }

  /** The row that this handle adds to; the sum of all counts. */
  get share(): number {
    return this.#share;
  }

  /** Over its second connection, so that neither waits for the other. */
  get second(): number {
    return 2 * SHARES + this.#share;
  }

  /** One that no other handle has, unless there are many: or those who count several lanes, each in another order, wait in a circle. */
  async choose(rows: Rows): Promise<void> {
    try {
      const [row] = await rows<[number]>(this.#sql.share);
      this.#share = (row as [number])[0] % SHARES;
    } catch {
      // Who may only read counts nothing.
    }
  }

  /** What a statement that ends jobs does besides: `ended` is what it returns of them, with their lane, and `clock` the time. */
  static within(s: string, share: string, state: FinishedState): string {
    return `
      insert into ${s}.tally as old (share, lane, state, n, ended, fresh, since)
      select ${share}, ended.lane, '${state}', count(*), count(*), count(*), max(clock.now) from ended, clock group by ended.lane
      on conflict (share, lane, state) do update set ${COUNTED}`;
  }

  async add(tx: Tx, now: number, ended: readonly { lane: number; state: FinishedState }[]): Promise<void> {
    const sums = sumsOf(ended);
    if (sums.length === 0) return;
    await tx.rows(this.#sql.add, this.share, now, ...columns(sums));
  }

  async subtract(tx: Tx, gone: readonly { lane: number; state: FinishedState }[]): Promise<void> {
    const sums = sumsOf(gone);
    if (sums.length === 0) return;
    await tx.rows(this.#sql.subtract, this.share, ...columns(sums));
  }

  async all(rows: Rows): Promise<Tallied[]> {
    const all = await rows<[number, FinishedState, number, number, number, number, number]>(this.#sql.all);
    return all.map(([lane, state, n, ended, since, fresh, before]) => ({ lane, state, n, ended, since, fresh, before }));
  }
}

interface Sum {
  lane: number;
  state: FinishedState;
  n: number;
}

function sumsOf(jobs: readonly { lane: number; state: FinishedState }[]): Sum[] {
  const sums = new Map<string, Sum>();
  for (const { lane, state } of jobs) {
    const sum = sums.get(`${lane} ${state}`);
    if (sum === undefined) sums.set(`${lane} ${state}`, { lane, state, n: 1 });
    else sum.n += 1;
  }
  return [...sums.values()];
}

function columns(sums: readonly Sum[]): [string, string, string] {
  return [listOf(sums.map(({ lane }) => lane)), listOf(sums.map(({ state }) => state)), listOf(sums.map(({ n }) => n))];
}
