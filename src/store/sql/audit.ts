import {
  type AuditHead,
  type AuditRecord,
  followAudit,
  NO_ENTRY,
  subjectOf,
  unguarded,
  UNKNOWN_ACTOR,
} from "../../core/recovery/audit.ts";
import {
  type Act,
  type AuditCheck,
  type AuditEntry,
  type AuditQuery,
  type AuditVerification,
  type CheckedRow,
  headless,
  type NewAuditEntry,
  nextRecord,
  toAuditEntry,
  toChecked,
} from "../audit.ts";
import {
  type Access,
  type Dialect,
  type Events,
  type Params,
  type Reads,
  type Script,
  together,
  type Tx,
  wait,
} from "./script.ts";
import type { AuditStore } from "../store.ts";

/** Selects, as `name`, each trigger protecting audit entries that is missing, disabled or changed. */
export interface AuditGuards {
  sql: string;
  params: Params;
}

/** Each writer locks the audit's head, so entries are one chain. PostgreSQL locks it last: its holder waits for no lock. */
export class Audit {
  readonly actor: string | null;
  readonly #events: Events;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, parts: { actor: string | null; events: Events }) {
    this.actor = parts.actor;
    this.#events = parts.events;
    this.#sql = statements(dialect);
  }

  *add(tx: Tx, entry: NewAuditEntry): Script<void> {
    tx.wrote();
    if (tx.atLast === undefined) yield* this.write(tx, [entry]);
    else tx.atLast(entry);
  }

  /** Adds an audit entry and an event of the same name. `data` is the event's data, if that is more than the name. */
  *record(tx: Tx, { action, name, build, before, after }: Act, data?: object): Script<void> {
    yield* this.add(tx, { action, subject: build ?? subjectOf(action, name), before, after });
    yield* wait(this.#events.act(tx, action, name, data, build));
  }

  *write(db: Reads & Pick<Tx, "audited">, entries: readonly NewAuditEntry[]): Script<void> {
    const [locked] = yield* db.all<AuditHead & { now: number }>(this.#sql.lock);
    if (locked === undefined) throw headless();
    const { now, ...first } = locked;
    let head: AuditHead = first;
    const rows = entries.map((entry) => {
      const [record, next] = nextRecord(head, entry, now, this.actor ?? UNKNOWN_ACTOR);
      head = next;
      return { ...record, hash: next.hash };
    });
    // The entry is written before the head, so that the head never points to a missing entry.
    yield* together(db.all(this.#sql.add, { rows: JSON.stringify(rows) }), db.all(this.#sql.move, { ...head }));
    db.audited?.(head);
  }

  *head(db: Reads): Script<AuditHead | null> {
    const head = yield* db.get<AuditHead>(this.#sql.head);
    return head === undefined ? null : { ...head };
  }

  *has(db: Reads, { seq, hash }: AuditHead): Script<boolean> {
    return (yield* db.get(this.#sql.entry, { seq, hash })) !== undefined;
  }

  *page(db: Reads, { after, limit, subject, last = false }: AuditQuery): Script<AuditEntry[]> {
    const { all, about } = this.#sql[last ? "newest" : "oldest"];
    const sql = subject === undefined ? all : about;
    const rows = yield* db.all<AuditRecord>(sql, { after, limit, subject: subject ?? null });
    return rows.map(toAuditEntry);
  }

  *verify(db: Reads, { from = NO_ENTRY, limit, known = [] }: AuditVerification, guards: AuditGuards): Script<AuditCheck> {
    // A row inserted before the first entry has a number below 1.
    const after = from.seq === 0 ? Number.MIN_SAFE_INTEGER : from.seq;
    const rows = yield* db.all<CheckedRow>(this.#sql.check, { after, limit: limit + 1 });
    const { entries, head, more } = toChecked(rows, limit);
    const followed = followAudit({ from, rows: entries, isLast: !more, head, known });
    const broken = more || followed.fault !== null ? [] : yield* db.all<{ name: string }>(guards.sql, guards.params);
    const missing = broken.map(({ name }) => name);
    const fault = missing.length > 0 ? unguarded(followed.head.seq, missing) : followed.fault;
    return { head: followed.head, entries: entries.length, more: more && fault === null, fault };
  }
}

interface LogParts {
  audit: Audit;
  guards: AuditGuards;
  /** Heads of the audit that were recorded outside the database, which must contain them. */
  keptHeads: () => readonly AuditHead[];
}

export class AuditLog implements AuditStore {
  readonly #parts: LogParts;
  readonly #access: Access;

  constructor(parts: LogParts, access: Access) {
    this.#parts = parts;
    this.#access = access;
  }

  page(query: AuditQuery): Promise<AuditEntry[]> {
    return this.#access.read((db) => this.#parts.audit.page(db, query));
  }

  verify(query: AuditVerification): Promise<AuditCheck> {
    const { audit, guards, keptHeads } = this.#parts;
    return this.#access.read((db) => {
      const known = [...keptHeads(), ...(query.known ?? [])];
      return audit.verify(db, { ...query, known }, guards);
    });
  }

  record(act: Act): Promise<void> {
    return this.#access.write("audit", (tx) => this.#parts.audit.record(tx, act));
  }

  recordOnce(act: Act): Promise<void> {
    return this.#access.write("audit", (tx) => this.#recordOnce(tx, act));
  }

  *#recordOnce(tx: Tx, act: Act): Script<void> {
    const { audit } = this.#parts;
    const recorded = yield* audit.page(tx, { after: 0, limit: 1, subject: subjectOf(act.action, act.name) });
    if (recorded.length === 0) yield* audit.record(tx, act);
  }
}

function statements({ table, rows, locking }: Dialect) {
  const read = `select seq, at, actor as "by", action, subject, before, after from ${table("audit")}`;
  const head = `from ${table("audit_head")} where id = 1`;
  const oldest = (where: string) => `${read} where ${where} order by seq limit :limit`;
  const newest = (where: string) =>
    `select * from (${read} where ${where} order by seq desc limit :limit) as newest order by seq`;
  const about = "subject = :subject and seq > :after";
  const columns = { seq: "bigint", at: "bigint", by: "text", action: "text", subject: "text" } as const;
  const texts = { before: "text", after: "text", hash: "text" } as const;
  return {
    lock: `select seq, hash, :clock as now ${head}${locking}`,
    add: `
      insert into ${table("audit")} (seq, at, actor, action, subject, before, after, hash)
      select seq, at, "by", action, subject, before, after, hash from ${rows(":rows", { ...columns, ...texts })} as entry
      order by seq returning seq`,
    move: `update ${table("audit_head")} set seq = :seq, hash = :hash where id = 1 returning seq`,
    head: `select seq, hash ${head}`,
    entry: `select 1 from ${table("audit")} where seq = :seq and hash = :hash`,
    oldest: { all: oldest("seq > :after"), about: oldest(about) },
    newest: { all: newest("seq > :after"), about: newest(about) },
    // One statement, so that entries and head are of one instant. It has a row even if there are no entries.
    check: `
      select head.seq as "headSeq", head.hash as "headHash", entry.*
      from (select 1 as one) as always left join ${table("audit_head")} as head on head.id = 1
      left join (
        select seq, at, actor as "by", action, subject, before, after, hash from ${table("audit")}
        where seq > :after order by seq limit :limit) as entry on true
      order by entry.seq`,
  };
}
