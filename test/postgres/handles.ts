import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import postgres from "postgres";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Store } from "../../src/store/store.ts";
import type { PostgresServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

/** Generous: it ends a test that hangs, and decides nothing else. */
const DEADLINE = 40_000;

/** Handles on one fresh schema, each with connections of its own, as so many processes would have. */
export interface Handles {
  stores: PostgresStore[];
  schema: string;
  /** As the owner of everything, in that schema. */
  query(text: string): Promise<Record<string, unknown>[]>;
  /** An open transaction of another session that takes its time. */
  bystander(): Promise<Bystander>;
  /** Resolves when so many connections wait for a lock. */
  blocked(count: number): Promise<void>;
  close(): Promise<void>;
}

export interface Bystander {
  query(text: string): Promise<Record<string, unknown>[]>;
  end(how: "commit" | "rollback"): Promise<void>;
}

export async function openHandles(server: PostgresServer, count: number, random = Math.random): Promise<Handles> {
  const schema = `holdfast_${randomBytes(4).toString("hex")}`;
  const options = { schema, clock: systemClock, injected: false, random };
  const stores: PostgresStore[] = [];
  for (let i = 0; i < count; i++) stores.push(await PostgresStore.open(server.url(), options));
  const within = `set search_path = ${schema}`;
  return {
    stores,
    schema,
    query: async (text) => [...(await server.query(`${within}; ${text}`))],
    async bystander() {
      const sql = postgres(server.url(), { max: 1, onnotice: () => {}, fetch_types: false });
      await sql.unsafe(`${within}; begin`);
      return {
        query: (text) => sql.unsafe(text),
        async end(how) {
          await sql.unsafe(how);
          await sql.end({ timeout: 5 });
        },
      };
    },
    blocked: (waiting) =>
      until(async () => {
        const [row] = await server.query(
          "select count(*)::int as n from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()",
        );
        return row?.["n"] === waiting;
      }, `${waiting} wait for a lock`),
    async close() {
      for (const store of stores) await store.close();
    },
  };
}

export async function until(holds: () => Promise<boolean>, what: string): Promise<void> {
  const since = performance.now();
  while (!(await holds())) {
    if (performance.now() - since > DEADLINE) throw new Error(`It never came to this: ${what}.`);
    await delay(5);
  }
}

/** What the counts say is what is in the rows. */
export async function agree({ query }: Handles, store: Store): Promise<void> {
  const rows = await query("select state, count(*)::int as n from jobs group by state");
  const counts = { waiting: 0, pending: 0, running: 0, succeeded: 0, failed: 0, cancelled: 0, quarantined: 0 };
  assert.deepEqual(await countJobs(store.queries), { ...counts, ...Object.fromEntries(rows.map(({ state, n }) => [state, n])) });
}
