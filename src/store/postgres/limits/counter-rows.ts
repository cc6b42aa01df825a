import type {
  MissingRow,
  FetchedRows,
  KnownUsage,
  ParkedJob,
  CounterCache,
  LaneUsage,
  StoredLaneUsage,
  JobPosition,
} from "../../../core/limits/lane-usage.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { type LimitChanges, parseLimits } from "../../../core/limits/limit-gate.ts";
import { listOf, lists, placeIn } from "../connection/driver.ts";
import type { Tx } from "../transactions/transaction.ts";

/**
 * How many parked jobs are read with each counter: the first, to see whether its turn has come; a few, where slots become
 * free; or as many as can pass at once. A job that is missing after all is fetched, and everything decided again, so a batch
 * must not find that out key by key.
 */
const DEPTHS = { first: 1, few: 8, many: 100 } as const;
type Depth = keyof typeof DEPTHS;
const FURTHER = "and ($2::integer is null or counter > $1 or priority < $2 or (priority = $2 and job > $3::bigint))";

export type Pair = [rule: number, key: string];

interface Asked {
  pair: Pair;
  uses: number;
}

type CounterRow = [rule: number, key: string, ...usage: ShareRow];
type ShareRow = [
  id: number,
  lane: number,
  running: number,
  passed: number,
  beyond: number,
  parked: number,
  lowest: number,
  last: number,
  bucket: number,
  dueAt: number | null,
];
type ParkedRow = [counter: number, job: JobKey, priority: number, more: boolean, limits: string | null];

export class CounterRows {
  readonly #sql: Record<
    "usages" | "unread" | "further" | "isParked" | "limitsOf" | "unpark" | "remove" | "save" | "add" | "park" | "shut" | "open",
    string
  >;
  readonly #heads: Record<Depth, string>;
  readonly #countersOf: (rule: number) => CounterCache;

  constructor(s: string, countersOf: (rule: number) => CounterCache) {
    this.#countersOf = countersOf;
    const numbers = ["running", "passed", "beyond", "parked", "lowest", "last", "bucket", "due_at"];
    const types = ["bigint", "bigint", "bigint", "bigint", "integer", "bigint", "double precision", "bigint"];
    const lists = (first: number) => types.map((type, i) => `$${first + i}::${type}[]`).join(", ");
    const asked = `unnest($1::integer[], $2::text[]) as asked (asked_rule, asked_key) cross join lateral (
      select * from ${s}.counters where rule = asked_rule and key = asked_key offset 0) as usage`;
    const limits = `case when head.more then (select limits from ${s}.jobs where key = head.job) end`;
    // In the order of the index, beyond the counter's own jobs: for `counter =` a plan that expects few rows would sort a
    // million parked jobs. The limit is part of the text, because for an unknown number a plan expects the worst.
    const onwards = (counter: string, where: string, limit: number) => `
      select counter, job, priority, more from ${s}.parked where counter >= ${counter} ${where}
      order by counter, priority desc, job limit ${limit}`;
    const heads = (from: string, limit: number) => `
      select head.counter, head.job, head.priority, head.more, ${limits}
      from ${from} cross join lateral (${onwards("usage.id", "", limit)}) as head
      where head.counter = usage.id order by head.counter, head.priority desc, head.job`;
    const gate = (to: string) => `
      update ${s}.jobs set gate = ${to}
      where key = any($1::bigint[]) and coalesce(state, '') = 'pending' and coalesce(gate, 'limit') = 'limit'`;
    this.#heads = {
      first: heads(asked, DEPTHS.first),
      few: heads(asked, DEPTHS.few),
      many: heads(asked, DEPTHS.many),
    };
    this.#sql = {
      usages: `select rule, key, id, lane, ${numbers.join(", ")} from ${asked}`,
      unread: heads("unnest($1::bigint[]) as usage (id)", DEPTHS.few),
      further: `
        select head.counter, head.job, head.priority, head.more, ${limits}
        from (${onwards("$1", FURTHER, DEPTHS.many)}) as head
        where head.counter = $1 order by head.priority desc, head.job`,
      isParked: `select 1 from ${s}.parked where counter = $1 and priority = $2 and job = $3`,
      limitsOf: `select limits from ${s}.jobs where key = $1`,
      unpark: `
        delete from ${s}.parked as parked using unnest($1::bigint[], $2::integer[], $3::bigint[]) as asked (counter, priority, job)
        where parked.counter = asked.counter and parked.priority = asked.priority and parked.job = asked.job`,
      remove: `delete from ${s}.counters where id = any($1::bigint[])`,
      save: `
        update ${s}.counters as usage
        set ${numbers.map((column, i) => `${column} = ($${2 + i}::${types[i]}[])[${placeIn("usage.id", "$1")}]`).join(", ")}
        where usage.id = any($1::bigint[])`,
      // New counters together with the jobs parked there: their ids are not known before.
      add: `
        with added as (
          insert into ${s}.counters (rule, key, lane, ${numbers.join(", ")})
          select * from unnest($1::integer[], $2::text[], $3::integer[], ${lists(4)})
          returning id, rule, key, lane)
        insert into ${s}.parked (counter, priority, job, more)
        select added.id, asked.priority, asked.job, asked.more
        from unnest($12::integer[], $13::text[], $14::integer[], $15::integer[], $16::bigint[], $17::boolean[])
          as asked (rule, key, lane, priority, job, more)
        join added on added.rule = asked.rule and added.key = asked.key and added.lane = asked.lane`,
      park: `
        insert into ${s}.parked (counter, priority, job, more)
        select * from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::boolean[])`,
      shut: gate("'limit'"),
      open: gate("null"),
    };
  }

  /**
   * Fetches counters with their first parked jobs, and the other counters that those need. A counter is named as often as it is
   * used. `frees`: each use may free a slot.
   */
  async fetch(tx: Tx, limitRows: FetchedRows, pairs: Iterable<Pair>, frees: boolean): Promise<void> {
    const heads = await this.#fetch(tx, limitRows, pairs, frees);
    await this.#fetch(tx, limitRows, pairsOf(heads), false);
  }

  async #fetch(tx: Tx, limitRows: FetchedRows, pairs: Iterable<Pair>, frees: boolean): Promise<ParkedRow[]> {
    const asked = new Map<string, Asked>();
    for (const pair of pairs) {
      const name = nameOf(pair);
      const known = asked.get(name);
      if (known !== undefined) known.uses++;
      else if (!limitRows.hasUsages(...pair)) asked.set(name, { pair, uses: 1 });
    }
    const unknown: Asked[] = [];
    const unread: Asked[] = [];
    for (const one of asked.values()) {
      const known = this.#countersOf(one.pair[0]).counter(...one.pair);
      if (known === undefined) unknown.push(one);
      else limitRows.addKnownUsages(...one.pair, known);
      if (known === undefined || !known.every((usage) => isEnough(usage, frees ? one.uses + 1 : 1))) unread.push(one);
    }
    const [, rows] = await Promise.all([
      this.#fetchShares(tx, limitRows, unknown),
      this.#fetchHeads(tx, limitRows, unread, frees),
    ]);
    return rows;
  }

  async #fetchShares(tx: Tx, limitRows: FetchedRows, asked: readonly Asked[]): Promise<void> {
    if (asked.length === 0) return;
    const rows = await tx.rows<CounterRow>(this.#sql.usages, ...pairLists(asked));
    const usages = Map.groupBy(rows, ([rule, key]) => nameOf([rule, key]));
    for (const { pair } of asked) limitRows.addUsages(...pair, (usages.get(nameOf(pair)) ?? []).map(toStored));
  }

  async #fetchHeads(tx: Tx, limitRows: FetchedRows, asked: readonly Asked[], frees: boolean): Promise<ParkedRow[]> {
    const groups = Map.groupBy(asked, ({ uses }) => depthOf(frees, uses));
    const read = Array.from(groups, async ([depth, group]) => {
      const rows = await tx.rows<ParkedRow>(this.#heads[depth], ...pairLists(group));
      addHeads(limitRows, rows, DEPTHS[depth]);
      return rows;
    });
    return (await Promise.all(read)).flat();
  }

  async fetchMissing(tx: Tx, limitRows: FetchedRows, missing: MissingRow): Promise<void> {
    switch (missing.what) {
      case "usages":
        return this.fetch(tx, limitRows, [[missing.rule, missing.key]], true);
      case "parked": {
        const { usage, after } = missing;
        const others = after === null ? limitRows.usagesWithoutParked().filter((id) => id !== usage) : [];
        const [rows, heads] = await Promise.all([
          tx.rows<ParkedRow>(this.#sql.further, usage, after?.priority ?? null, after?.key ?? null),
          others.length === 0 ? [] : tx.rows<ParkedRow>(this.#sql.unread, listOf(others)),
        ]);
        limitRows.addParked(usage, rows.map(toParked), rows.length < DEPTHS.many);
        addHeads(limitRows, heads, DEPTHS.few);
        await this.#fetch(tx, limitRows, pairsOf([...rows, ...heads]), false);
        return;
      }
      case "isParked": {
        const { usage, job } = missing;
        const rows = await tx.rows(this.#sql.isParked, usage, job.priority, job.key);
        return limitRows.addIsParked(usage, job, rows.length > 0);
      }
      case "limitsOf": {
        const [row] = await tx.rows<[string]>(this.#sql.limitsOf, missing.job);
        limitRows.addLimits(missing.job, (row as [string])[0]);
      }
    }
  }

  /** Sends all statements at once. The caller writes the rows of `own` jobs. */
  write(tx: Tx, changes: LimitChanges, own: ReadonlySet<JobKey>): Promise<unknown>[] {
    const sql = this.#sql;
    const { unparked, removed, due, closed } = changes;
    const added = changes.saved.filter(({ id }) => id === null);
    const saved = [...new Set([...changes.saved, ...due])].filter(({ id }) => id !== null).sort(byId);
    const parkedAtNew = changes.parked.filter(({ usage }) => usage.id === null);
    const parked = changes.parked.filter(({ usage }) => usage.id !== null);
    const opened = changes.opened.filter(({ key }) => !own.has(key));
    const statements: Promise<unknown>[] = [];
    const send = (text: string, ...lists: string[]) => void statements.push(tx.rows(text, ...lists));
    if (unparked.length > 0) send(sql.unpark, ...lists(unparked.map(parkedRow), "counter", "priority", "job"));
    if (removed.length > 0) send(sql.remove, ...lists(removed, "id"));
    if (saved.length > 0) send(sql.save, ...lists(saved, "id", ...NUMBERS));
    if (added.length > 0) {
      const counters = lists(added.map(counterRow), "rule", "key", "lane", ...NUMBERS);
      send(sql.add, ...counters, ...lists(parkedAtNew.map(parkedRow), "rule", "key", "lane", "priority", "job", "more"));
    }
    if (parked.length > 0) send(sql.park, ...lists(parked.map(parkedRow), "counter", "priority", "job", "more"));
    if (closed.length > 0) send(sql.shut, listOf(closed));
    if (opened.length > 0) send(sql.open, ...lists(opened, "key"));
    return statements;
  }
}

export function pairsIn(texts: Iterable<string>): Pair[] {
  const parsed = new Map<string, Pair[]>();
  const pairs: Pair[] = [];
  for (const text of texts) {
    let own = parsed.get(text);
    if (own === undefined) parsed.set(text, (own = parseLimits(text)));
    pairs.push(...own);
  }
  return pairs;
}

const NUMBERS = ["running", "passed", "beyond", "parked", "lowest", "last", "bucket", "dueAt"] as const;

function counterRow(usage: LaneUsage) {
  return { ...usage, rule: usage.counter.rule, key: usage.counter.key };
}

function parkedRow({ usage, job }: { usage: LaneUsage; job: JobPosition & { more?: boolean } }) {
  const { id: counter, lane } = usage;
  const { rule, key } = usage.counter;
  return { counter, rule, key, lane, priority: job.priority, job: job.key, more: job.more ?? false };
}

function byId({ id }: LaneUsage, { id: other }: LaneUsage): number {
  return (id as number) - (other as number);
}

function nameOf([rule, key]: Pair): string {
  return `${rule}:${key}`;
}

function isEnough({ usage, firstParked }: KnownUsage, wanted: number): boolean {
  return usage.parked === 0 || (firstParked !== null && (firstParked.whole || firstParked.jobs.length >= wanted));
}

function depthOf(frees: boolean, uses: number): Depth {
  if (!frees) return "first";
  return uses < DEPTHS.few / 2 ? "few" : "many";
}

function pairLists(asked: readonly { pair: Pair }[]): [rules: string, keys: string] {
  return [listOf(asked.map(({ pair: [rule] }) => rule)), listOf(asked.map(({ pair: [, key] }) => key))];
}

function addHeads(limitRows: FetchedRows, rows: readonly ParkedRow[], depth: number): void {
  for (const [usage, jobs] of Map.groupBy(rows, ([counter]) => counter)) {
    limitRows.setParked(usage, { jobs: jobs.map(toParked), whole: jobs.length < depth });
  }
}

function pairsOf(rows: readonly ParkedRow[]): Pair[] {
  return pairsIn(rows.flatMap(([, , , , limits]) => limits ?? []));
}

function toParked([, key, priority, more, limits]: ParkedRow): ParkedJob {
  return limits === null ? { key, priority, more } : { key, priority, more, limits };
}

function toStored([, , id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt]: CounterRow): StoredLaneUsage {
  return { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt };
}
