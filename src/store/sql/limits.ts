import {
  type LimitChanges,
  type LimitedJob,
  LimitGate,
  type LimitMoves,
  type LimitPair,
  parseLimits,
} from "../../core/limits/limit-gate.ts";
import type { LaneUsage, ParkedRow, UsageRow } from "../../core/limits/lane-usage.ts";
import { MAX_READY_JOBS, type LimitRule } from "../../core/limits/limit.ts";
import type { JobKey } from "../../core/text/ids.ts";
import type { Dialect, Script, Tx } from "./script.ts";

/** How many counters whose rate allows starts again are handled by one transaction. The next claim handles others. */
export const MAX_DUE_COUNTERS = 200;

/** How many parked jobs of a usage are read at once if fewer than half of them can pass. */
const FEW_PARKED = 8;

const POSITION = { counter: "bigint", priority: "bigint", job: "bigint" } as const;
const FIXED = { id: "bigint", rule: "bigint", key: "text", lane: "bigint" } as const;
const COUNTS = {
  running: "bigint",
  passed: "bigint",
  beyond: "bigint",
  parked: "bigint",
  lowest: "bigint",
  last: "bigint",
  bucket: "double precision",
  due_at: "bigint",
} as const;

export const USAGE = Object.keys({ ...FIXED, ...COUNTS }).join(", ");

export interface LimitReads {
  counters(tx: Tx, pairs: readonly LimitPair[]): Script<UsageRow[]>;
  parked(tx: Tx, usages: readonly UsageRow[], most: number): Script<ParkedRow[]>;
  name(tx: Tx, usages: readonly UsageRow[]): Script<void>;
}

export class LimitRows {
  readonly gate: LimitGate;
  readonly #reads: LimitReads;
  readonly #sql: ReturnType<typeof limitsSql>;

  constructor(dialect: Dialect, reads: LimitReads, ruleOf: (id: number) => LimitRule) {
    this.gate = new LimitGate(ruleOf);
    this.#reads = reads;
    this.#sql = limitsSql(dialect);
  }

  *load(tx: Tx, limits: Iterable<string>): Script<void> {
    const unknown = [...new Set(limits)].filter((text) => !this.gate.isLoaded(text));
    if (unknown.length > 0) yield* this.loadPairs(tx, unknown.flatMap(parseLimits));
  }

  *loadPairs(tx: Tx, pairs: Iterable<LimitPair>): Script<void> {
    const missing = this.gate.unloaded(pairs);
    if (missing.length > 0) this.gate.load(missing, yield* this.#reads.counters(tx, missing));
  }

  *recheck(tx: Tx, pairs: readonly LimitPair[]): Script<void> {
    yield* this.loadPairs(tx, pairs);
    for (const [rule, key] of pairs) this.gate.recheck(rule, key);
  }

  *withdraw(tx: Tx, jobs: readonly (LimitedJob & { gate: string | null })[]): Script<void> {
    yield* this.load(tx, limitsOf(jobs));
    const places = new Map(jobs.map((job) => [job.key, job.gate === "limit" ? this.gate.placesOf(job) : []]));
    const asked = jobs.flatMap(({ key: job, priority }) =>
      places.get(job)?.map(({ id: counter }) => ({ counter, priority, job })),
    );
    const found = asked.length === 0 ? [] : yield* tx.all<Found>(this.#sql.find, { asked: JSON.stringify(asked) });
    const counters = new Map(found.map(({ job, counter }) => [job, counter]));
    for (const job of jobs) {
      const place = places.get(job.key)?.find(({ id }) => id === counters.get(job.key));
      this.gate.withdraw(job, job.gate, place);
    }
  }

  /** Ends each operation: lets parked jobs pass, and writes the changes. The caller writes the rows of `own` jobs. */
  *write(tx: Tx, own?: ReadonlySet<JobKey>): Script<LimitChanges | null> {
    for (;;) {
      const wanted = this.gate.refill();
      const unnamed = this.gate.takeUnnamed();
      if (unnamed.length > 0) yield* this.#reads.name(tx, unnamed);
      if (wanted.size === 0) break;
      this.#sendMoves(this.gate.takeMoves(), tx);
      yield* this.#loadParked(tx, wanted);
    }
    const changes = this.gate.takeChanges();
    if (changes === null || !isChanged(changes)) return null;
    const { added, saved, removed, closed } = changes;
    this.#sendMoves(changes, tx);
    saved.sort((a, b) => a.id - b.id);
    tx.sendEach<UsageRow>(this.#sql.add, added);
    tx.sendEach<UsageRow>(this.#sql.save, saved);
    if (removed.length > 0) tx.send(this.#sql.remove, { ids: removed.map(({ id }) => id) });
    const opened = own === undefined ? changes.opened : changes.opened.filter((job) => !own.has(job));
    if (closed.length > 0) tx.send(this.#sql.close, { jobs: closed });
    if (opened.length > 0) tx.send(this.#sql.open, { jobs: opened });
    return changes;
  }

  #sendMoves({ unparked, parked }: LimitMoves, tx: Tx): void {
    tx.sendEach<ParkedRow>(this.#sql.unpark, unparked);
    tx.sendEach<ParkedRow>(this.#sql.park, parked);
  }

  *#loadParked(tx: Tx, wanted: ReadonlyMap<LaneUsage, number>): Script<void> {
    const depths = Map.groupBy(wanted.keys(), (usage) =>
      (wanted.get(usage) as number) < FEW_PARKED / 2 ? FEW_PARKED : MAX_READY_JOBS,
    );
    const further: string[] = [];
    for (const [depth, usages] of depths) {
      const rows = Map.groupBy(yield* this.#reads.parked(tx, usages, depth), ({ counter }) => counter);
      for (const usage of usages) {
        const parked = rows.get(usage.id) ?? [];
        this.gate.loadParked(usage, parked);
        for (const { limits } of parked) if (limits !== null) further.push(limits);
      }
    }
    yield* this.load(tx, further);
  }
}

export function limitsOf(jobs: Iterable<{ limits: string }>): string[] {
  return Array.from(jobs, ({ limits }) => limits);
}

function isChanged({ added, saved, removed }: LimitChanges): boolean {
  return added.length + saved.length + removed.length > 0;
}

interface Found {
  job: JobKey;
  counter: number;
}

function limitsSql({ table, each, deleteEach, updateEach, rows, in: isIn }: Dialect) {
  const [counters, parked, jobs] = [table("counters"), table("parked"), table("jobs")];
  const at = Object.keys(POSITION).map((column) => `parked.${column} = asked.${column}`);
  const gate = (to: string) => `
    update ${jobs} set gate = ${to}
    where ${isIn("key", "bigint", ":jobs")} and coalesce(state, '') = 'pending' and coalesce(gate, 'limit') = 'limit'`;
  return {
    add: each({ ...FIXED, ...COUNTS }, ({ inserted }) => `insert into ${counters} (${USAGE}) ${inserted}`),
    save: updateEach(counters, COUNTS),
    remove: `delete from ${counters} where ${isIn("id", "bigint", ":ids")}`,
    park: each(
      { ...POSITION, limits: "text" },
      ({ inserted }) => `insert into ${parked} (counter, priority, job, limits) ${inserted}`,
    ),
    unpark: deleteEach(parked, POSITION),
    find: `
      select asked.job, asked.counter from ${rows(":asked", POSITION)} as asked
      where (select 1 from ${parked} as parked where ${at.join(" and ")}) is not null`,
    close: gate("'limit'"),
    open: gate("null"),
  };
}
