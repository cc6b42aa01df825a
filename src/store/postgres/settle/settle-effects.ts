import type { FinishedState } from "../../../core/jobs/job.ts";
import { COUNTED } from "../../job-row.ts";
import { lists, type Rows } from "../connection/driver.ts";
import type { Tx } from "../transactions/transaction.ts";
import type { FinishedJob } from "../../sql/retention.ts";
import { runAsync } from "../../sql/script.ts";
import type { JobParts } from "../store-parts.ts";

type SettleEffectsParts = Pick<JobParts, "tally" | "retention" | "dependents">;

export class SettleEffects {
  readonly #parts: SettleEffectsParts;

  constructor(parts: SettleEffectsParts) {
    this.#parts = parts;
  }

  async follow(tx: Tx, now: number, ended: readonly FinishedJob[]): Promise<void> {
    const { tally, retention, dependents } = this.#parts;
    for (let round = ended; round.length > 0;) {
      const counted = tally.add(tx, now, round);
      const listed = runAsync(retention.add(tx, round, now));
      [round] = await Promise.all([runAsync(dependents.follow(tx, now, round)), counted, listed]);
    }
  }
}

/** Counts are split into rows, so that stores settle without waiting. Users and second connections have their own rows. */
const SHARES = 64;

export function longShare(random: () => number): number {
  return SHARES + Math.floor(random() * SHARES);
}

export function secondShare(first: number): number {
  return 2 * SHARES + first;
}

export class Tally {
  readonly #sql: Record<"share" | "add" | "subtract", string>;

  constructor(s: string) {
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
    };
  }

  /** Chooses a share. With the same one, two transactions that count several lanes in different orders would deadlock. */
  async chooseShare(rows: Rows, random: () => number): Promise<number> {
    try {
      const [row] = await rows<[number]>(this.#sql.share);
      return (row as [number])[0] % SHARES;
    } catch {
      return Math.floor(random() * SHARES);
    }
  }

  static within(s: string, share: string, state: FinishedState): string {
    return `
      insert into ${s}.tally as old (share, lane, state, n, ended, fresh, since)
      select ${share}, ended.lane, '${state}', count(*), count(*), count(*), max(clock.now) from ended, clock group by ended.lane
      on conflict (share, lane, state) do update set ${COUNTED}`;
  }

  async add(tx: Tx, now: number, ended: readonly { lane: number; state: FinishedState }[]): Promise<void> {
    const sums = sumsOf(ended);
    if (sums.length === 0) return;
    await tx.rows(this.#sql.add, tx.tallyShare, now, ...lists(sums, "lane", "state", "n"));
  }

  async subtract(tx: Tx, gone: readonly { lane: number; state: FinishedState }[]): Promise<void> {
    const sums = sumsOf(gone);
    if (sums.length === 0) return;
    await tx.rows(this.#sql.subtract, tx.tallyShare, ...lists(sums, "lane", "state", "n"));
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
