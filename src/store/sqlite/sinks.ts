import type { Fence, ProcessId } from "../../core/ids.ts";
import type { SinkHold, SinkStore, SinkView } from "../sinks.ts";
import type { Audit } from "../sql/audit.ts";
import { runSync } from "../sql/script.ts";
import type { Access } from "./access.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import { NEWEST } from "./outbox.ts";

/**
 * Who may deliver: the one who has it, until its time is over or its process is gone. A time further away than it can be
 * was written before the clock was set back, and counts as over. Whoever is robbed by this loses nothing but its turn:
 * its token moves no cursor any more.
 */
const FREE = `(
  holder is null or expires_at <= :now or expires_at > :now + :ttl
  or not exists (select 1 from holdfast_processes where id = holder))`;

/** How far each sink has got with what happened. */
export class Sinks implements SinkStore {
  readonly #access: Access;
  readonly #audit: Audit;
  readonly #open: Statement;
  readonly #look: Statement;
  readonly #take: Statement;
  readonly #keep: Statement;
  readonly #advance: Statement;
  readonly #fail: Statement;
  readonly #release: Statement;
  readonly #drop: Statement;
  readonly #all: Statement;

  constructor(db: Connection, audit: Audit, access: Access) {
    this.#access = access;
    this.#audit = audit;
    // One that is known keeps its place; only what it is may have changed.
    this.#open = db.prepare(
      `insert into holdfast_sinks (name, kind, cursor, created_at) values (:name, :kind, ${NEWEST}, :now)
       on conflict (name) do update set kind = excluded.kind where kind <> excluded.kind`,
    );
    this.#look = db.prepare(`select cursor, token, ${FREE} as free from holdfast_sinks where name = :name`);
    // One statement: of two that try at once, one takes it and the other changes nothing.
    this.#take = db.prepare(
      `update holdfast_sinks set holder = :holder, token = :commit, expires_at = :now + :ttl
       where name = :name and ${FREE} returning cursor`,
    );
    this.#keep = db.prepare(
      "update holdfast_sinks set expires_at = :now + :ttl where name = :name and token = :token and holder = :holder",
    );
    // A cursor never goes back: of two writes in flight the later one counts, whichever comes first.
    this.#advance = db.prepare(
      `update holdfast_sinks
       set cursor = max(cursor, :seq), expires_at = :now + :ttl, delivered_at = :now, failures = 0, failed_at = null, error = null
       where name = :name and token = :token and holder is not null`,
    );
    this.#fail = db.prepare(
      `update holdfast_sinks set failures = failures + 1, failed_at = :now, error = :error, expires_at = :now + :ttl
       where name = :name and token = :token and holder is not null`,
    );
    this.#release = db.prepare(
      "update holdfast_sinks set holder = null, expires_at = null where name = :name and token = :token and holder is not null",
    );
    this.#drop = db.prepare("delete from holdfast_sinks where name = :name returning kind, cursor");
    // Numbers have no gaps, and what a sink has not passed is not trimmed: nobody has to count.
    this.#all = db.prepare(
      `select sink.name, sink.kind, sink.cursor, sink.holder, sink.failures, sink.error, sink.created_at as createdAt,
              sink.delivered_at as deliveredAt, sink.failed_at as failedAt,
              max(0, coalesce((select max(seq) from holdfast_events), 0) - sink.cursor) as behind,
              (select at from holdfast_events where seq > sink.cursor order by seq limit 1) as oldestAt
       from holdfast_sinks as sink order by sink.name`,
    );
  }

  open(name: string, kind: string): Promise<number> {
    return this.#access.write("sink", (tx) => {
      if (this.#open.runNamed({ name, kind, now: tx.now }) > 0) tx.wrote();
      return this.#cursor(name, tx.now) as number;
    });
  }

  /** Whoever stands by asks again and again: a refusal takes no write lock. */
  async hold(name: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null> {
    const refused = await this.#access.read(() => this.#refuses(name, by.token, by.ttl));
    return refused === "no" ? this.#access.write("hold", (tx) => this.#held(tx, name, by)) : refused;
  }

  /** Whether taking or keeping it would be refused; then there is nothing to write. */
  #refuses(name: string, token: Fence | null, ttl: number): SinkHold | null | "no" {
    const found = this.#look.get<{ cursor: number; token: Fence; free: 0 | 1 }>({ name, ttl, now: this.#access.now() });
    if (found === undefined) return null;
    return found.free === 1 || found.token === token ? "no" : { token: null, cursor: found.cursor };
  }

  #held(tx: Tx, name: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): SinkHold | null {
    const { holder, ttl, token } = by;
    if (token !== null && this.#keep.runNamed({ name, holder, ttl, token, now: tx.now }) > 0) {
      tx.wrote();
      return { token, cursor: this.#cursor(name, tx.now) as number };
    }
    const taken = this.#take.get<{ cursor: number }>({ name, holder, ttl, commit: tx.commit, now: tx.now });
    if (taken !== undefined) {
      tx.wrote();
      return { token: tx.commit, cursor: taken.cursor };
    }
    const cursor = this.#cursor(name, tx.now);
    return cursor === null ? null : { token: null, cursor };
  }

  advance(name: string, token: Fence, seq: number, ttl: number): Promise<boolean> {
    return this.#access.write("advance", (tx) => this.#wrote(tx, this.#advance.runNamed({ name, token, seq, ttl, now: tx.now })));
  }

  fail(name: string, token: Fence, error: string, ttl: number): Promise<boolean> {
    return this.#access.write("sink", (tx) => this.#wrote(tx, this.#fail.runNamed({ name, token, error, ttl, now: tx.now })));
  }

  release(name: string, token: Fence): Promise<boolean> {
    return this.#access.write("sink", (tx) => this.#wrote(tx, this.#release.runNamed({ name, token })));
  }

  drop(name: string): Promise<boolean> {
    return this.#access.write("sink", (tx) => {
      const [before] = this.#drop.all<{ kind: string; cursor: number }>({ name });
      if (before === undefined) return false;
      runSync(this.#audit.record(tx, { action: "sink.forgotten", name, before: { ...before }, after: null }));
      return true;
    });
  }

  all(): Promise<SinkView[]> {
    return this.#access.read(() => this.#all.all<SinkView>().map((row) => Object.assign({}, row)));
  }

  #cursor(name: string, now: number): number | null {
    return this.#look.get<{ cursor: number }>({ name, now, ttl: 0 })?.cursor ?? null;
  }

  #wrote(tx: Tx, changes: number): boolean {
    if (changes > 0) tx.wrote();
    return changes > 0;
  }
}
