import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import type { JobState } from "../../src/core/jobs/job.ts";
import type { PostgresServer } from "../postgres/server.ts";

export interface Move {
  key: number;
  fence: number;
  from: JobState;
  to: JobState;
}

/** What a database says itself, past the engine. */
export interface Witness {
  /** Holdfast's tables are written in braces: `select key from {jobs}`. */
  query(sql: string): Promise<Record<string, unknown>[]>;
  /** What tables there are, of Holdfast's and of others. */
  tables(): Promise<unknown[]>;
  /**
   * From now on each change of a job's state is written down by a trigger, in the transaction that makes it, whichever
   * process that is: so no process can commit a job twice, or skip a state, unseen.
   */
  watchMoves(): Promise<void>;
  moves(): Promise<Move[]>;
  /** That the rows say of each job one thing only: who holds it, or when it ended, or that it waits. */
  checkRows(): Promise<void>;
  /** True if no process is in the middle of a write at this instant. */
  isQuiet(): Promise<boolean>;
}

const MOVES = `select key, fence, "from", "to" from test_moves order by id`;

export class FileWitness implements Witness {
  readonly #path: string;

  constructor(path: string) {
    this.#path = path;
  }

  async query(sql: string): Promise<Record<string, unknown>[]> {
    const text = sql.replaceAll(/\{(\w+)\}/g, "holdfast_$1");
    return this.#within((db) =>
      db
        .prepare(text)
        .all()
        .map((row) => Object.assign({}, row)),
    );
  }

  tables(): Promise<unknown[]> {
    return this.query("select name from sqlite_master");
  }

  async watchMoves(): Promise<void> {
    this.#within((db) =>
      db.exec(`
        create table if not exists test_moves (
          id integer primary key, key integer not null, fence integer not null, "from" text not null, "to" text not null);
        create trigger if not exists test_move after update of state on holdfast_jobs when old.state <> new.state begin
          insert into test_moves (key, fence, "from", "to") values (new.key, new.fence, old.state, new.state);
        end`),
    );
  }

  async moves(): Promise<Move[]> {
    return (await this.query(MOVES)) as unknown as Move[];
  }

  async checkRows(): Promise<void> {
    assert.deepEqual(await this.query("pragma integrity_check"), [{ integrity_check: "ok" }]);
    const illegal = await this.query(
      `select key, state from {jobs} where not case state
         when 'pending' then holder is null and expires_at is null and finished_at is null
         when 'running' then fence > 0 and attempt > 0 and lease > 0 and expires_at is not null and finished_at is null
         when 'waiting' then holder is null and expires_at is null and finished_at is null
         else finished_at is not null and expires_at is null and gate is null end`,
    );
    assert.deepEqual(illegal, [], "each job is in a legal state");
    const [counter] = await this.query(
      `select (select coalesce(max(fence), 0) from {jobs}) <= commits as fences, (select count(*) from {lanes}) = lanes as lanes
       from {counter}`,
    );
    assert.deepEqual(counter, { fences: 1, lanes: 1 }, "the counters are ahead of what they gave out");
  }

  /** There is one write lock: the process that holds it is in the middle of a write. */
  async isQuiet(): Promise<boolean> {
    const db = new DatabaseSync(this.#path, { timeout: 0 });
    try {
      db.exec("begin immediate; rollback");
      return true;
    } catch {
      return false;
    } finally {
      db.close();
    }
  }

  #within<T>(use: (db: DatabaseSync) => T): T {
    const db = new DatabaseSync(this.#path, { timeout: 5_000 });
    try {
      return use(db);
    } finally {
      db.close();
    }
  }
}

export class ServerWitness implements Witness {
  readonly #server: PostgresServer;
  readonly #url: string;

  constructor(server: PostgresServer, url: string) {
    this.#server = server;
    this.#url = url;
  }

  async query(sql: string): Promise<Record<string, unknown>[]> {
    return [...(await this.#server.query(sql.replaceAll(/\{(\w+)\}/g, "holdfast.$1"), this.#url))];
  }

  tables(): Promise<unknown[]> {
    return this.query("select tablename from pg_tables where schemaname !~ '^pg_|^information_schema$'");
  }

  /** Changes of one job are written down in their order, since each locks its row. */
  async watchMoves(): Promise<void> {
    await this.query(`
      create table if not exists test_moves (
        id bigint generated always as identity, key bigint not null, fence bigint not null, "from" text not null, "to" text not null);
      create or replace function test_move() returns trigger language plpgsql as $$ begin
        insert into test_moves (key, fence, "from", "to") values (new.key, new.fence, old.state, new.state);
        return null;
      end $$;
      create or replace trigger test_move after update of state on {jobs} for each row when (old.state <> new.state)
        execute function test_move()`);
  }

  async moves(): Promise<Move[]> {
    const moves = (await this.query(MOVES)) as unknown as Move[];
    return moves.map(({ key, fence, from, to }) => ({ key: Number(key), fence: Number(fence), from, to }));
  }

  async checkRows(): Promise<void> {
    const illegal = await this.query(
      `select key, state from {jobs} where not case state
         when 'pending' then holder is null and expires_at is null and finished_at is null
         when 'running' then fence > 0 and attempt > 0 and lease > 0 and expires_at is not null and finished_at is null
         when 'waiting' then holder is null and expires_at is null and finished_at is null
         else finished_at is not null and expires_at is null and gate is null end`,
    );
    assert.deepEqual(illegal, [], "each job is in a legal state");
    const forgotten = await this.query("select key from {jobs} where state = 'running' except select key from {running}");
    assert.deepEqual(forgotten, [], "who looks for running jobs finds each of them");
    const miscounted = await this.query(
      `select fence from {claims} as claim
       where at_work <> (select count(*) from {jobs} as job where job.fence = claim.fence and state = 'running')`,
    );
    assert.deepEqual(miscounted, [], "of each claim it is known how many of its jobs still run");
    const [counter] = await this.query(
      `select (select coalesce(max(fence), 0) from {jobs}) <= (select last_value from {fence}) as fences,
         (select count(*) from {lanes}) = lanes as lanes from {counter}`,
    );
    assert.deepEqual(counter, { fences: true, lanes: true }, "the counters are ahead of what they gave out");
  }

  async isQuiet(): Promise<boolean> {
    const busy = await this.query(
      "select 1 from pg_stat_activity where datname = current_database() and application_name like 'holdfast%' and state <> 'idle'",
    );
    return busy.length === 0;
  }
}
