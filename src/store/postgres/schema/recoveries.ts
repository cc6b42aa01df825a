export const sql = (s: string): string => `
-- A report of each recovery after a crash, counted in the transactions that reclaim. owner: the process that ends it; null:
-- it has left. spent: milliseconds until all was reclaimed. errors: JSON.
create table ${s}.recoveries (
  id               bigint generated always as identity primary key,
  state            text not null check (state in ('running', 'completed', 'failed', 'acknowledged')),
  owner            bigint,
  begun_at         bigint not null,
  recovered_at     bigint not null,
  spent            bigint not null default 0,
  running_before   bigint not null default 0,
  jobs             bigint not null default 0,
  reset            bigint not null default 0,
  quarantined      bigint not null default 0,
  builds           bigint not null default 0,
  locks            bigint not null default 0,
  pending          bigint not null default 0,
  wal_bytes        bigint not null default 0,
  wal_frames       bigint not null default 0,
  commits_missing  bigint,
  errors           text not null default '[]',
  acknowledged_by  text,
  acknowledged_at  bigint
);
-- One at a time.
create unique index recoveries_running on ${s}.recoveries (state) where state = 'running';
create index recoveries_failed on ${s}.recoveries (id) where state = 'failed';

-- Dead processes. life: how that was known, and so whether a crash is charged.
create table ${s}.recovery_processes (
  recovery    bigint not null,
  process     bigint not null,
  life        text not null,
  pid         integer not null,
  host        text not null,
  program     text not null,
  started_at  bigint not null,
  primary key (recovery, process)
);

-- Sums of all reports that have ended, also of deleted ones.
create table ${s}.report_totals (
  id               integer primary key check (id = 1),
  reports          bigint not null,
  spent            bigint not null,
  running_before   bigint not null,
  jobs             bigint not null,
  reset            bigint not null,
  quarantined      bigint not null,
  builds           bigint not null,
  locks            bigint not null,
  commits_missing  bigint not null
);
`;
