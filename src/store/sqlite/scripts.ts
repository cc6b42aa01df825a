import type { Fence } from "../../core/text/ids.ts";
import type { JobState } from "../../core/jobs/job.ts";
import { ELSEWHERE, type JobRow, publicId } from "../job-row.ts";
import type { Operation } from "../points.ts";
import type { AuditGuards } from "../sql/audit.ts";
import { endedWithWork } from "../sql/builds/build-rows.ts";
import type { AskedJobs, QueryDialect } from "../sql/queries.ts";
import {
  type Access,
  type Dialect,
  type EachParams,
  pairOf,
  type Param,
  type Params,
  type Reads,
  runSync,
  type Script,
  type Tx as ScriptTx,
  wait,
} from "../sql/script.ts";
import { damagedError, jobChecksum, rowChecksum } from "./checksum.ts";
import type { Connection, Statement, Value } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import { GUARDS } from "./schema.ts";

export type Statements = Pick<
  ScriptTx,
  "all" | "get" | "findEach" | "run" | "returning" | "each" | "eachReturning" | "send" | "sendEach" | "lock" | "time" | "fence"
>;

interface Self {
  readonly now: number;
  readonly commit: Fence;
  wrote(): void;
}

export function statementsOn(db: Connection): Statements {
  const prepared = new Map<string, Prepared>();
  const prepare = (sql: string): Prepared => {
    let found = prepared.get(sql);
    // Binding by name takes three times as long.
    if (found === undefined)
      prepared.set(sql, (found = { statement: db.prepare(sql.replaceAll(NAMES, "?")), names: namesIn(sql) }));
    return found;
  };
  const read = <Row>(self: Self, sql: string, params: Params): Row[] => {
    const { statement, names } = prepare(sql);
    return statement.all<Row>(...valuesOf(names, params, self));
  };
  const runAll = (self: Self, sql: string, rows: readonly Params[]): number => {
    if (rows.length === 0) return 0;
    const { statement, names } = prepare(sql);
    let changed = 0;
    for (const row of rows) changed += statement.run(...valuesOf(names, row, self));
    if (changed > 0) self.wrote();
    return changed;
  };
  return {
    all<Row>(this: Self, sql: string, params: Params = {}): Script<Row[]> {
      return wait(read<Row>(this, sql, params));
    },
    get<Row>(this: Self, sql: string, params: Params = {}): Script<Row | undefined> {
      const { statement, names } = prepare(sql);
      return wait(statement.get<Row>(...valuesOf(names, params, this)));
    },
    findEach<Row>(this: Self, sql: string, rows: readonly EachParams[]): Script<Row[]> {
      const find = () => rows.flatMap((row) => read<Row>(this, sql, row));
      if (rows.length < 2 || db.inTransaction) return wait(find());
      // Read all rows in one snapshot, because beginning and ending one for each takes longer than finding the row.
      db.exec("begin");
      try {
        return wait(find());
      } finally {
        db.exec("commit");
      }
    },
    run(this: Self, sql: string, params: Params = {}): Script<boolean> {
      return wait(runAll(this, sql, [params]) > 0);
    },
    returning<Row>(this: Self, sql: string, params: Params = {}): Script<Row[]> {
      const rows = read<Row>(this, sql, params);
      if (rows.length > 0) this.wrote();
      return wait(rows);
    },
    *each(this: Self, sql: string, rows: readonly EachParams[]): Script<number> {
      return yield* wait(runAll(this, sql, rows));
    },
    *eachReturning<Row>(this: Self, sql: string, rows: readonly EachParams[]): Script<Row[]> {
      const returned = rows.flatMap((row) => read<Row>(this, sql, row));
      if (returned.length > 0) this.wrote();
      return yield* wait(returned);
    },
    send(this: Self, sql: string, params: Params) {
      runAll(this, sql, [params]);
    },
    sendEach(this: Self, sql: string, rows: readonly EachParams[]) {
      runAll(this, sql, rows);
    },
    lock: () => wait(undefined),
    time(this: Self): Script<number> {
      return wait(this.now);
    },
    fence(this: Self): Script<Fence> {
      return wait(this.commit);
    },
  };
}

export function scriptAccess(statements: Statements, access: StoreAccess): Access {
  return {
    read: (script) => access.read(() => runSync(script(readsAt(statements, access.now())))),
    write: (operation, script) => access.write(operation, (tx) => runSync(script(tx))),
  };
}

export function readsAt({ all, get, findEach, time }: Statements, now: number): Reads {
  return { now, all, get, findEach, time } as Reads;
}

export function txOn(db: Connection, now: number, commit = 0 as Fence): Tx {
  return { ...statementsOn(db), now, commit, wrote: () => {} } as unknown as Tx;
}

interface Prepared {
  statement: Statement;
  names: readonly string[];
}

const NAMES = /:([a-z]\w*)/gi;

function namesIn(sql: string): string[] {
  return Array.from(sql.matchAll(NAMES), ([, name]) => name as string);
}

function valuesOf(names: readonly string[], params: Params, { now, commit }: Self): Value[] {
  const values: Value[] = [];
  for (const name of names)
    values.push(name === "now" || name === "clock" ? now : name === "commit" ? commit : toValue(params[name]));
  return values;
}

function toValue(param: Param | undefined): Value {
  if (param === undefined) throw new Error("A parameter of a statement is missing.");
  if (typeof param === "boolean") return param ? 1 : 0;
  return typeof param === "object" && param !== null ? JSON.stringify(param) : param;
}

/** Reads and writes of a store. Each write is one atomic unit, which may share its commit with others. */
export interface StoreAccess {
  now(): number;
  read<T>(run: () => T): Promise<T>;
  write<T>(operation: Operation, run: (tx: Tx) => T): Promise<T>;
}

export const DIALECT: Dialect = {
  table: (name) => `holdfast_${name}`,
  in: (value, _, list) => `${value} in (select value from json_each(${list}))`,
  items: (_, list) => `(select key as place, value from json_each(${list}))`,
  rows: (json, columns) =>
    `(select ${Object.keys(columns).map((name) => `value ->> '${name}' as "${name}"`)} from json_each(${json}))`,
  // Without the index, SQLite reads a whole segment by its primary key.
  indexed: (index) => ` indexed by holdfast_${index}`,
  firstRow: (table, as, which) =>
    `cross join ${table} as ${as} on ${as}.key = (select one.key from ${table} as one ${which} limit 1)`,
  inOrder: (...statements) => ({ before: statements.slice(0, -1), last: statements.at(-1) as string }),
  each: (columns, write) => {
    const names = Object.keys(columns);
    return write({
      value: (name) => `:${name}`,
      // `values` is half again as fast as `select`.
      inserted: `values (${names.map((name) => `:${name}`).join(", ")})`,
      from: (tables) => (tables === undefined ? "" : `from ${tables}`),
      using: "",
      is: (table, ...same) =>
        same
          .map(pairOf)
          .map(([column, name]) => `${table}.${column} = :${name}`)
          .join(" and "),
      locked: (_, ...key) => `where ${key.map((name) => `target.${name} = :${name}`).join(" and ")}`,
    });
  },
  deleteEach: (table, columns) =>
    `delete from ${table} where ${Object.keys(columns)
      .map((name) => `${name} = :${name}`)
      .join(" and ")}`,
  updateEach: (table, set) => `update ${table} set ${Object.keys(set).map((name) => `${name} = :${name}`)} where id = :id`,
  fence: ":commit",
  locking: "",
  lockingOf: () => "",
  // SQLite's own `max` is null if one of its values is.
  greatest: (a, b) => `max(${a}, coalesce(${b}, ${a}))`,
  least: (a, b) => `min(${a}, ${b})`,
  isFalse: (column) => `${column} = 0`,
  byBytes: (text) => text,
  jsonRows: (columns, from, order) =>
    `(select json_group_array(json_array(${columns.join(", ")}) order by ${order}) from ${from})`,
  overriding: "",
  // The sequence never gives out the key of a deleted row again.
  nextKey: (table) => `select coalesce((select seq from sqlite_sequence where name = 'holdfast_${table}'), 0) + 1 as next`,
  running: "(select key, fence, holder, lease, expires_at, expires_at as bound from holdfast_jobs where state = 'running')",
  heldBy: (processes) => `(select count(*) from holdfast_jobs
    where state = 'running' and holder in (select value from json_each(${processes})))`,
  checksum: rowChecksum,
};

export const AUDIT_GUARDS: AuditGuards = {
  sql: `
    select guard.value ->> 'name' as name from json_each(:guards) as guard
    where not exists (
      select 1 from sqlite_master
      where type = 'trigger' and name = guard.value ->> 'name' and sql = guard.value ->> 'sql')
    order by guard.key`,
  params: { guards: JSON.stringify(GUARDS) },
};

type CheckedRow = JobRow & {
  policy: number;
  scheduled_for: number | null;
  limits: string | null;
  checksum: number | null;
};

const READY = "state = 'pending' and gate is null and crashes = 0";
const SUSPECT = "state = 'pending' and gate is null and crashes > 0";

/** Priorities of ready jobs in the asked lanes. Each lane's last row is null. One index probe finds each. */
const LEVELS = `level (lane, priority) as (
  select value, (select priority ${ready("value")} order by priority desc limit 1) from json_each(:lanes)
  union all
  select level.lane, (select priority ${ready("level.lane")} and priority < level.priority order by priority desc limit 1)
  from level where level.priority is not null)`;

export const QUERY_DIALECT: QueryDialect = {
  ready: READY,
  suspect: SUSPECT,
  waiting: "state = 'waiting'",
  running: "(select lane, holder from holdfast_jobs where state = 'running')",
  unwanted: `
    select job.lane, job.state, -count(*) from (${endedWithWork(DIALECT)}) as ended
    cross join holdfast_work as work on work.build = ended.key cross join holdfast_jobs as job on job.key = work.job
    where job.state in ('pending', 'waiting') group by job.lane, job.state`,
  // Include due jobs that are still marked as delayed: no worker may have claimed in their lanes yet.
  oldest: `
    with recursive ${LEVELS}
    select lane.value as lane, (
      select created_at from holdfast_jobs where key = (select min(key) from (
        select (select min(key) ${ready("level.lane")} and priority = level.priority) as key from level where level.lane = lane.value
        union all
        select min(key) from holdfast_jobs where lane = lane.value and ${SUSPECT}
        union all
        select min(key) from holdfast_jobs where lane = lane.value and gate = 'time' and run_at <= :now))) as "createdAt"
    from json_each(:lanes) as lane`,
  keys,
  page(sizes, { where, ...asked }) {
    const order = `order by job.key ${asked.newest ? "desc" : ""} limit :limit`;
    if (isByIndex(asked)) {
      const some = `select key from (${keys({ ...asked, where })}) order by key ${asked.newest ? "desc" : ""} limit :slice`;
      return `${sizes} where job.key in (${some}) ${where} ${order}`;
    }
    const states = asked.states === null ? "" : `and (${asked.states.map((state) => `job.state = '${state}'`).join(" or ")})`;
    return `${sizes} where job.key > :from and job.key < :to ${states} ${where} ${order}`;
  },
  walksAll: (states) => !isByIndex({ states, bySlot: false }),
  needsLanes: (states) => states?.includes("pending") ?? false,
  contains: (text, part) => `instr(${text}, ${part}) > 0`,
  lower: (text) => `lower(${text})`,
  guard: {
    columns: ", body.body, job.policy, job.scheduled_for, job.limits, job.checksum",
    joins: `left join holdfast_inputs as body on body.job = job.key and job.input = '${ELSEWHERE}'`,
    input: "coalesce(body.body, job.input)",
    inputBytes: "coalesce(octet_length(body.body), octet_length(job.input))",
    isDamaged: (row) => (row as CheckedRow).checksum !== jobChecksum({ ...(row as CheckedRow), input: row.body ?? row.input }),
    withhold(row) {
      const error = JSON.stringify(damagedError(publicId(row.id, row.created_at, row.key)));
      return { ...row, input: null, body: null, output: null, meta: null, error };
    },
  },
};

/** Whether an index has the jobs: one has those of each state except "succeeded", which most jobs have. */
function isByIndex({ states, bySlot }: Pick<AskedJobs, "states" | "bySlot">): boolean {
  return bySlot || (states !== null && !states.includes("succeeded"));
}

/** Returns SQL for the keys of jobs. It contains the state as a literal, so that SQLite sees which partial index has it. */
function keys(asked: AskedJobs): string {
  const { states, bySlot, newest } = asked;
  if (bySlot) {
    return `
      select key from holdfast_jobs
      where ${DIALECT.in("slot", "text", ":slots")} and slot is not null
        and (state = 'pending' or state = 'running' or state = 'waiting') and +key > :from and +key < :to
        and (${(states ?? []).map((state) => `state = '${state}'`).join(" or ")})`;
  }
  if (states === null || !isByIndex(asked)) return "select key from holdfast_jobs where key > :from and key < :to";
  const of = (state: JobState): string => {
    if (state === "pending") return `select key from (${pendingKeys(newest)})`;
    // The plus makes SQLite find the few running jobs by their own index, instead of walking all jobs by the key.
    const key = state === "running" ? "+key" : "key";
    return `
      select key from (
        select key from holdfast_jobs where state = '${state}' and ${key} > :from and ${key} < :to
        order by ${key} ${newest ? "desc" : ""} limit :slice)`;
  };
  return states.map(of).join(" union all ");
}

/** Merges the first pending jobs of each priority with delayed, parked and reclaimed ones: no index has them in key order. */
function pendingKeys(newest: boolean): string {
  const ofLanes = `+key > :from and +key < :to and ${DIALECT.in("lane", "bigint", ":lanes")}`;
  return `
    with recursive ${LEVELS}
    select head.key as key from level cross join holdfast_jobs as head on head.key in (
      select key ${ready("level.lane")} and priority = level.priority and key > :from and key < :to
      order by key ${newest ? "desc" : ""} limit :slice)
    union all
    select key from holdfast_jobs where ${SUSPECT} and ${ofLanes}
    union all
    select key from holdfast_jobs where gate = 'time' and ${ofLanes}
    union all
    select parked.job from holdfast_parked as parked join holdfast_counters as counter on counter.id = parked.counter
    where parked.job > :from and parked.job < :to and ${DIALECT.in("counter.lane", "bigint", ":lanes")}`;
}

function ready(lane: string): string {
  return `from holdfast_jobs where lane = ${lane} and ${READY}`;
}
