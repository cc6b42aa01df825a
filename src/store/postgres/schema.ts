import { buildTables, IS_FORBIDDEN_MOVE } from "../sql/schema/builds.ts";
import { auditTables, jobTables, queueTables, recoveryTables, type SchemaDialect } from "../sql/schema/tables.ts";
import { MUTEX, QUEUE_MUTEXES } from "./transactions/mutexes.ts";

const schemaDialect = (s: string): SchemaDialect => ({
  table: (name) => `${s}.${name}`,
  index: (name) => name,
  long: "bigint",
  flag: "boolean",
  no: "false",
  real: "double precision",
  bytes: 'text collate "C"',
  id: (type) => `${type} generated always as identity primary key`,
  serial: "bigint generated always as identity primary key",
  sequence: (name) => `bigint primary key default nextval('${s}.${name}')`,
  checksum: "",
  byKey: storedWith,
  byRow: storedWith,
  isFalse: (column) => `not ${column}`,
});

function storedWith(options = ""): string {
  return options === "" ? "" : ` with (${options})`;
}

export function schemaSql(s: string): string {
  const dialect = schemaDialect(s);
  return [
    jobTables(dialect),
    queueTables(dialect),
    jobsSql(s),
    `create sequence ${s}.build as bigint;`,
    buildTables(dialect),
    movesSql(s),
    auditTables(dialect, { seq: "bigint primary key", hash: `${dialect.bytes} not null` }),
    guardsSql(s),
    recoveryTables(dialect),
  ].join("");
}

/** One table has all jobs, updated in place, because separate tables for running or finished jobs were slower. */
const jobsSql = (s: string): string => `create table ${s}.database (
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

-- The database's time, or the injected time of a test.
create function ${s}.clock(given bigint) returns bigint language sql volatile as
  $$ select coalesce(given, floor(extract(epoch from clock_timestamp()) * 1000)::bigint) $$;

-- Rows that transactions lock to take turns. decision: the name of the last transaction that decided about limits under it.
create table ${s}.mutexes (
  id        integer primary key,
  decision  text
) with (fillfactor = 50);
insert into ${s}.mutexes (id) select unnest(array[${Object.values(MUTEX).join(", ")}]);
insert into ${s}.mutexes (id)
select generate_series(${QUEUE_MUTEXES.first}, ${QUEUE_MUTEXES.first + QUEUE_MUTEXES.count - 1});

create sequence ${s}.counter_ids increment 10000;
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

-- The current count of settings, also for a statement that began before a change: a volatile function sees later commits.
create function ${s}.settings_now() returns bigint language plpgsql volatile as
  $$ begin return (select settings from ${s}.counter where id = 1); end $$;

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
`;

/** Rejects the transitions that core rejects; a test compares both. */
const movesSql = (s: string): string => `
alter sequence ${s}.build owned by ${s}.builds.key;
create function ${s}.refuse_move() returns trigger language plpgsql as
  $$ begin raise exception using errcode = 'check_violation', message = 'a build cannot make this transition'; end $$;
create trigger builds_moves before update of state on ${s}.builds for each row
when (${IS_FORBIDDEN_MOVE})
execute function ${s}.refuse_move();
`;

const guardsSql = (s: string): string => `
-- Triggers that reject every other change.
create function ${s}.refuse_audit_change() returns trigger language plpgsql as $$
  begin
    raise exception using errcode = 'check_violation', message = 'entries of the audit are never changed or removed';
  end $$;
create function ${s}.check_audit_entry() returns trigger language plpgsql as $$
  begin
    if new.seq <= (select seq from ${s}.audit_head where id = 1) then
      raise exception using errcode = 'check_violation', message = 'an entry of the audit comes after its head';
    end if;
    return new;
  end $$;
create function ${s}.check_audit_head() returns trigger language plpgsql as $$
  begin
    if new.id <> 1 or new.seq <= old.seq
      or not exists (select 1 from ${s}.audit as entry where entry.seq = new.seq and entry.hash = new.hash) then
      raise exception using
        errcode = 'check_violation', message = 'the head of the audit moves to an entry that comes after it';
    end if;
    return new;
  end $$;
create trigger audit_unchanged before update or delete on ${s}.audit
  for each row execute function ${s}.refuse_audit_change();
create trigger audit_kept before truncate on ${s}.audit
  for each statement execute function ${s}.refuse_audit_change();
create trigger audit_chained before insert on ${s}.audit
  for each row execute function ${s}.check_audit_entry();
create trigger audit_head_forward before update on ${s}.audit_head
  for each row execute function ${s}.check_audit_head();
create trigger audit_head_kept before delete on ${s}.audit_head
  for each row execute function ${s}.refuse_audit_change();
create trigger audit_head_stays before truncate on ${s}.audit_head
  for each statement execute function ${s}.refuse_audit_change();
`;

export const GUARDS = [
  "audit_unchanged",
  "audit_kept",
  "audit_chained",
  "audit_head_forward",
  "audit_head_kept",
  "audit_head_stays",
] as const;
