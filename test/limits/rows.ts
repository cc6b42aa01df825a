import assert from "node:assert/strict";
import { DatabaseSync, type StatementSync } from "node:sqlite";
import postgres from "postgres";
import { type LimitRule, opensAt, countFree, type Usage, MAX_READY_JOBS, readyWindow } from "../../src/core/limits/limit.ts";

/** What the rows of a database say about limits, past the engine. */
export interface Look {
  jobs: JobRow[];
  counters: CounterRow[];
  rules: Map<number, LimitRule>;
  paused: Set<string>;
  /** By limit and key, over all lanes. */
  usages: Map<string, Usage>;
}

export interface JobRow {
  key: number;
  lane: number;
  queue: string;
  name: string;
  version: number;
  state: string;
  gate: string | null;
  priority: number;
  runAt: number;
  crashes: number;
  limits: [rule: number, key: string][];
}

interface CounterRow {
  id: number;
  rule: number;
  key: string;
  lane: number;
  running: number;
  passed: number;
  beyond: number;
  parked: number;
  bucket: number;
  dueAt: number | null;
}

type Sum = Pick<CounterRow, "running" | "passed" | "beyond" | "parked">;

interface Parked {
  counter: number;
  priority: number;
  job: number;
  limits: string | null;
}

/** Where rows are read, past the engine. */
export interface RowSource {
  table(name: string): string;
  all(sql: string): unknown[] | Promise<unknown[]>;
  close(): void | Promise<void>;
}

export function rowsOfFile(path: string): RowSource {
  const db = new DatabaseSync(path, { readOnly: true, timeout: 5_000 });
  const statements = new Map<string, StatementSync>();
  return {
    table: (name) => `holdfast_${name}`,
    all(sql) {
      let statement = statements.get(sql);
      if (statement === undefined) statements.set(sql, (statement = db.prepare(sql)));
      return statement.all();
    },
    close: () => db.close(),
  };
}

export function rowsOfSchema(url: string, schema = "holdfast"): RowSource {
  const bigint = { to: 20, from: [20], parse: Number, serialize: String };
  const sql = postgres(url, { max: 1, onnotice: () => {}, types: { bigint } });
  return {
    table: (name) => `${schema}.${name}`,
    all: async (text) => [...(await sql.unsafe(text))],
    close: () => sql.end({ timeout: 5 }),
  };
}

/** Reads the rows of one database, again and again. */
export class LimitRows {
  readonly #source: RowSource;
  readonly #parsed = new Map<string, JobRow["limits"]>();

  constructor(source: RowSource) {
    this.#source = source;
  }

  async close(): Promise<void> {
    await this.#source.close();
  }

  async look(): Promise<Look> {
    const { jobs, lanes, counters, limits, queues } = this.#tables;
    const look: Look = {
      jobs: (
        await this.#all<Omit<JobRow, "limits"> & { limits: string | null }>(
          `select job.key, job.lane, lane.queue, lane.name, lane.version, state, gate, priority, run_at as "runAt", crashes, limits
           from ${jobs} as job join ${lanes} as lane on lane.id = job.lane order by job.key`,
        )
      ).map((row) => Object.assign(row, { limits: this.#limitsOf(row.limits ?? "[]") })),
      counters: await this.#all<CounterRow>(
        `select id, rule, key, lane, running, passed, beyond, parked, bucket, due_at as "dueAt" from ${counters}`,
      ),
      rules: new Map(
        (await this.#all<RuleRow>(`select id, concurrency, starts, per from ${limits}`)).map((row) => [row.id, toRule(row)]),
      ),
      paused: new Set(
        (await this.#all<{ name: string; paused: unknown }>(`select name, paused from ${queues}`))
          .filter(({ paused }) => Boolean(paused))
          .map(({ name }) => name),
      ),
      usages: new Map(),
    };
    for (const { rule, key, running, bucket } of look.counters) {
      const sum = usageOf(look, rule, key);
      look.usages.set(`${rule}:${key}`, { running: sum.running + running, bucket: Math.max(sum.bucket, bucket) });
    }
    return look;
  }

  /**
   * Whatever was done: the counters are what the jobs add up to, a job is parked exactly where its row says so, and
   * nothing is stuck: a job that could pass has passed, or the instant at which it can is recorded. Where the clock
   * was set back, that instant may be too late, for as long as the rate lasts.
   */
  async check(now: number, setBack: boolean): Promise<void> {
    const look = await this.look();
    const parked = await this.#all<Parked>(`select counter, priority, job, limits from ${this.#tables.parked}`);
    const parkedOf = new Map(parked.map((row) => [row.job, row]));
    assert.equal(parkedOf.size, parked.length, "a job is parked once");
    const counterOf = new Map(look.counters.map((row) => [`${row.rule}:${row.lane}:${row.key}`, row]));
    const counted = new Map<CounterRow, Sum>();
    for (const row of look.counters) counted.set(row, { running: 0, passed: 0, beyond: 0, parked: 0 });
    for (const job of look.jobs) {
      const at = parkedOf.get(job.key);
      assert.equal(
        at !== undefined,
        job.gate === "limit",
        `job ${job.key} is ${job.state}, gate ${job.gate}: it is parked, or not`,
      );
      parkedOf.delete(job.key);
      if (job.gate === "time" || !["pending", "running"].includes(job.state)) continue;
      let stopped = false;
      for (const [rule, key] of job.limits) {
        const counter = counterOf.get(`${rule}:${job.lane}:${key}`);
        assert.ok(counter, `job ${job.key} (${job.state}) is counted by limit ${rule} under "${key}"`);
        const sum = counted.get(counter) as Sum;
        if (job.state === "running") sum.running++;
        else if (at?.counter === counter.id) {
          sum.parked++;
          assert.deepEqual([at.priority, at.limits !== null], [job.priority, job.limits.length > 1], `job ${job.key} as parked`);
          stopped = true;
          break;
        } else {
          sum.passed++;
          if (job.gate === "limit") sum.beyond++;
        }
      }
      assert.equal(stopped, job.gate === "limit", `job ${job.key} is parked before one of its own limits`);
    }
    assert.deepEqual([...parkedOf.keys()], [], "only jobs that are there are parked");
    for (const [{ id, rule, key, lane, running, passed, beyond, parked }, sum] of counted) {
      assert.deepEqual(
        { running, passed, beyond, parked },
        sum,
        `counter ${id} (limit ${rule}, "${key}", lane ${lane}) is what its jobs are`,
      );
    }
    for (const row of look.counters) this.#checkCounter(look, row, now, setBack);
  }

  #checkCounter(look: Look, row: CounterRow, now: number, setBack: boolean): void {
    const usage = usageOf(look, row.rule, row.key);
    const rule = look.rules.get(row.rule) as LimitRule;
    const what = `${JSON.stringify({ ...row, usage, now })} under ${JSON.stringify(rule)}`;
    if (row.running + row.passed + row.parked === 0) {
      assert.ok(row.dueAt !== null && row.dueAt <= Math.ceil(row.bucket), `an idle counter is removed, or will be: ${what}`);
      return;
    }
    if (row.parked === 0 || (row.dueAt !== null && row.dueAt <= now)) return;
    const most = countFree(rule, usage, now);
    // An instant from before the clock was set back may hide that time alone has made more room.
    const ready = row.passed - row.beyond;
    if (row.beyond >= MAX_READY_JOBS) return;
    assert.ok(ready >= Math.min(1, readyWindow(most)), `who could pass has passed: ${what}`);
    if (rule.rate === null || !setBack) assert.ok(ready >= readyWindow(most), `as many as could pass have passed: ${what}`);
    if (most > 0 || ready > 0) return;
    if (rule.concurrency !== null && usage.running >= rule.concurrency) return;
    const opens = opensAt(rule, usage, now, 0);
    assert.ok(opens !== null, `something holds it: ${what}`);
    assert.ok(row.dueAt !== null && (setBack || row.dueAt <= opens), `it is known when the rate opens: ${what}`);
  }

  #limitsOf(text: string): JobRow["limits"] {
    let limits = this.#parsed.get(text);
    if (limits === undefined) this.#parsed.set(text, (limits = JSON.parse(text) as JobRow["limits"]));
    return limits;
  }

  get #tables(): Record<"jobs" | "lanes" | "counters" | "parked" | "limits" | "queues", string> {
    const { table } = this.#source;
    return {
      jobs: table("jobs"),
      lanes: table("lanes"),
      counters: table("counters"),
      parked: table("parked"),
      limits: table("limits"),
      queues: table("queues"),
    };
  }

  async #all<T>(sql: string): Promise<T[]> {
    return (await this.#source.all(sql)) as T[];
  }
}

interface RuleRow {
  id: number;
  concurrency: number | null;
  starts: number | null;
  per: number | null;
}

function toRule({ concurrency, starts, per }: RuleRow): LimitRule {
  const rate = starts === null || per === null ? null : { starts, per };
  return { of: "job", position: 0, keyed: false, concurrency, rate };
}

/** The use of a limit under a key, over all lanes. */
export function usageOf(look: Look, rule: number, key: string): Usage {
  return look.usages.get(`${rule}:${key}`) ?? { running: 0, bucket: 0 };
}
