import { linked, NO_ENTRY } from "../../../core/audit-chain.ts";
import { ENTRY, type EntryRow, toRecord } from "../../audit-row.ts";
import { listOf } from "../driver.ts";
import type { Session } from "../session.ts";

/** The audit is a chain: each entry has a hash that covers the one before it. */
export const name = "audit";

export const sql = (s: string): string => `
-- Numbers come from the head, one after the other; whoever knows nothing of it cannot write any more.
alter table ${s}.audit alter column seq drop identity, add column hash text collate "C";

-- The last entry's number and hash: what the next is chained to, and how a tail that was cut off shows. Whoever writes
-- entries locks it, last of all.
create table ${s}.audit_head (
  id    integer primary key check (id = 1),
  seq   bigint not null,
  hash  text collate "C" not null
);
insert into ${s}.audit_head (id, seq, hash) values (1, ${NO_ENTRY.seq}, '${NO_ENTRY.hash}');
`;

/** The triggers that let nobody change entries, by their names. */
export const GUARDS = [
  "audit_unchanged",
  "audit_kept",
  "audit_chained",
  "audit_head_forward",
  "audit_head_kept",
  "audit_head_stays",
] as const;

/** Whatever a program believes, the database holds no other. */
const guards = (s: string): string => `
alter table ${s}.audit alter column hash set not null;
create function ${s}.refuse_audit_change() returns trigger language plpgsql as $$
  begin
    raise exception using errcode = 'check_violation', message = 'entries of the audit are never changed or removed';
  end $$;
create function ${s}.check_audit_entry() returns trigger language plpgsql as $$
  begin
    if new.seq <= (select seq from ${s}.audit_head where id = 1) then
      raise exception using errcode = 'check_violation', message = 'an entry of the audit comes after its head';
    end if;
    return new;
  end $$;
create function ${s}.check_audit_head() returns trigger language plpgsql as $$
  begin
    if new.id <> 1 or new.seq <= old.seq
      or not exists (select 1 from ${s}.audit as entry where entry.seq = new.seq and entry.hash = new.hash) then
      raise exception using
        errcode = 'check_violation', message = 'the head of the audit moves to an entry that comes after it';
    end if;
    return new;
  end $$;
create trigger audit_unchanged before update or delete on ${s}.audit
  for each row execute function ${s}.refuse_audit_change();
create trigger audit_kept before truncate on ${s}.audit
  for each statement execute function ${s}.refuse_audit_change();
create trigger audit_chained before insert on ${s}.audit
  for each row execute function ${s}.check_audit_entry();
create trigger audit_head_forward before update on ${s}.audit_head
  for each row execute function ${s}.check_audit_head();
create trigger audit_head_kept before delete on ${s}.audit_head
  for each row execute function ${s}.refuse_audit_change();
create trigger audit_head_stays before truncate on ${s}.audit_head
  for each statement execute function ${s}.refuse_audit_change();
`;

const PAGE = 1_000;

/** What was written before there was a chain is its beginning. */
export async function fill(session: Session, s: string): Promise<void> {
  let head = NO_ENTRY;
  for (let more = true; more;) {
    const text = `select ${ENTRY} from ${s}.audit where seq > $1 order by seq limit ${PAGE}`;
    const rows = await session.rows<EntryRow>(text, [head.seq]);
    const heads = rows.map((row) => (head = linked(head, toRecord(row))));
    const set = `
      update ${s}.audit as entry set hash = one.hash
      from unnest($1::bigint[], $2::text[]) as one (seq, hash) where entry.seq = one.seq`;
    await session.rows(set, [listOf(heads.map(({ seq }) => seq)), listOf(heads.map(({ hash }) => hash))]);
    more = rows.length === PAGE;
  }
  await session.rows(`update ${s}.audit_head set seq = $1, hash = $2 where id = 1`, [head.seq, head.hash]);
  await session.command(guards(s));
}
