/**
 * The states of a job and its gates are what `core/` decides, and are no longer compared with a list by the server: it read
 * that list anew for every statement that writes a job, which was a tenth of what the statement cost. `check()` looks.
 * Where somebody has dropped or renamed them by hand there is nothing to do: what he keeps costs him time, and no more.
 */
export const name = "bare states";

export const sql = (s: string): string => `
alter table ${s}.jobs drop constraint if exists jobs_state_check, drop constraint if exists jobs_check;
`;
