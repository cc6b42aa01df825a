/**
 * Jobs in one table, updated in place, with an integer key. What costs in SQLite, measured: an index over all states
 * (a third of the rate), a text key (a sixth), `in (…)` lists in a CHECK or a partial index (half: each row builds a
 * temporary tree), each further index whose condition names the state (3 %) — hence few partial indexes and the chains
 * of `or`.
 */
export const sql = `
create table holdfast_database (
  id           integer primary key check (id = 1),
  database_id  text not null,
  durability   text not null check (durability = 'power' or durability = 'process'),
  created_at   integer not null,
  -- Rises when the database is put back to an earlier state, so that no fence of before is ever seen again.
  epoch        integer not null default 0
);

-- One row. commits: rises with every commit that does more than add jobs, and is the fence of what is claimed in it.
-- jobs: the highest key that was ever pruned. So neither a fence nor a key is ever seen twice.
create table holdfast_counter (
  id       integer primary key check (id = 1),
  commits  integer not null,
  jobs     integer not null,
  lanes    integer not null,
  -- Rises when a queue's settings or a limit change, so that no process has to read them again before.
  settings integer not null,
  writer   integer not null
);
insert into holdfast_counter (id, commits, jobs, lanes, settings, writer) values (1, 0, 0, 0, 0, 0);

-- A lane is what a worker can claim or not claim as a whole. Claims walk lanes, so jobs that no worker here can run
-- are never stepped over.
create table holdfast_lanes (
  id       integer primary key,
  queue    text not null,
  name     text not null,
  version  integer not null,
  unique (name, version, queue)
);

create table holdfast_policies (
  id    integer primary key,
  body  text not null unique
);

create table holdfast_jobs (
  key          integer primary key,
  state        text not null check (
                 state = 'pending' or state = 'running' or state = 'succeeded' or state = 'failed'
                 or state = 'cancelled' or state = 'quarantined' or state = 'waiting'),
  gate         text check (gate is null or ((gate = 'time' or gate = 'limit') and state = 'pending')),
  lane         integer not null,
  priority     integer not null,
  policy       integer not null,
  attempt      integer not null default 0,
  errors       integer not null default 0,
  crashes      integer not null default 0,
  fence        integer not null default 0,
  holder       integer,
  worker       text,
  lease        integer,
  expires_at   integer,
  run_at       integer not null,
  scheduled_for integer,
  limits       text,
  created_at   integer not null,
  started_at   integer,
  finished_at  integer,
  id           text,
  slot         text,
  input        text,
  output       text,
  error        text,
  -- JSON of what few jobs have, such as tags.
  meta         text,
  checksum     integer
);

-- What claims walk. Delayed jobs (gate 'time') and jobs of a saturated limit (gate 'limit') are apart, or a million of
-- them would slow every claim.
create index holdfast_jobs_ready on holdfast_jobs (lane, priority desc, key)
  where state = 'pending' and gate is null and crashes = 0;
-- Jobs that were running when a worker died, whatever they are now: a process takes one of them at a time.
create index holdfast_jobs_suspect on holdfast_jobs (state, lane, priority desc, key)
  where crashes > 0;
create index holdfast_jobs_running on holdfast_jobs (expires_at)
  where state = 'running';
create index holdfast_jobs_timed on holdfast_jobs (lane, run_at)
  where gate = 'time';
-- States that few jobs are in, so that listing them does not walk all the others.
create index holdfast_jobs_aside on holdfast_jobs (state, key)
  where state = 'failed' or state = 'cancelled' or state = 'quarantined' or state = 'waiting';
-- One unfinished job of a name and key: slot is both.
create unique index holdfast_jobs_slot on holdfast_jobs (slot)
  where slot is not null and (state = 'pending' or state = 'running' or state = 'waiting');

-- Inputs too large to be rewritten with each change of their job's row.
create table holdfast_inputs (
  job   integer primary key,
  body  text not null
);

-- Every id that a caller chose, for ever: it outlives the job. Follow-ups' ids are here too, and go with their job.
-- ended: how a pruned job ended, for those that come after it.
create table holdfast_ids (
  id      text primary key,
  job     integer not null,
  name    text not null,
  chosen  integer not null,
  ended   text,
  checksum integer
) without rowid;

-- What a running attempt leaves behind for the next: only jobs that use it have a row.
create table holdfast_notes (
  job         integer primary key,
  checkpoint  text,
  fraction    real,
  message     text,
  checksum    integer
);

-- Attempts that did not succeed, each written with its end; the last ones of each job are kept. n counts them.
create table holdfast_attempts (
  job         integer not null,
  n           integer not null,
  fence       integer not null,
  attempt     integer not null,
  outcome     text not null,
  started_at  integer not null,
  ended_at    integer not null,
  worker      text,
  host        text,
  pid         integer,
  error       text,
  checksum    integer,
  primary key (job, n)
) without rowid;

-- What handlers have logged, where their queue keeps it. n counts the lines of an attempt. data: JSON.
create table holdfast_logs (
  job      integer not null,
  fence    integer not null,
  n        integer not null,
  at       integer not null,
  level    text not null,
  message  text not null,
  data     text,
  primary key (job, fence, n)
) without rowid;

-- How many finished jobs there are, so that no query has to count history. since, fresh, before: how many there were in
-- the current minute and in the one before it, for the rate.
create table holdfast_tally (
  lane    integer not null,
  state   text not null,
  n       integer not null,
  ended   integer not null default 0,
  since   integer not null default 0,
  fresh   integer not null default 0,
  before  integer not null default 0,
  primary key (lane, state)
) without rowid;

-- job and fence: an exclusive claim's lock, which lives and dies with that attempt and has no expiry of its own.
create table holdfast_locks (
  name         text primary key,
  holder       text not null,
  token        text not null,
  acquired_at  integer not null,
  ttl          integer,
  expires_at   integer,
  job          integer,
  fence        integer,
  -- The process that has taken or extended it: where that is proven dead, the lock is free. Null: its time alone decides.
  process      integer
) without rowid;

create table holdfast_processes (
  id          integer primary key autoincrement,
  alive       text not null,
  identity    text not null,
  driver      text not null,
  pid         integer not null,
  host        text not null,
  boot        text not null,
  program     text not null,
  started_at  integer not null,
  -- The jobs it works on, as JSON; null while it works on none.
  works       text,
  -- Asked to stop: how long its running jobs may go on, in milliseconds. stoppable: it heeds that.
  stoppable   integer not null default 0,
  stop        integer
);

create table holdfast_recovery_totals (
  id            integer primary key check (id = 1),
  entries       integer not null,
  locks         integer not null,
  recovered_at  integer not null
);
insert into holdfast_recovery_totals (id, entries, locks, recovered_at) values (1, 0, 0, 0);

create table holdfast_recovery_log (
  id           integer primary key,
  at           integer not null,
  cause        text not null,
  entries      integer not null,
  quarantined  integer not null,
  failed       integer not null,
  locks        integer not null
);

-- Jobs that wait for others.
create table holdfast_waits (
  job       integer not null,
  upstream  integer not null,
  primary key (job, upstream)
) without rowid;
create index holdfast_waits_upstream on holdfast_waits (upstream, job);
`;
