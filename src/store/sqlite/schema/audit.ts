import { NO_ENTRY } from "../../../core/recovery/audit.ts";

/** The audit is a chain: each entry has a hash that covers the one before it. */
export const sql = `
create table holdfast_audit (
  seq      integer primary key autoincrement,
  at       integer not null,
  actor    text not null,
  action   text not null,
  subject  text not null,
  before   text,
  after    text,
  hash     text
);
create index holdfast_audit_subject on holdfast_audit (subject, seq);

-- The last entry's number and hash: what the next is chained to, and how a tail that was cut off shows.
create table holdfast_audit_head (
  id    integer primary key check (id = 1),
  seq   integer not null,
  hash  text not null
);
insert into holdfast_audit_head (id, seq, hash) values (1, ${NO_ENTRY.seq}, '${NO_ENTRY.hash}');
`;

const refuse = (why: string): string => `begin\n  select raise(abort, '${why}');\nend`;
const KEPT = refuse("entries of the audit are never changed or removed");
const CHAINED = refuse("an entry of the audit comes after its head, with its hash");
const FORWARD = refuse("the head of the audit moves to an entry that comes after it");

/** Whatever a program believes, the file holds no other. Whether they are there, letter by letter, is looked at, too. */
export const GUARDS: readonly { name: string; sql: string }[] = [
  guard("holdfast_audit_unchanged", `before update on holdfast_audit ${KEPT}`),
  guard("holdfast_audit_kept", `before delete on holdfast_audit ${KEPT}`),
  guard(
    "holdfast_audit_chained",
    `before insert on holdfast_audit
when new.hash is null or new.seq <= (select seq from holdfast_audit_head where id = 1) ${CHAINED}`,
  ),
  guard(
    "holdfast_audit_forward",
    `before update on holdfast_audit_head
when new.id <> 1 or new.seq <= old.seq
  or not exists (select 1 from holdfast_audit where seq = new.seq and hash = new.hash) ${FORWARD}`,
  ),
  guard("holdfast_audit_head_kept", `before delete on holdfast_audit_head ${KEPT}`),
];

function guard(name: string, how: string): { name: string; sql: string } {
  return { name, sql: `CREATE TRIGGER ${name} ${how}` };
}
