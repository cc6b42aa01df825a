/** What many jobs that went in by one statement are called, where others came in between. */
export const name = "receipts";

export const sql = (s: string): string => `
alter table ${s}.receipts add column keys text;
`;
