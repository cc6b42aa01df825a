import { buildTables, IS_FORBIDDEN_MOVE } from "../sql/schema/builds.ts";
import { auditTables, jobTables, queueTables, recoveryTables, type SchemaDialect } from "../sql/schema/tables.ts";

const DIALECT: SchemaDialect = {
  table: (name) => `holdfast_${name}`,
  index: (name) => `holdfast_${name}`,
  long: "integer",
  flag: "integer",
  no: "0",
  real: "real",
  bytes: "text",
  id: () => "integer primary key",
  serial: "integer primary key autoincrement",
  sequence: () => "integer primary key autoincrement",
  checksum: ",\n  checksum integer",
  byKey: () => " without rowid",
  byRow: () => "",
  isFalse: (column) => `${column} = 0`,
};

// Jobs have one table, updated in place, with an integer key. Measured costs: an index over all states takes a third of the rate,
// a text key a sixth, and `in (…)` lists in a CHECK or a partial index half (each row builds a temporary tree, hence the chains
// of `or`). Each further index whose condition names the state takes 3 %.
const JOBS = `create table holdfast_database (
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

-- Jobs with gate 'limit', in the order in which they will pass. limits: all limits of the job, if it has several.
create table holdfast_parked (
  counter   integer not null,
  priority  integer not null,
  job       integer not null,
  limits    text,
  primary key (counter, priority desc, job)
) without rowid;
create index holdfast_counters_due on holdfast_counters (due_at) where due_at is not null;

-- Events are written in the transaction of the change that they report, and delivered from here.
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
`;

/** Trigger that rejects build transitions other than those of src/core, also from another program. */
const MOVES = `
create trigger holdfast_builds_moves before update of state on holdfast_builds
when ${IS_FORBIDDEN_MOVE}
begin
  select raise(abort, 'a build cannot make this transition');
end;
`;

const refuse = (why: string): string => `begin\n  select raise(abort, '${why}');\nend`;
const KEPT = refuse("entries of the audit are never changed or removed");
const CHAINED = refuse("an entry of the audit comes after its head, with its hash");
const FORWARD = refuse("the head of the audit moves to an entry that comes after it");

/** Triggers that keep the audit as it was written. A verification of the audit compares their text with the file's. */
export const GUARDS: readonly { name: string; sql: string }[] = [
  guard("holdfast_audit_unchanged", `before update on holdfast_audit ${KEPT}`),
  guard("holdfast_audit_kept", `before delete on holdfast_audit ${KEPT}`),
  guard(
    "holdfast_audit_chained",
    `before insert on holdfast_audit
when new.hash is null or new.seq <= (select seq from holdfast_audit_head where id = 1) ${CHAINED}`,
  ),
  guard(
    "holdfast_audit_forward",
    `before update on holdfast_audit_head
when new.id <> 1 or new.seq <= old.seq
  or not exists (select 1 from holdfast_audit where seq = new.seq and hash = new.hash) ${FORWARD}`,
  ),
  guard("holdfast_audit_head_kept", `before delete on holdfast_audit_head ${KEPT}`),
];

function guard(name: string, how: string): { name: string; sql: string } {
  return { name, sql: `CREATE TRIGGER ${name} ${how}` };
}

export const SCHEMA = [
  jobTables(DIALECT),
  queueTables(DIALECT),
  JOBS,
  buildTables(DIALECT),
  MOVES,
  auditTables(DIALECT, { seq: DIALECT.serial, hash: "text" }),
  recoveryTables(DIALECT),
  ...GUARDS.map(({ sql }) => `${sql};\n`),
].join("");
