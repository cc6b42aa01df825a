/** The outbox: events are written in the transaction of what they tell, and delivered from here. */
export const name = "events";

export const sql = `
create table holdfast_events (
  seq         integer primary key autoincrement,
  type        text not null,
  at          integer not null,
  dedupe_key  text not null unique,
  job         text,
  build       text,
  data        text not null
);

-- One row for each sink and each durable subscriber: everything up to cursor is delivered. token rises with each change
-- of the one who delivers, and guards the cursor.
create table holdfast_sinks (
  name        text primary key,
  cursor      integer not null,
  holder      integer,
  token       integer not null,
  expires_at  integer,
  failures    integer not null default 0,
  error       text,
  created_at  integer not null
) without rowid;
`;
