/**
 * A shop: orders come in over HTTP (Hono), are rows in the shop's own tables (Drizzle), and are shipped by a worker. The
 * order and its job are one commit in one file, so that no order is forgotten and none is shipped that was not placed.
 *
 *   node examples/web-app/main.ts [folder]
 */
import { join } from "node:path";
import { serve } from "@hono/node-server";
import Database from "better-sqlite3";
import { eq } from "drizzle-orm";
import { drizzle } from "drizzle-orm/better-sqlite3";
import { open } from "../../src/index.ts";
import { exampleFolder } from "../folder.ts";
import { orders, shop } from "./app.ts";
import { Carrier } from "./carrier.ts";
import { ship } from "./jobs.ts";

using folder = exampleFolder("web-app");
const path = join(folder.path, "shop.db");

// One library for the file: Holdfast uses the one that the shop's own handle is of.
const hf = await open(path, { driver: "better-sqlite3" });
const client = new Database(path);
client.pragma("synchronous = full"); // as durable as Holdfast's own commits, else `tx` is refused
client.exec("create table if not exists orders (id text primary key, items integer not null, parcel text)");
const db = drizzle(client);

const carrier = new Carrier();
const shipping = ship.handle(async ({ input, idempotencyKey }) => {
  // The key is the same in every attempt: however often this runs, there is one parcel.
  const parcel = await carrier.send(input.order, idempotencyKey);
  db.update(orders).set({ parcel }).where(eq(orders.id, input.order)).run();
  return { parcel };
});
hf.work([shipping], { concurrency: 4 });

const server = serve({ fetch: shop(hf, db).fetch, hostname: "127.0.0.1", port: 0 });
await new Promise<void>((resolve) => server.once("listening", resolve));
const address = server.address() as { port: number };
const at = `http://127.0.0.1:${address.port}`;

// From here on it is the customers' turn.
await order("lamp", 1);
await order("lamp", 1); // an impatient one clicks twice
await order("chairs", 4);
await order("nothing", 0); // the job's schema wants at least one
for (const id of ["lamp", "chairs"]) await hf.jobs.wait(`ship ${id}`);
for (const id of ["lamp", "chairs", "nothing"]) {
  const answer = await fetch(`${at}/orders/${id}`);
  console.log(`GET  /orders/${id} → ${answer.status} ${await answer.text()}`);
}
const { succeeded } = await hf.jobs.counts({ name: "ship" });
console.log(`${await db.$count(orders)} orders, ${succeeded} jobs, ${carrier.asked} calls, ${carrier.parcels} parcels`);

server.close();
await hf.close();
client.close();

async function order(id: string, items: number): Promise<void> {
  const answer = await fetch(`${at}/orders`, { method: "POST", body: JSON.stringify({ id, items }) });
  console.log(`POST /orders ${id} (${items}) → ${answer.status} ${await answer.text()}`);
}
