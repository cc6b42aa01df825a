/**
 * Damage shows. sum: a checksum of what never changes in a row, null in rows that are older than it. A job's has
 * another above its lowest 27 bits, of its output or its error: one column more in each row that is rewritten costs a
 * twentieth of settling. epoch: rises when the database is put back to an earlier state, so that no fence of before is
 * ever seen again.
 */
export const name = "checksums";

export const sql = `
alter table holdfast_jobs add column sum integer;
alter table holdfast_notes add column sum integer;
alter table holdfast_schedules add column sum integer;
alter table holdfast_events add column sum integer;
alter table holdfast_database add column epoch integer not null default 0;
`;
