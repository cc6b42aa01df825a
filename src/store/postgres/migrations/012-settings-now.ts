/**
 * What is set now, also for a statement that began before somebody changed it: a function that may change things sees what
 * others have committed since.
 */
export const name = "settings now";

export const sql = (s: string): string => `
create function ${s}.settings_now() returns bigint language plpgsql volatile as
  $$ begin return (select settings from ${s}.counter where id = 1); end $$;
`;
