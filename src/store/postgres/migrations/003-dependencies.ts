/** Jobs that wait for others. */
export const name = "dependencies";

export const sql = (s: string): string => `
create table ${s}.waits (
  job       bigint not null,
  upstream  bigint not null,
  primary key (job, upstream)
);
create index waits_upstream on ${s}.waits (upstream, job);
`;
