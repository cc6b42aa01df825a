/** What is done after a crash, the reports of it, and what all reports come to. */
export const sql = `
-- A report of each recovery after a crash. What a transaction gives back is added here in that transaction. owner: the
-- process that ends it; null: it has left. spent: milliseconds until all was given back. errors: JSON.
create table holdfast_recoveries (
  id               integer primary key autoincrement,
  state            text not null check (state in ('running', 'completed', 'failed', 'acknowledged')),
  owner            integer,
  begun_at         integer not null,
  recovered_at     integer not null,
  spent            integer not null default 0,
  running_before   integer not null default 0,
  jobs             integer not null default 0,
  reset            integer not null default 0,
  quarantined      integer not null default 0,
  builds           integer not null default 0,
  locks            integer not null default 0,
  pending          integer not null default 0,
  wal_bytes        integer not null default 0,
  wal_frames       integer not null default 0,
  commits_missing  integer,
  errors           text not null default '[]',
  acknowledged_by  text,
  acknowledged_at  integer
);
-- One at a time.
create unique index holdfast_recoveries_running on holdfast_recoveries (state) where state = 'running';
create index holdfast_recoveries_failed on holdfast_recoveries (id) where state = 'failed';

-- Who died. life: how that was known, and so whether a crash is charged.
create table holdfast_recovery_processes (
  recovery    integer not null,
  process     integer not null,
  life        text not null,
  pid         integer not null,
  host        text not null,
  program     text not null,
  started_at  integer not null,
  primary key (recovery, process)
) without rowid;

-- Sums of all reports that were ended, also of those that are not kept: they never fall. One row, from the first on.
create table holdfast_report_totals (
  id               integer primary key check (id = 1),
  reports          integer not null,
  spent            integer not null,
  running_before   integer not null,
  jobs             integer not null,
  reset            integer not null,
  quarantined      integer not null,
  builds           integer not null,
  locks            integer not null,
  commits_missing  integer not null
);
`;
