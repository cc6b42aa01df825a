import { MINUTE_COLUMNS } from "../../sql/queues.ts";

/** Queues, limits, schedules, and events with their sinks. A queue without any of them has no row here. */
export const sql = (s: string): string => `
create table ${s}.queues (
  name      text primary key,
  paused    boolean not null default false,
  events    boolean not null default false,
  -- How long and how many finished jobs are kept, by state, as JSON; null: all, for ever.
  keep      text,
  -- Jobs that ended before \`keep\` was declared are listed once, from this key on; null when that is done. Below 0: that
  -- begins when every transaction before this xid, without its sign, has ended.
  backfill  bigint,
  -- How many attempts that did not succeed are kept of each job; null: the default.
  attempts  bigint
);

-- What ended in each queue and minute, and how long jobs waited and ran: counted by workers, for the dashboard. Minute 0: all ever.
-- wait_0, run_0 and so on count the jobs of each bucket of BUCKET_BOUNDS_MS.
create table ${s}.minutes (
  queue   text not null,
  minute  bigint not null,
  ${MINUTE_COLUMNS.map((name) => `${name} bigint not null`).join(",\n  ")},
  primary key (queue, minute)
);
create index minutes_by_minute on ${s}.minutes (minute);

-- A declared limit of a queue, or of a job's name in a queue. The last process to declare it wins.
create table ${s}.limits (
  id           integer generated always as identity primary key,
  queue        text not null,
  job          text not null,
  position     integer not null,
  keyed        boolean not null,
  concurrency  integer,
  starts       bigint,
  per          bigint,
  unique (queue, job, position)
);

-- One row for each limit, key and lane in use, read and written under the lock of its queue. running: the limit counts the
-- sum of all lanes. passed: pending jobs that passed this limit; beyond: those of them parked at a later limit; lowest and
-- last: the lowest priority and highest key among them. bucket: until when the rate is used up. due_at: when to recheck.
create sequence ${s}.counter_ids increment 10000;
create table ${s}.counters (
  id       bigint primary key,
  rule     integer not null,
  key      text not null,
  lane     integer not null,
  running  bigint not null,
  passed   bigint not null,
  beyond   bigint not null,
  parked   bigint not null,
  lowest   integer not null,
  last     bigint not null,
  bucket   double precision not null,
  due_at   bigint,
  unique (rule, key, lane)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
create index counters_due on ${s}.counters (rule, due_at) where due_at is not null;

-- Jobs with gate 'limit', in the order in which they will pass. limits: all limits of the job, if it has several.
create table ${s}.parked (
  counter   bigint not null,
  priority  integer not null,
  job       bigint not null,
  limits    text
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
create unique index parked_turn on ${s}.parked (counter, priority desc, job);

-- Jobs with limits of a user's transaction that may run at once: the next claim admits them. Not by their time, since the
-- clock may have been set back.
create index jobs_unseen on ${s}.jobs (lane) where gate = 'time' and fence = 0 and run_at <= created_at;

-- Finished jobs of queues that do not keep them for ever, in the order in which they ended.
create table ${s}.expiring (
  lane         integer not null,
  state        text not null,
  finished_at  bigint not null,
  job          bigint not null,
  primary key (lane, state, finished_at, job)
);

-- The current count of settings, also for a statement that began before a change: a volatile function sees later commits.
create function ${s}.settings_now() returns bigint language plpgsql volatile as
  $$ begin return (select settings from ${s}.counter where id = 1); end $$;

-- A tick moves next_at on in the transaction that adds its jobs.
create table ${s}.schedules (
  key         text primary key,
  -- Changes with each save: a tick computed from an older pattern is rejected.
  revision    bigint not null,
  cron        text not null,
  timezone    text not null,
  missed      text not null check (missed in ('skip', 'once', 'all')),
  within      bigint,
  overlap     boolean not null,
  paused      boolean not null,
  -- The job to be made, as JSON.
  template    text not null,
  name        text not null,
  created_at  bigint not null,
  last_at     bigint,
  last_job    bigint,
  next_at     bigint not null
);

create index schedules_due on ${s}.schedules (next_at) where not paused;

-- Events are written in the transaction of what they report. Transactions commit in another order than they begin, so an
-- event gets its number later, when it is first read. Ids are taken one by one, when a row is written.
create table ${s}.outbox (
  id          bigint generated always as identity (cache 1) primary key,
  type        text not null,
  at          bigint not null,
  -- Unique in this database; the dedupe key is its hash.
  transition  text not null,
  job         text,
  build       text,
  data        text not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Numbered without gaps, in the order in which all readers see them.
create table ${s}.events (
  seq         bigint primary key,
  type        text not null,
  at          bigint not null,
  transition  text not null,
  job         text,
  build       text,
  data        text not null
);
-- The highest number that was ever removed: if no event is left, the next number follows it.
create table ${s}.trimmed (
  id   integer primary key check (id = 1),
  seq  bigint not null
);
insert into ${s}.trimmed (id, seq) values (1, 0);

-- One row for each sink and durable subscriber: events up to cursor are delivered. token changes with the holder, and
-- guards the cursor.
create table ${s}.sinks (
  name          text primary key,
  kind          text not null,
  cursor        bigint not null,
  holder        bigint,
  token         bigint not null default 0,
  expires_at    bigint,
  delivered_at  bigint,
  failures      integer not null default 0,
  failed_at     bigint,
  error         text,
  created_at    bigint not null
);
`;
