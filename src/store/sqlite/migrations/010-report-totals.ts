/** What all reports of crashes come to. */
export const name = "report totals";

export const sql = `
-- Sums of all reports that were ended, also of those that are not kept: they never fall. One row, from the first on.
create table holdfast_report_totals (
  id               integer primary key check (id = 1),
  reports          integer not null,
  spent            integer not null,
  running_before   integer not null,
  jobs             integer not null,
  reset            integer not null,
  quarantined      integer not null,
  builds           integer not null,
  locks            integer not null,
  commits_missing  integer not null
);
insert into holdfast_report_totals
select 1, count(*), sum(spent), sum(running_before), sum(jobs), sum(reset), sum(quarantined), sum(builds), sum(locks),
  sum(coalesce(commits_missing, 0))
from holdfast_recoveries where state <> 'running' having count(*) > 0;
`;
