/** Schedules: what is enqueued when. A tick moves next_at on in the transaction that adds its jobs. */
export const name = "schedules";

export const sql = `
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
`;
