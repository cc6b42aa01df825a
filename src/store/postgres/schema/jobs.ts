import { MUTEX, QUEUE_MUTEXES } from "../transactions/mutexes.ts";

/**
 * Jobs in one table, updated in place: separate tables for running or finished jobs were slower. PostgreSQL stores large inputs
 * outside of the row by itself.
 */
export const sql = (s: string): string => `
create table ${s}.database (
  id           integer primary key check (id = 1),
  database_id  text not null,
  durability   text not null check (durability in ('power', 'process')),
  created_at   bigint not null
);

-- One row, changed seldom: how many lanes there are, and how often queues' settings and limits have changed, so that
-- they are not read again before.
-- epoch: another one whenever the database has gone back, which the next table tells.
create table ${s}.counter (
  id        integer primary key check (id = 1),
  lanes     integer not null,
  settings  bigint not null,
  epoch     bigint not null
);
insert into ${s}.counter (id, lanes, settings, epoch) values (1, 0, 0, floor(random() * 9007199254740991)::bigint);

-- Not logged, hence empty after a crash of the server, on a replica that took over, and in a restored copy of the files.
create unlogged table ${s}.awake (id integer primary key check (id = 1));
insert into ${s}.awake (id) values (1);

-- The last transaction of each handle that has written: found there, it was committed. made: the job or the fence that came
-- of it, and made_at, when: where its answer went with the commit. closed: up to this one none is committed any more that is not by now.
create table ${s}.receipts (
  handle  uuid primary key,
  batch   bigint not null default 0,
  made     bigint,
  made_at  bigint,
  -- What many jobs that went in by one statement are called, where others came in between.
  keys     text,
  closed  bigint not null default 0,
  at      timestamptz not null default now()
) with (fillfactor = 50);

-- Ends a statement, and with it the transaction, by a code of our own.
create function ${s}.refuse(code text) returns boolean language plpgsql volatile as
  $$ begin raise exception using errcode = code, message = 'refused by Holdfast'; end $$;

-- What names one attempt, one holder, one save for ever. A sequence is never set back, also not by a rollback.
create sequence ${s}.fence as bigint;

create table ${s}.lanes (
  id       integer generated always as identity primary key,
  queue    text not null,
  name     text not null,
  version  integer not null,
  unique (name, version, queue)
);

create table ${s}.policies (
  id    integer generated always as identity primary key,
  body  text not null unique
);

create sequence ${s}.job as bigint;

-- What is always there and of one size comes first: the server finds it without walking the row.
-- quiet: nothing follows from its end beyond its own row. Not so for a job that has limits, or that another waits for.
create table ${s}.jobs (
  key            bigint primary key default nextval('${s}.job'),
  run_at         bigint not null,
  created_at     bigint not null,
  fence          bigint not null default 0,
  lane           integer not null,
  priority       integer not null,
  policy         integer not null,
  attempt        integer not null default 0,
  errors         integer not null default 0,
  crashes        integer not null default 0,
  quiet          boolean not null default true,
  -- What the indexes go by. None of it changes when a running job succeeds, so that its row is changed in place, without a
  -- new entry in any index: a third less work for the server. That is why no index may mention the state itself.
  ready          boolean not null generated always as (state = 'pending' and gate is null and crashes = 0) stored,
  -- Without a check: the server reads its list anew for every statement that writes a job, a tenth of what that costs.
  state          text not null,
  gate           text,
  suspect        text generated always as (case when crashes > 0 then state end) stored,
  aside          text generated always as (
                   case when state in ('failed', 'cancelled', 'quarantined', 'waiting') then state end) stored,
  reserved       text generated always as (case when state in ('pending', 'running', 'waiting') then slot end) stored,
  holder         bigint,
  lease          bigint,
  expires_at     bigint,
  started_at     bigint,
  finished_at    bigint,
  scheduled_for  bigint,
  worker         text,
  limits         text,
  id             text,
  slot           text,
  input          text,
  output         text,
  error          text
) with (
  -- Room beside each row for the next version of it.
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
alter sequence ${s}.job owned by ${s}.jobs.key;

-- What claims walk. Delayed jobs (gate 'time') and jobs of a saturated limit (gate 'limit') are apart.
create index jobs_ready on ${s}.jobs (lane, priority desc, key) where ready;
-- Jobs that were running when a worker died, whatever they are now: a process takes one of them at a time.
create index jobs_suspect on ${s}.jobs (suspect, lane, priority desc, key) where suspect is not null;
create index jobs_timed on ${s}.jobs (lane, run_at) where gate = 'time';
-- States that few jobs are in, so that listing them does not walk all the others.
create index jobs_aside on ${s}.jobs (aside, key) where aside is not null;
-- One unfinished job of a name and key: slot is both.
create unique index jobs_slot on ${s}.jobs (reserved) where reserved is not null;

-- The jobs that run, by the claim that started them: one row for all of a claim, however many. at_work: how many of them
-- still run. expires_at: none of their leases ends before.
create table ${s}.claims (
  fence       bigint primary key,
  holder      bigint,
  expires_at  bigint not null,
  at_work     integer not null,
  jobs        bigint[] not null
) with (
  -- A thousand jobs in the row itself.
  toast_tuple_target = 8160, fillfactor = 50);
create index claims_expiring on ${s}.claims (expires_at);

create view ${s}.running as
  select claim.expires_at as bound, job.key, job.fence, job.lane, job.holder, job.lease, job.expires_at
  from ${s}.claims as claim cross join lateral unnest(claim.jobs) as one (key) cross join lateral (
    -- By its key, whatever the planner believes about how many there are.
    select key, fence, lane, holder, lease, expires_at from ${s}.jobs
    where key = one.key and fence = claim.fence and state = 'running' offset 0) as job;

-- Every id that a caller chose, for ever: it outlives the job. Follow-ups' ids are here too, and go with their job.
-- ended: how a pruned job ended, for those that come after it.
create table ${s}.ids (
  id      text primary key,
  job     bigint not null,
  name    text not null,
  chosen  boolean not null,
  ended   text
);

-- What a running attempt leaves behind for the next: only jobs that use it have a row.
create table ${s}.notes (
  job         bigint primary key,
  checkpoint  text,
  fraction    double precision,
  message     text
);

-- How many finished jobs there are, so that no query counts history. Each handle adds in a share of its own, or
-- all of them would wait for one row; the sum counts. since, fresh, before: how many there were in the current minute
-- and in the one before it, for the rate.
create table ${s}.tally (
  share   integer not null,
  lane    integer not null,
  state   text not null,
  n       bigint not null,
  ended   bigint not null default 0,
  since   bigint not null default 0,
  fresh   bigint not null default 0,
  before  bigint not null default 0,
  primary key (share, lane, state)
) with (fillfactor = 50);
create sequence ${s}.share as bigint;

-- job and fence: an exclusive claim's lock, which lives and dies with that attempt and has no expiry of its own.
create table ${s}.locks (
  name         text primary key,
  holder       text not null,
  token        text not null,
  acquired_at  bigint not null,
  ttl          bigint,
  expires_at   bigint,
  job          bigint,
  fence        bigint,
  -- The process that has taken or extended it: where that is proven dead, the lock is free. Null: its time alone decides.
  process      bigint
);

-- place and alive: the folder and the file on its host whose lock proves its life. seen_at: when it last said that it is
-- there, which only those do of whom no lock tells.
create table ${s}.processes (
  id          bigint generated always as identity primary key,
  place       text not null,
  alive       text not null,
  identity    text not null,
  pid         integer not null,
  host        text not null,
  boot        text not null,
  program     text not null,
  started_at  bigint not null,
  seen_at     bigint not null,
  -- The jobs it works on, as JSON; null while it works on none.
  works       text,
  -- Asked to stop: how long its running jobs may go on, in milliseconds. stoppable: it heeds that.
  stoppable   boolean not null default false,
  stop        bigint,
  -- The connection that it writes over: while the server shows it, the process is alive.
  backend        integer,
  backend_role   oid,
  backend_since  timestamptz
);

create table ${s}.recovery_totals (
  id            integer primary key check (id = 1),
  entries       bigint not null,
  locks         bigint not null,
  recovered_at  bigint not null
);
insert into ${s}.recovery_totals (id, entries, locks, recovered_at) values (1, 0, 0, 0);

create table ${s}.recovery_log (
  id           bigint generated always as identity primary key,
  at           bigint not null,
  cause        text not null,
  entries      integer not null,
  quarantined  integer not null,
  failed       integer not null,
  locks        integer not null
);

-- The time that counts: the database's, or in a test the one that is given.
create function ${s}.clock(given bigint) returns bigint language sql volatile as
  $$ select coalesce(given, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) $$;

-- Jobs that wait for others.
create table ${s}.waits (
  job       bigint not null,
  upstream  bigint not null,
  primary key (job, upstream)
);
create index waits_upstream on ${s}.waits (upstream, job);

-- Rows that transactions lock to take turns.
create table ${s}.mutexes (id integer primary key);
insert into ${s}.mutexes select unnest(array[${Object.values(MUTEX).join(", ")}]);
insert into ${s}.mutexes
select generate_series(${QUEUE_MUTEXES.first}, ${QUEUE_MUTEXES.first + QUEUE_MUTEXES.count - 1});
`;
