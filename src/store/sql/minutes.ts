import { BUCKET_BOUNDS_MS, type QueueMinute } from "../../core/jobs/minutes.ts";
import type { MinutesQuery, MinuteStore } from "../minutes.ts";
import type { Access, Dialect, Script, Tx } from "./script.ts";

const COUNTS = ["succeeded", "failed", "retried", "wait_ms", "run_ms"] as const;
const WAITS = bucketColumns("wait");
const RUNS = bucketColumns("run");
const ADDED = [...COUNTS, ...WAITS, ...RUNS];
/** Of both databases' schemas. */
export const MINUTE_COLUMNS = ADDED;

type Row = Record<string, number> & { queue: never };

export class Minutes implements MinuteStore {
  readonly #access: Access;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, access: Access) {
    this.#access = access;
    this.#sql = statements(dialect);
  }

  add(minutes: readonly QueueMinute[], keepFrom: number): Promise<void> {
    return this.#access.write("minutes", (tx) => this.#add(tx, minutes, keepFrom));
  }

  *#add(tx: Tx, minutes: readonly QueueMinute[], keepFrom: number): Script<void> {
    // Always in the same order, so that two workers never wait for each other's rows.
    const rows = minutes.toSorted((a, b) => (a.queue < b.queue ? -1 : a.queue > b.queue ? 1 : a.minute - b.minute));
    for (const minute of rows) {
      for (const at of [0, minute.minute]) yield* tx.run(this.#sql.add, { ...toColumns(minute), minute: at });
    }
    yield* tx.run(this.#sql.prune, { keepFrom });
  }

  async read(query: MinutesQuery | "totals"): Promise<QueueMinute[]> {
    const rows = await this.#access.read((db) => {
      if (query === "totals") return db.all<Row>(this.#sql.totals);
      const { from, queue = null, step = 1 } = query;
      return db.all<Row>(this.#sql.since, { from, queue, step });
    });
    return rows.map(toMinute);
  }
}

function bucketColumns(of: string): string[] {
  return Array.from({ length: BUCKET_BOUNDS_MS.length + 1 }, (_, i) => `${of}_${i}`);
}

function statements({ table }: Dialect) {
  const minutes = table("minutes");
  const columns = ["queue", "minute", ...ADDED];
  return {
    add: `
      insert into ${minutes} as total (${columns.join(", ")}) values (${columns.map((name) => `:${name}`).join(", ")})
      on conflict (queue, minute) do update set ${ADDED.map((name) => `${name} = total.${name} + excluded.${name}`).join(", ")}`,
    prune: `delete from ${minutes} where minute > 0 and minute < :keepFrom`,
    since: `
      select queue, minute - minute % cast(:step as bigint) as minute, ${ADDED.map((name) => `cast(sum(${name}) as bigint) as ${name}`).join(", ")}
      from ${minutes}
      where minute >= :from and minute > 0 and (cast(:queue as text) is null or queue = :queue) group by 1, 2 order by 2, 1`,
    totals: `select ${columns.join(", ")} from ${minutes} where minute = 0 order by queue`,
  };
}

function toColumns({
  queue,
  succeeded,
  failed,
  retried,
  waitMs,
  runMs,
  waits,
  runs,
}: QueueMinute): Record<string, string | number> {
  const buckets = [...WAITS.map((name, i) => [name, waits[i] ?? 0]), ...RUNS.map((name, i) => [name, runs[i] ?? 0])];
  return {
    queue,
    succeeded,
    failed,
    retried,
    wait_ms: Math.round(waitMs),
    run_ms: Math.round(runMs),
    ...Object.fromEntries(buckets),
  };
}

function toMinute(row: Row): QueueMinute {
  const number = (name: string) => row[name] as number;
  return {
    queue: row.queue,
    minute: number("minute"),
    succeeded: number("succeeded"),
    failed: number("failed"),
    retried: number("retried"),
    waitMs: number("wait_ms"),
    runMs: number("run_ms"),
    waits: WAITS.map(number),
    runs: RUNS.map(number),
  };
}
