/** Queues as they are set up: paused, limited, kept how long. Nothing here has a row where nobody asks for it. */
export const name = "queues";

export const sql = `
create table holdfast_queues (
  name    text primary key,
  paused  integer not null default 0,
  events  integer not null default 0,
  -- How long and how many finished jobs are kept, by state, as JSON; null: all, for ever.
  keep    text,
  -- Jobs that ended before there was a \`keep\` are looked up once, from this key on; null when that is done.
  backfill integer
) without rowid;

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

-- One row for each limit, key and lane in use. running: of all lanes together they are the limit's count. passed: pending
-- jobs that this limit lets through; beyond: those of them that are parked before a later one, so that the others stand
-- ready, at most a window full; lowest: no priority among them is lower; last: none has a higher key. bucket: until when the rate is used up. due_at: when it wants to be looked at.
create table holdfast_counters (
  id       integer primary key autoincrement,
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

-- Jobs with gate 'limit', in the order in which they will pass.
-- more: it has other limits, too.
create table holdfast_parked (
  counter   integer not null,
  priority  integer not null,
  job       integer not null,
  more      integer not null,
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
`;
