/** The outbox: events are written in the transaction of what they tell, and delivered from here. */
export const name = "events";

export const sql = (s: string): string => `
-- Transactions are committed in another order than they count, so an event has no number yet when it is written. What is
-- here was committed and not read by anybody; ids are taken one by one, when a row is written.
create table ${s}.outbox (
  id          bigint generated always as identity (cache 1) primary key,
  type        text not null,
  at          bigint not null,
  -- One of its kind in this database; the dedupe key is its hash, made when it is read.
  transition  text not null,
  job         text,
  build       text,
  data        text not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Numbered, one by one and without gaps, hence in the order in which everybody reads them.
create table ${s}.events (
  seq         bigint primary key,
  type        text not null,
  at          bigint not null,
  transition  text not null,
  job         text,
  build       text,
  data        text not null
);
-- The highest number that was ever removed: where no event is left, the next number comes after it.
create table ${s}.trimmed (
  id   integer primary key check (id = 1),
  seq  bigint not null
);
insert into ${s}.trimmed (id, seq) values (1, 0);

-- One row for each sink and each durable subscriber: everything up to cursor is delivered. token is of the change of hands,
-- and guards the cursor.
create table ${s}.sinks (
  name          text primary key,
  kind          text not null,
  cursor        bigint not null,
  holder        bigint,
  token         bigint not null default 0,
  expires_at    bigint,
  delivered_at  bigint,
  failures      integer not null default 0,
  failed_at     bigint,
  error         text,
  created_at    bigint not null
);
`;
