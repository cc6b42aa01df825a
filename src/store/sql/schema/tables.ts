import { NO_ENTRY } from "../../../core/recovery/audit.ts";
import { MINUTE_COLUMNS } from "../queues.ts";

/** The words in which the databases' schemas differ. PostgreSQL's `integer` has 32 bits; SQLite has one type of integers. */
export interface SchemaDialect {
  table(name: string): string;
  index(name: string): string;
  readonly long: "integer" | "bigint";
  readonly flag: "integer" | "boolean";
  readonly no: "0" | "false";
  readonly real: "real" | "double precision";
  /** A text that is ordered by its bytes, whatever the locale of the database is. */
  readonly bytes: "text" | 'text collate "C"';
  /** A primary key that the database gives out. With `serial`, it never gives a key out again. */
  id(type: "integer" | "bigint"): string;
  readonly serial: string;
  sequence(name: string): string;
  /** The last column of a table whose rows have a checksum; empty where the database checks its pages itself. */
  readonly checksum: string;
  /** Ends a table that is stored in the order of its primary key, or of its rows. `options`: of PostgreSQL. */
  byKey(options?: string): string;
  byRow(options?: string): string;
  isFalse(column: string): string;
}

export function jobTables({ table, index, long, flag, real, id, checksum, byKey }: SchemaDialect): string {
  return `
-- A lane is what a worker can claim or not claim as a whole. Claims walk lanes, so jobs that no worker here can run
-- are never stepped over.
create table ${table("lanes")} (
  id       ${id("integer")},
  queue    text not null,
  name     text not null,
  version  integer not null,
  unique (name, version, queue)
);

create table ${table("policies")} (
  id    ${id("integer")},
  body  text not null unique
);

-- Ids that callers chose outlive their jobs; ids of follow-ups go with theirs.
-- ended: how a pruned job ended, for jobs that come after it.
create table ${table("ids")} (
  id      text primary key,
  job     ${long} not null,
  name    text not null,
  chosen  ${flag} not null,
  ended   text${checksum}
)${byKey()};

-- Checkpoints and progress; only jobs that use them have a row.
create table ${table("notes")} (
  job         ${long} primary key,
  checkpoint  text,
  fraction    ${real},
  message     text${checksum}
);

-- Attempts that did not succeed, each written with its end; the last ones of each job are kept. n counts them.
create table ${table("attempts")} (
  job         ${long} not null,
  n           integer not null,
  fence       ${long} not null,
  attempt     integer not null,
  outcome     text not null,
  started_at  ${long} not null,
  ended_at    ${long} not null,
  worker      text,
  host        text,
  pid         integer,
  error       text${checksum},
  primary key (job, n)
)${byKey()};

-- What handlers have logged, where their queue keeps it. n counts the lines of an attempt. data: JSON.
create table ${table("logs")} (
  job      ${long} not null,
  fence    ${long} not null,
  n        integer not null,
  at       ${long} not null,
  level    text not null,
  message  text not null,
  data     text,
  primary key (job, fence, n)
)${byKey()};

-- job and fence: the lock of an exclusive claim, which ends with that attempt and has no expiry of its own.
create table ${table("locks")} (
  name         text primary key,
  holder       text not null,
  token        text not null,
  acquired_at  ${long} not null,
  ttl          ${long},
  expires_at   ${long},
  job          ${long},
  fence        ${long},
  -- The process that took or extended it: if it is proven dead, the lock is free. Null: only the expiry counts.
  process      ${long}
)${byKey()};

-- Jobs that wait for others.
create table ${table("waits")} (
  job       ${long} not null,
  upstream  ${long} not null,
  primary key (job, upstream)
)${byKey()};
create index ${index("waits_upstream")} on ${table("waits")} (upstream, job);
`;
}

export function queueTables({ table, index, long, flag, no, real, id, checksum, byKey, byRow, isFalse }: SchemaDialect): string {
  return `
-- Queues, limits, schedules, and events with their sinks. A queue without any of them has no row here.
create table ${table("queues")} (
  name      text primary key,
  paused    ${flag} not null default ${no},
  events    ${flag} not null default ${no},
  -- How long and how many finished jobs are kept, by state, as JSON; null: all, for ever.
  keep      text,
  -- Jobs that ended before \`keep\` was declared are listed once, from this key on; null when that is done. PostgreSQL, below 0:
  -- begins when every transaction before this xid, without its sign, has ended.
  backfill  ${long},
  -- How many attempts that did not succeed are kept of each job; null: the default.
  attempts  ${long}
)${byKey()};

-- What ended in each queue and minute, and how long jobs waited and ran: counted by workers, for the dashboard.
-- wait_0, run_0 and so on count the jobs of each bucket of BUCKET_BOUNDS_MS.
create table ${table("minutes")} (
  queue   text not null,
  minute  ${long} not null,
  ${MINUTE_COLUMNS.map((name) => `${name} ${long} not null`).join(",\n  ")},
  primary key (queue, minute)
)${byKey()};
create index ${index("minutes_by_minute")} on ${table("minutes")} (minute);

-- A declared limit of a queue, or of a job's name in a queue. The last process to declare it wins.
create table ${table("limits")} (
  id           ${id("integer")},
  queue        text not null,
  job          text not null,
  position     integer not null,
  keyed        ${flag} not null,
  concurrency  integer,
  starts       ${long},
  per          ${long},
  unique (queue, job, position)
);

-- One row for each limit, key and lane in use. running: the limit counts the sum of all lanes. passed: pending jobs that
-- passed this limit; beyond: those of them parked at a later limit; lowest and last: the lowest priority and highest key
-- among them. bucket: until when the rate is used up. due_at: when to recheck.
create table ${table("counters")} (
  id       ${long} primary key,
  rule     integer not null,
  key      text not null,
  lane     integer not null,
  running  ${long} not null,
  passed   ${long} not null,
  beyond   ${long} not null,
  parked   ${long} not null,
  lowest   integer not null,
  last     ${long} not null,
  bucket   ${real} not null,
  due_at   ${long},
  unique (rule, key, lane)
)${byRow("fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02")};

-- Finished jobs of queues that do not keep them for ever, in the order in which they ended.
create table ${table("expiring")} (
  lane         integer not null,
  state        text not null,
  finished_at  ${long} not null,
  job          ${long} not null,
  primary key (lane, state, finished_at, job)
)${byKey()};

-- A tick moves next_at on in the transaction that adds its jobs.
create table ${table("schedules")} (
  key         text primary key,
  -- Changes with each save: a tick computed from an older pattern is rejected.
  revision    ${long} not null,
  cron        text not null,
  timezone    text not null,
  missed      text not null check (missed = 'skip' or missed = 'once' or missed = 'all'),
  within      ${long},
  overlap     ${flag} not null,
  paused      ${flag} not null,
  -- The job to be made, as JSON.
  template    text not null,
  name        text not null,
  created_at  ${long} not null,
  last_at     ${long},
  last_job    ${long},
  next_at     ${long} not null${checksum}
)${byKey()};
create index ${index("schedules_due")} on ${table("schedules")} (next_at) where ${isFalse("paused")};

-- One row for each sink and durable subscriber: events up to cursor are delivered. token changes with the holder, and
-- guards the cursor.
create table ${table("sinks")} (
  name          text primary key,
  kind          text not null,
  cursor        ${long} not null,
  holder        ${long},
  token         ${long} not null default 0,
  expires_at    ${long},
  delivered_at  ${long},
  failures      integer not null default 0,
  failed_at     ${long},
  error         text,
  created_at    ${long} not null
)${byKey()};
`;
}

export function recoveryTables({ table, index, long, id, serial, byKey }: SchemaDialect): string {
  return `
create table ${table("recovery_totals")} (
  id            integer primary key check (id = 1),
  entries       ${long} not null,
  locks         ${long} not null,
  recovered_at  ${long} not null
);
insert into ${table("recovery_totals")} (id, entries, locks, recovered_at) values (1, 0, 0, 0);

create table ${table("recovery_log")} (
  id           ${id("bigint")},
  at           ${long} not null,
  cause        text not null,
  entries      integer not null,
  quarantined  integer not null,
  failed       integer not null,
  locks        integer not null
);

-- A report of each recovery after a crash, counted in the transactions that reclaim. owner: the process that ends it; null:
-- it has left. spent: milliseconds until all was reclaimed. errors: JSON.
create table ${table("recoveries")} (
  id               ${serial},
  state            text not null check (state in ('running', 'completed', 'failed', 'acknowledged')),
  owner            ${long},
  begun_at         ${long} not null,
  recovered_at     ${long} not null,
  spent            ${long} not null default 0,
  running_before   ${long} not null default 0,
  jobs             ${long} not null default 0,
  reset            ${long} not null default 0,
  quarantined      ${long} not null default 0,
  builds           ${long} not null default 0,
  locks            ${long} not null default 0,
  pending          ${long} not null default 0,
  wal_bytes        ${long} not null default 0,
  wal_frames       ${long} not null default 0,
  commits_missing  ${long},
  errors           text not null default '[]',
  acknowledged_by  text,
  acknowledged_at  ${long}
);
-- One at a time.
create unique index ${index("recoveries_running")} on ${table("recoveries")} (state) where state = 'running';
create index ${index("recoveries_failed")} on ${table("recoveries")} (id) where state = 'failed';

-- Dead processes. life: how that was known, and so whether a crash is charged.
create table ${table("recovery_processes")} (
  recovery    ${long} not null,
  process     ${long} not null,
  life        text not null,
  pid         integer not null,
  host        text not null,
  program     text not null,
  started_at  ${long} not null,
  primary key (recovery, process)
)${byKey()};

-- Sums of all reports that have ended, also of deleted ones.
create table ${table("report_totals")} (
  id               integer primary key check (id = 1),
  reports          ${long} not null,
  spent            ${long} not null,
  running_before   ${long} not null,
  jobs             ${long} not null,
  reset            ${long} not null,
  quarantined      ${long} not null,
  builds           ${long} not null,
  locks            ${long} not null,
  commits_missing  ${long} not null
);
`;
}

/** The audit is a chain: each entry has a hash that covers the one before it. `entry` is the columns of its number and hash. */
export function auditTables({ table, index, long, bytes }: SchemaDialect, entry: { seq: string; hash: string }): string {
  return `
create table ${table("audit")} (
  seq      ${entry.seq},
  at       ${long} not null,
  actor    text not null,
  action   text not null,
  subject  ${bytes} not null,
  before   text,
  after    text,
  hash     ${entry.hash}
);
create index ${index("audit_subject")} on ${table("audit")} (subject, seq);

-- The last entry's number and hash: the next entry is chained to it, and a tail that was cut off shows.
create table ${table("audit_head")} (
  id    integer primary key check (id = 1),
  seq   ${long} not null,
  hash  ${bytes} not null
);
insert into ${table("audit_head")} (id, seq, hash) values (1, ${NO_ENTRY.seq}, '${NO_ENTRY.hash}');
`;
}
