import { NO_ENTRY } from "../../../core/recovery/audit.ts";

export const sql = (s: string): string => `
create table ${s}.audit (
  seq      bigint primary key,
  at       bigint not null,
  actor    text not null,
  action   text not null,
  subject  text collate "C" not null,
  before   text,
  after    text,
  hash     text collate "C" not null
);
create index audit_subject on ${s}.audit (subject, seq);

-- The last entry's number and hash: the next entry is chained to it, and a tail that was cut off shows. Writers lock it last.
create table ${s}.audit_head (
  id    integer primary key check (id = 1),
  seq   bigint not null,
  hash  text collate "C" not null
);
insert into ${s}.audit_head (id, seq, hash) values (1, ${NO_ENTRY.seq}, '${NO_ENTRY.hash}');

-- Triggers that reject every other change.
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

export const GUARDS = [
  "audit_unchanged",
  "audit_kept",
  "audit_chained",
  "audit_head_forward",
  "audit_head_kept",
  "audit_head_stays",
] as const;
