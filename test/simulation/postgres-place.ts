import postgres from "postgres";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Enqueued } from "../../src/store/store.ts";
import type { Schema } from "../conformance/postgres-store.ts";
import type { Place } from "./place.ts";

/** In a schema that is emptied afterwards, with one handle for all or one for each. */
export function onPostgres(url: string, schema: Schema, isShared: boolean): Place {
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  return {
    isShared,
    isSlow: true,
    open: (clock, random) => PostgresStore.open(url, { schema: schema.name, clock, injected: true, random }),
    async within(store, parts, undo) {
      const answers: Enqueued[][] = [];
      await sql.begin(async (tx) => {
        for (const jobs of parts) answers.push(await store.enqueueWithin(tx, jobs));
        if (undo !== null) throw undo;
      });
      return answers;
    },
    async close() {
      await sql.end({ timeout: 1 });
      await schema.empty();
    },
  };
}
