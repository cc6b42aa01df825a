/** Jobs that wait for others. */
export const name = "dependencies";

export const sql = `
create table holdfast_waits (
  job       integer not null,
  upstream  integer not null,
  primary key (job, upstream)
) without rowid;
create index holdfast_waits_upstream on holdfast_waits (upstream, job);
`;
