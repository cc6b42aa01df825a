/**
 * The last decision about the limits of a queue, by a name that whoever made it gave it: whoever finds his own there knows
 * that its counters are as he left them. Read and written under the lock of the queue only.
 */
export const name = "decisions";

export const sql = (s: string): string => `
create table ${s}.decisions (
  queue  text primary key,
  last   text not null
) with (fillfactor = 50);
`;
