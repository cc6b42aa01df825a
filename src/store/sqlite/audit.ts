import { UNNAMED } from "../../core/audit.ts";
import { type AuditHead, followAudit, NO_ENTRY, unguarded } from "../../core/audit-chain.ts";
import type { AuditCheck, AuditEntry, AuditQuery, AuditVerification, NewAuditEntry } from "../audit.ts";
import { CHECKED, type CheckedRow, ENTRY, type EntryRow, headless, nextRecord, toAuditEntry, toChecked } from "../audit-row.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import { GUARDS } from "./schema/audit.ts";

type HeadRow = [seq: number, hash: string];

/** The audit's table: one writer at a time, hence one chain. */
export class Audit {
  /** Whoever has the store open; null: that was not said. */
  readonly actor: string | null;
  #written: AuditHead | null = null;
  readonly #head: Statement;
  readonly #add: Statement;
  readonly #move: Statement;
  readonly #page: Statement;
  readonly #last: Statement;
  readonly #about: Statement;
  readonly #lastAbout: Statement;
  readonly #check: Statement;
  readonly #entry: Statement;
  readonly #guards: Statement;

  constructor(db: Connection, actor: string | null) {
    this.actor = actor;
    this.#head = db.prepare("select seq, hash from holdfast_audit_head where id = 1");
    this.#add = db.prepare(
      `insert into holdfast_audit (seq, at, actor, action, subject, before, after, hash) values (?, ?, ?, ?, ?, ?, ?, ?)`,
    );
    this.#move = db.prepare("update holdfast_audit_head set seq = ?, hash = ? where id = 1");
    const read = `select ${ENTRY} from holdfast_audit`;
    const newest = (where: string) => `select * from (${read} where ${where} order by seq desc limit ?) order by seq`;
    this.#page = db.prepare(`${read} where seq > ? order by seq limit ?`);
    this.#last = db.prepare(newest("seq > ?"));
    // By holdfast_audit_subject.
    this.#about = db.prepare(`${read} where subject = ? and seq > ? order by seq limit ?`);
    this.#lastAbout = db.prepare(newest("subject = ? and seq > ?"));
    const tables = { entries: "holdfast_audit", head: "holdfast_audit_head" };
    this.#check = db.prepare(CHECKED({ ...tables, after: "?", limit: "?" }));
    this.#entry = db.prepare("select 1 from holdfast_audit where seq = ? and hash = ?");
    this.#guards = db.prepare("select sql from sqlite_master where type = 'trigger' and name = ?");
  }

  /** Its number. */
  add(tx: Tx, entry: NewAuditEntry): number {
    const head = this.head();
    if (head === null) throw headless();
    const [record, next] = nextRecord(head, entry, tx.now, this.actor ?? UNNAMED);
    const { seq, at, by, action, subject, before, after } = record;
    this.#add.run(seq, at, by, action, subject, before, after, next.hash);
    this.#move.run(next.seq, next.hash);
    this.#written = next;
    tx.wrote();
    return seq;
  }

  /** The last entry that was added since this was asked, or forgotten; null: none was. */
  takeWritten(): AuditHead | null {
    const written = this.#written;
    this.#written = null;
    return written;
  }

  /** Null where somebody has removed it. */
  head(): AuditHead | null {
    return toHead(this.#head.row() as HeadRow | undefined);
  }

  /** Whether this very entry is there. */
  has({ seq, hash }: AuditHead): boolean {
    return this.#entry.row(seq, hash) !== undefined;
  }

  page({ after, limit, subject, last = false }: AuditQuery): AuditEntry[] {
    const rows =
      subject === undefined
        ? (last ? this.#last : this.#page).rows(after, limit)
        : (last ? this.#lastAbout : this.#about).rows(subject, after, limit);
    return (rows as EntryRow[]).map(toAuditEntry);
  }

  verify({ from = NO_ENTRY, limit, known = [] }: AuditVerification): AuditCheck {
    // What was put in before the first entry would else be passed by.
    const after = from.seq === 0 ? Number.MIN_SAFE_INTEGER : from.seq;
    const { entries, head, more } = toChecked(this.#check.rows(after, limit + 1) as CheckedRow[], limit);
    const followed = followAudit({ from, rows: entries, isLast: !more, head, known });
    const missing = more || followed.fault !== null ? [] : this.#unguarded();
    const fault = missing.length > 0 ? unguarded(followed.head.seq, missing) : followed.fault;
    return { head: followed.head, entries: entries.length, more: more && fault === null, fault };
  }

  /** The names of what keeps entries from being changed, as far as it is not as it was made. */
  #unguarded(): string[] {
    return GUARDS.filter(({ name, sql }) => this.#guards.row(name)?.[0] !== sql).map(({ name }) => name);
  }
}

function toHead(row: HeadRow | undefined): AuditHead | null {
  return row === undefined ? null : { seq: row[0], hash: row[1] };
}
