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

-- One row, changed seldom: the number of lanes, and of changes of settings and limits, so that processes can cache both.
-- epoch: changes when the database has reverted, see the next table.
create table ${s}.counter (
  id        integer primary key check (id = 1),
  lanes     integer not null,
  settings  bigint not null,
  epoch     bigint not null
);
insert into ${s}.counter (id, lanes, settings, epoch) values (1, 0, 0, floor(random() * 9007199254740991)::bigint);

-- Unlogged: empty after a crash of the server, on a replica that took over, and in a restored copy of the files.
create unlogged table ${s}.awake (id integer primary key check (id = 1));
insert into ${s}.awake (id) values (1);

-- The last transaction of each handle that has written and committed. made, made_at: the job or the fence of a single
-- statement, for an answer that is lost with the commit. closed: transactions up to this number cannot commit any more.
create table ${s}.receipts (
  handle  uuid primary key,
  batch   bigint not null default 0,
  made     bigint,
  made_at  bigint,
  -- Keys of jobs of one statement that are not consecutive.
  keys     text,
  closed  bigint not null default 0,
  at      timestamptz not null default now()
) with (fillfactor = 50);

-- Ends a statement and its transaction with one of our own codes.
create function ${s}.refuse(code text) returns boolean language plpgsql volatile as
  $$ begin raise exception using errcode = code, message = 'refused by Holdfast'; end $$;

-- Identifies one attempt, holder or save for ever. A rollback does not set a sequence back.
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

-- Columns of fixed size come first: the server finds them without walking the row.
-- quiet: its end changes no other row. Not so for a job that has limits, or that another job waits for.
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
  -- Indexes use these columns, and not the state: when a running job succeeds, none of them changes, so that the row is
  -- updated in place without new index entries: a third less work for the server.
  ready          boolean not null generated always as (state = 'pending' and gate is null and crashes = 0) stored,
  -- Without a check constraint, which would cost a tenth of every statement that writes a job.
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
  error          text,
  -- JSON of what few jobs have, such as tags.
  meta           text
) with (
  -- Room beside each row for the next version of it.
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
alter sequence ${s}.job owned by ${s}.jobs.key;

-- For claims. Delayed jobs (gate 'time') and jobs of a saturated limit (gate 'limit') are not in it.
create index jobs_ready on ${s}.jobs (lane, priority desc, key) where ready;
-- Jobs that were running when a worker died: a process claims one of them at a time.
create index jobs_suspect on ${s}.jobs (suspect, lane, priority desc, key) where suspect is not null;
create index jobs_timed on ${s}.jobs (lane, run_at) where gate = 'time';
-- States that few jobs are in, so that listing them does not walk all the others.
create index jobs_aside on ${s}.jobs (aside, key) where aside is not null;
-- One unfinished job of a name and key: slot is both.
create unique index jobs_slot on ${s}.jobs (reserved) where reserved is not null;

-- Running jobs, one row for each claim. at_work: how many of them still run. expires_at: none of their leases ends before.
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
    -- \`offset 0\` forces a look-up by key.
    select key, fence, lane, holder, lease, expires_at from ${s}.jobs
    where key = one.key and fence = claim.fence and state = 'running' offset 0) as job;

-- Ids that callers chose outlive their jobs; ids of follow-ups go with theirs.
-- ended: how a pruned job ended, for jobs that come after it.
create table ${s}.ids (
  id      text primary key,
  job     bigint not null,
  name    text not null,
  chosen  boolean not null,
  ended   text
);

-- Checkpoints and progress; only jobs that use them have a row.
create table ${s}.notes (
  job         bigint primary key,
  checkpoint  text,
  fraction    double precision,
  message     text
);

-- Attempts that did not succeed, each written with its end; the last ones of each job are kept. n counts them.
create table ${s}.attempts (
  job         bigint not null,
  n           integer not null,
  fence       bigint not null,
  attempt     integer not null,
  outcome     text not null,
  started_at  bigint not null,
  ended_at    bigint not null,
  worker      text,
  host        text,
  pid         integer,
  error       text,
  primary key (job, n)
);

-- What handlers have logged, where their queue keeps it. n counts the lines of an attempt. data: JSON.
create table ${s}.logs (
  job      bigint not null,
  fence    bigint not null,
  n        integer not null,
  at       bigint not null,
  level    text not null,
  message  text not null,
  data     text,
  primary key (job, fence, n)
);

-- Counts of finished jobs, so that no query counts history. Each handle adds to its own share, so that handles do not wait
-- for one row. since, fresh, before: counts of the current minute and of the one before it, for the rate.
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

-- job and fence: the lock of an exclusive claim, which ends with that attempt and has no expiry of its own.
create table ${s}.locks (
  name         text primary key,
  holder       text not null,
  token        text not null,
  acquired_at  bigint not null,
  ttl          bigint,
  expires_at   bigint,
  job          bigint,
  fence        bigint,
  -- The process that took or extended it: if it is proven dead, the lock is free. Null: only the expiry counts.
  process      bigint
);

-- place and alive: the folder and the lock file on its host that prove that it is alive. seen_at: its last heartbeat.
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
  -- The jobs it works on, as JSON.
  works       text,
  -- stop: how long its running jobs may continue after a stop request, in milliseconds. stoppable: it handles requests.
  stoppable   boolean not null default false,
  stop        bigint,
  -- Its write connection: while the server shows it, the process is alive.
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

-- The database's time, or the injected time of a test.
create function ${s}.clock(given bigint) returns bigint language sql volatile as
  $$ select coalesce(given, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) $$;

-- Jobs that wait for others.
create table ${s}.waits (
  job       bigint not null,
  upstream  bigint not null,
  primary key (job, upstream)
);
create index waits_upstream on ${s}.waits (upstream, job);

-- Rows that transactions lock to take turns. decision: the name of the last transaction that decided about limits under it.
create table ${s}.mutexes (
  id        integer primary key,
  decision  text
) with (fillfactor = 50);
insert into ${s}.mutexes (id) select unnest(array[${Object.values(MUTEX).join(", ")}]);
insert into ${s}.mutexes (id)
select generate_series(${QUEUE_MUTEXES.first}, ${QUEUE_MUTEXES.first + QUEUE_MUTEXES.count - 1});
`;
