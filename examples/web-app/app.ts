import type Database from "better-sqlite3";
import { eq } from "drizzle-orm";
import type { BetterSQLite3Database } from "drizzle-orm/better-sqlite3";
import { integer, sqliteTable, text } from "drizzle-orm/sqlite-core";
import { Hono } from "hono";
import { type Holdfast, HoldfastError } from "../../src/index.ts";
import { ship } from "./jobs.ts";

export const orders = sqliteTable("orders", {
  id: text("id").primaryKey(),
  items: integer("items").notNull(),
  parcel: text("parcel"),
});

export type Db = BetterSQLite3Database & { $client: Database.Database };

/** The shop, as its customers see it. */
export function shop(hf: Holdfast, db: Db): Hono {
  const app = new Hono();

  app.post("/orders", async (c) => {
    const { id, items } = await c.req.json<{ id: string; items: number }>();
    // The order's row and its job are one commit. A second click sends the same id, and is the same order and job.
    const { duplicate } = db.transaction(
      (tx) => {
        tx.insert(orders).values({ id, items }).onConflictDoNothing().run();
        return hf.enqueue(ship, { order: id, items }, { id: `ship ${id}`, tx: db.$client });
      },
      { behavior: "immediate" },
    );
    return c.json({ id }, duplicate ? 200 : 201);
  });

  app.get("/orders/:id", async (c) => {
    const order = db
      .select()
      .from(orders)
      .where(eq(orders.id, c.req.param("id")))
      .get();
    if (order === undefined) return c.json({ error: "There is no such order." }, 404);
    const job = await hf.jobs.get(`ship ${order.id}`);
    return c.json({ ...order, shipping: job?.state ?? "unknown" });
  });

  // What the job's schema refuses was thrown inside the transaction: the row is gone, too.
  app.onError((error, c) => {
    if (!(error instanceof HoldfastError)) return c.json({ error: "Something went wrong." }, 500);
    return c.json({ error: error.message, hint: error.hint }, error.code === "INPUT_INVALID" ? 422 : 503);
  });
  return app;
}
