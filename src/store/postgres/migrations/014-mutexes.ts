import { MUTEX, QUEUE_MUTEXES } from "../mutexes.ts";

/** Rows that transactions lock to take turns, and the connection by which a process on another host is known to be alive. */
export const name = "mutexes";

export const sql = (s: string): string => `
create table ${s}.mutexes (id integer primary key);
insert into ${s}.mutexes select unnest(array[${Object.values(MUTEX).join(", ")}]);
insert into ${s}.mutexes
select generate_series(${QUEUE_MUTEXES.first}, ${QUEUE_MUTEXES.first + QUEUE_MUTEXES.count - 1});

alter table ${s}.processes
  add column backend integer,
  add column backend_role oid,
  add column backend_since timestamptz;
`;
