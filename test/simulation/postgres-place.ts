import postgres from "postgres";
import type { JobKey, ProcessId } from "../../src/core/text/ids.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Enqueued } from "../../src/store/store.ts";
import type { Schema } from "../conformance/postgres-store.ts";
import type { Place } from "./place.ts";

/** In a schema that is emptied afterwards, with one handle for all or one for each. */
export function onPostgres(url: string, schema: Schema, isShared: boolean): Place {
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  const rows = `user_rows_${schema.name}`;
  return {
    isShared,
    isSlow: true,
    async open(clock, random) {
      await sql.unsafe(`create table if not exists ${rows} (job integer)`);
      return PostgresStore.open(url, { schema: schema.name, clock, injected: true, random });
    },
    rows: {
      add: async (tx, job) => void (await tx.query(`insert into ${rows} (job) values ($1)`, [job])),
      all: async () => (await sql.unsafe(`select job from ${rows}`)).map(({ job }) => job as JobKey),
    },
    processes: async () => (await sql.unsafe(`select id from ${schema.name}.processes`)).map(({ id }) => Number(id) as ProcessId),
    async within(store, parts, undo) {
      const answers: Enqueued[][] = [];
      await sql.begin(async (tx) => {
        for (const jobs of parts) answers.push(await store.enqueueWithin(tx, jobs));
        if (undo !== null) throw undo;
      });
      return answers;
    },
    async close() {
      await sql.unsafe(`drop table if exists ${rows}`);
      await sql.end({ timeout: 1 });
      await schema.empty();
    },
  };
}
