/** The outbox: events are written in the transaction of what they tell, and delivered from here. */
export const name = "events";

export const sql = (s: string): string => `
-- Transactions commit in another order than they count: an event gets its number only when every transaction that began
-- before its own is over, so that no reader who has passed a number ever misses a lower one.
create table ${s}.events (
  id          bigint generated always as identity primary key,
  xid         xid8 not null default pg_current_xact_id(),
  seq         bigint unique,
  type        text not null,
  at          bigint not null,
  -- One of its kind in this database; the dedupe key is its hash, made when it is read.
  transition  text not null,
  job         text,
  build       text,
  data        text not null
);
create index events_unnumbered on ${s}.events (xid, id) where seq is null;
-- The highest number there ever was.
create table ${s}.numbered (
  id   integer primary key check (id = 1),
  seq  bigint not null
);
insert into ${s}.numbered (id, seq) values (1, 0);

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
