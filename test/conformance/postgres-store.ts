import assert from "node:assert/strict";
import { randomBytes, randomUUID } from "node:crypto";
import postgres from "postgres";
import type { Clock } from "../../src/core/text/duration.ts";
import { misstated } from "../../src/store/postgres/maintenance.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Store } from "../../src/store/store.ts";
import { testClock } from "../../src/testing/index.ts";
import type { PostgresServer } from "../postgres/server.ts";
import type { OpenStore, StoreUnderTest, UserTable } from "./stores.ts";

/**
 * On a database of its own, where each case finds a schema that no case has used. `otherLanes`: definitions without jobs that
 * every claim finds there, too.
 */
export function postgresOn(server: () => PostgresServer, otherLanes = 0): StoreUnderTest {
  const free: Schema[] = [];
  return {
    name: otherLanes === 0 ? "a schema on PostgreSQL" : `a schema on PostgreSQL with ${otherLanes} other definitions`,
    alone: null,
    outside: "the caller's own synchronous work cannot wait for a server",
    async open(clock) {
      const schema = free.pop() ?? (await Schema.make(server(), otherLanes));
      const opened = await openOn(server(), schema.name, clock);
      return {
        ...opened,
        async cleanup() {
          await opened.cleanup();
          await schema.empty();
          free.push(schema);
        },
      };
    },
  };
}

async function openOn(server: PostgresServer, schema: string, clock: Clock): Promise<OpenStore> {
  const handles: Store[] = [];
  const another = async () => {
    const options = { schema, clock, injected: true, random: () => 0.5 };
    const store = await PostgresStore.open(server.url(), options);
    handles.push(store);
    return store;
  };
  const close = async () => {
    for (const handle of handles.splice(0)) await handle.close();
  };
  return {
    store: await another(),
    another,
    async reopen() {
      await close();
      return another();
    },
    userTable: () => postgresTable((text) => server.query(text), schema),
    cleanup: close,
  };
}

const userRows = (schema: string): string => `user_rows_${schema}`;

/** Outside of the store's schema. */
export async function postgresTable(
  query: (text: string) => Promise<Record<string, unknown>[]>,
  schema: string,
): Promise<UserTable> {
  const table = userRows(schema);
  await query(`create table ${table} (n integer primary key)`);
  return {
    add: async (tx, n) => void (await tx.query(`insert into ${table} (n) values ($1)`, [n])),
    all: async () => (await query(`select n from ${table} order by n`)).map(({ n }) => Number(n)),
  };
}

/**
 * A schema that becomes as it was when it was made. To make one takes a hundred files, a tenth of a second and more; to
 * empty one takes a hundredth.
 */
export class Schema {
  readonly name: string;
  readonly #fresh: { statement: string; databaseId: string };
  /** Kept from case to case: a new one costs as much as what is done over it. */
  readonly #sql: postgres.Sql;

  static async make(server: PostgresServer, otherLanes = 0): Promise<Schema> {
    const name = `holdfast_${randomBytes(4).toString("hex")}`;
    const { store, cleanup } = await openOn(server, name, testClock());
    const { databaseId } = store;
    await cleanup();
    await server.query(`
      insert into ${name}.lanes (queue, name, version) select 'other ' || n, 'other ' || n, 1 from generate_series(1, ${otherLanes}) as n;
      update ${name}.counter set lanes = ${otherLanes}`);
    return new Schema(server, name, { statement: await refresh(server, name), databaseId });
  }

  private constructor(server: PostgresServer, name: string, fresh: { statement: string; databaseId: string }) {
    this.name = name;
    this.#fresh = fresh;
    this.#sql = postgres(server.url(), { max: 1, onnotice: () => {}, fetch_types: false, idle_timeout: 1 });
  }

  /** Fails if a client still uses the database: this finds a closed handle that still holds a row. */
  async empty(): Promise<void> {
    const { statement, databaseId } = this.#fresh;
    assert.deepEqual([...(await this.#sql.unsafe(misjudged(this.name)))], [], "what the claims say runs is what runs");
    const [row] = await this.#sql.unsafe(misstated(this.name));
    assert.equal(Number(row?.["count"]), 0, "every job is in a state that there is");
    // The audit table refuses to be emptied.
    const begin = "set lock_timeout = '10s'; begin; set local session_replication_role = replica";
    const userTable = `drop table if exists ${userRows(this.name)}`;
    await this.#sql.unsafe(`${begin}; ${statement.replaceAll(databaseId, randomUUID())}; ${userTable}; commit`);
  }
}

/** Claims that differ from the jobs that run: in who and how many they are, in who holds them, or by a lease that ends sooner. */
export function misjudged(schema: string): string {
  return `
    select * from (
      select fence, holder, count(*) as n, min(expires_at) as expires_at, array_agg(key) as keys
      from ${schema}.jobs where state = 'running' group by fence, holder) as job
    full join ${schema}.claims as claim on claim.fence = job.fence
    where claim.at_work is distinct from job.n or claim.holder is distinct from job.holder
      or claim.expires_at > job.expires_at or not job.keys <@ claim.jobs`;
}

/** What brings the schema back to what is in it now: its rows, and where its sequences are. */
async function refresh(server: PostgresServer, schema: string): Promise<string> {
  // Tables that refer to others are younger than those.
  const tables = await server.query(
    `select quote_ident(relname) as name from pg_class
      where relnamespace = '${schema}'::regnamespace and relkind = 'r' order by oid desc`,
  );
  const kept = await Promise.all(
    tables.map(async ({ name }) => {
      const table = `${schema}.${String(name)}`;
      const [{ rows }] = (await server.query(`select jsonb_agg(t)::text as rows from ${table} as t`)) as [
        { rows: string | null },
      ];
      return rows === null
        ? null
        : `insert into ${table} overriding system value select * from jsonb_populate_recordset(null::${table}, $rows$${rows}$rows$)`;
    }),
  );
  const sequences = await server.query(
    `select format('select setval(%L, %s, %L)', format('%I.%I', schemaname, sequencename), coalesce(last_value, start_value),
        last_value is not null) as back from pg_sequences where schemaname = '${schema}'`,
  );
  return [
    ...tables.map(({ name }) => `delete from ${schema}.${String(name)}`),
    ...kept.filter((statement) => statement !== null).toReversed(),
    ...sequences.map(({ back }) => String(back)),
  ].join("; ");
}
