/** The outbox: events are written in the transaction of what they tell, and delivered from here. */
export const name = "events";

export const sql = `
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

-- One row for each sink and each durable subscriber: everything up to cursor is delivered. token is the commit in which
-- its deliverer took it, so it rises with each change of hands, and guards the cursor.
create table holdfast_sinks (
  name          text primary key,
  kind          text not null,
  cursor        integer not null,
  holder        integer,
  token         integer not null default 0,
  expires_at    integer,
  delivered_at  integer,
  failures      integer not null default 0,
  failed_at     integer,
  error         text,
  created_at    integer not null
) without rowid;
`;
