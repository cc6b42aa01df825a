/** Schedules: what is enqueued when. A tick moves next_at on in the transaction that adds its jobs. */
export const name = "schedules";

export const sql = (s: string): string => `
create table ${s}.schedules (
  key         text primary key,
  -- Another with each save: a tick that was worked out by an older pattern is refused.
  revision    bigint not null,
  cron        text not null,
  timezone    text not null,
  missed      text not null check (missed in ('skip', 'once', 'all')),
  within      bigint,
  overlap     boolean not null,
  paused      boolean not null,
  -- The job to be made, as JSON.
  template    text not null,
  name        text not null,
  created_at  bigint not null,
  last_at     bigint,
  last_job    bigint,
  next_at     bigint not null
);

create index schedules_due on ${s}.schedules (next_at) where not paused;
`;
