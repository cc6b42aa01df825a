import { mkdtempSync, rmSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import Better from "better-sqlite3";
import { type Holdfast, open, type OpenOptions, type TransactionHandle } from "../../src/index.ts";

export type Driver = NonNullable<OpenOptions["driver"]>;
export const DRIVERS: readonly Driver[] = ["node:sqlite", "better-sqlite3"];

/** A user's own handle, of either library. */
export type Handle = TransactionHandle & { close(): unknown };

/** A database that is the user's own, with a table of orders in it, Holdfast on it, and handles beside it. */
export interface Shop {
  hf: Holdfast;
  path: string;
  folder: string;
  /** Another handle of the same library, fit to enqueue with. */
  handle(synchronous?: "full" | "normal" | "off" | null): Handle;
  orders(): number[];
}

export async function shop(t: TestContext, driver: Driver, options: OpenOptions = {}): Promise<Shop> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-tx-"));
  const path = join(folder, "shop.db");
  const handles: Handle[] = [];
  const hf = await open(path, { driver, ...options });
  t.after(async () => {
    for (const handle of handles) handle.close();
    await hf.close();
    rmSync(folder, { recursive: true, force: true });
  });
  const handle = (synchronous: "full" | "normal" | "off" | null = "full") => {
    const made = openHandle(driver, path);
    if (synchronous !== null) made.exec(`pragma synchronous = ${synchronous}`);
    handles.push(made);
    return made;
  };
  const reader = handle();
  reader.exec("create table orders (id integer primary key)");
  const orders = () => (reader.prepare("select id from orders order by id").all() as { id: number }[]).map(({ id }) => id);
  return { hf, path, folder, handle, orders };
}

/** It never waits inside SQLite, so a test cannot hang there. */
export function openHandle(driver: Driver, path: string): Handle {
  return driver === "node:sqlite" ? new DatabaseSync(path, { timeout: 0 }) : (new Better(path, { timeout: 0 }) as Handle);
}

export function addOrder(db: TransactionHandle, id: number): void {
  db.prepare("insert into orders (id) values (?)").run(id);
}
