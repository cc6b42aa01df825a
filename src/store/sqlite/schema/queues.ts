import { MINUTE_COLUMNS } from "../../sql/queues.ts";

/** Queues as they are set up, schedules, and events with their sinks. Nothing here has a row where no job asks for it. */
export const sql = `
create table holdfast_queues (
  name    text primary key,
  paused  integer not null default 0,
  events  integer not null default 0,
  -- How long and how many finished jobs are kept, by state, as JSON; null: all, for ever.
  keep    text,
  -- Jobs that ended before there was a \`keep\` are looked up once, from this key on; null when that is done.
  backfill integer,
  -- How many attempts that did not succeed are kept of each job; null: the default.
  attempts integer
) without rowid;

-- What ended in each queue and minute, and how long jobs waited and ran: counted by workers, for the dashboard. Minute 0: all ever.
-- wait_0, run_0 and so on count the jobs of each bucket of BUCKET_BOUNDS_MS.
create table holdfast_minutes (
  queue   text not null,
  minute  integer not null,
  ${MINUTE_COLUMNS.map((name) => `${name} integer not null`).join(",\n  ")},
  primary key (queue, minute)
) without rowid;
create index holdfast_minutes_by_minute on holdfast_minutes (minute);

-- A limit as its definition says it: of a queue, or of a job's name in a queue. The newest process's word counts.
create table holdfast_limits (
  id           integer primary key,
  queue        text not null,
  job          text not null,
  position     integer not null,
  keyed        integer not null,
  concurrency  integer,
  starts       integer,
  per          integer,
  unique (queue, job, position)
);

-- One row for each limit, key and lane in use. running: the limit counts the sum of all lanes. passed: pending jobs that passed
-- this limit; beyond: those of them parked at a later limit; lowest and last: the lowest priority and highest key among them.
-- bucket: until when the rate is used up. due_at: when to recheck.
create table holdfast_counters (
  id       integer primary key,
  rule     integer not null,
  key      text not null,
  lane     integer not null,
  running  integer not null,
  passed   integer not null,
  beyond   integer not null,
  parked   integer not null,
  lowest   integer not null,
  last     integer not null,
  bucket   real not null,
  due_at   integer,
  unique (rule, key, lane)
);
create index holdfast_counters_due on holdfast_counters (due_at) where due_at is not null;

-- Jobs with gate 'limit', in the order in which they will pass. limits: all limits of the job, if it has several.
create table holdfast_parked (
  counter   integer not null,
  priority  integer not null,
  job       integer not null,
  limits    text,
  primary key (counter, priority desc, job)
) without rowid;

-- Finished jobs of queues that do not keep them for ever, in the order in which they ended.
create table holdfast_expiring (
  lane         integer not null,
  state        text not null,
  finished_at  integer not null,
  job          integer not null,
  primary key (lane, state, finished_at, job)
) without rowid;

-- What is enqueued when. A tick moves next_at on in the transaction that adds its jobs.
create table holdfast_schedules (
  key         text primary key,
  -- The commit that last saved it: a tick that was worked out by an older pattern is refused.
  revision    integer not null,
  cron        text not null,
  timezone    text not null,
  missed      text not null check (missed = 'skip' or missed = 'once' or missed = 'all'),
  within      integer,
  overlap     integer not null,
  paused      integer not null,
  -- The job to be made, as JSON.
  template    text not null,
  name        text not null,
  created_at  integer not null,
  last_at     integer,
  last_job    integer,
  next_at     integer not null,
  checksum    integer
) without rowid;

create index holdfast_schedules_due on holdfast_schedules (next_at) where paused = 0;

-- Events are written in the transaction of what they tell, and delivered from here.
create table holdfast_events (
  seq         integer primary key autoincrement,
  type        text not null,
  at          integer not null,
  -- One of its kind in this database; the dedupe key is its hash, made when it is read. An index over hashes would cost
  -- more than all the rest.
  transition  text not null,
  job         text,
  build       text,
  data        text not null,
  checksum    integer
);

-- One row for each sink and each durable subscriber: everything up to cursor is delivered. token is the commit in which
-- its deliverer took it, so it rises with each change of hands, and guards the cursor.
create table holdfast_sinks (
  name          text primary key,
  kind          text not null,
  cursor        integer not null,
  holder        integer,
  token         integer not null default 0,
  expires_at    integer,
  delivered_at  integer,
  failures      integer not null default 0,
  failed_at     integer,
  error         text,
  created_at    integer not null
) without rowid;
`;
