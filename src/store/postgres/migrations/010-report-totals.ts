/** What all reports of crashes come to. */
export const name = "report totals";

export const sql = (s: string): string => `
-- Sums of all reports that were ended, also of those that are not kept: they never fall. One row, from the first on.
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
insert into ${s}.report_totals
select 1, count(*), sum(spent), sum(running_before), sum(jobs), sum(reset), sum(quarantined), sum(builds), sum(locks),
  sum(coalesce(commits_missing, 0))
from ${s}.recoveries where state <> 'running' having count(*) > 0;
`;
