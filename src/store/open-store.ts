import type { Clock } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { checkSchema, isAddress, parseAddress } from "./postgres/connection/address.ts";
import { canonicalPath } from "./sqlite/open.ts";
import type { DriverName } from "./sqlite/driver.ts";
import type { Durability, Store } from "./store.ts";

export { isAddress };

/** Where a store is. It is plain data, so that a thread can open the same store. */
export type StoreLocation = (SqliteLocation | PostgresLocation) & {
  name: string;
  /** Equal for the same database; null: no other handle or thread can reach it. */
  key: string | null;
  durability?: Durability;
  create?: boolean;
  mode?: number;
};

interface SqliteLocation {
  kind: "sqlite";
  path: string;
  driver: DriverName;
}

interface PostgresLocation {
  kind: "postgres";
  url: string;
  schema: string;
}

export interface LocateOptions {
  driver?: DriverName;
  schema?: string;
  durability?: Durability;
  create?: boolean;
  mode?: number;
}

export interface OpenStoreOptions {
  clock: Clock;
  /** True: the store writes the given clock's time, even if the database has a clock. */
  injected: boolean;
  random?: () => number;
  actor?: string;
  /** True: the store makes a backup before it changes the schema of a file. */
  backsUp?: boolean;
  identity?: string;
  boot?: string;
  /** True: the process does not even register, so that the store writes nothing. */
  onlyReads?: boolean;
  /** Switches the journal of a file on or off. Default: as it is. */
  journal?: boolean;
  writeWaitMs?: number;
  /** True in a thread of a process that has the database open: it may block while it waits for a lock or the server. */
  ownThread?: boolean;
}

export function locate(where: string, options: LocateOptions): StoreLocation {
  const { durability, create, mode } = options;
  if (durability !== undefined && durability !== "power" && durability !== "process") {
    throw new HoldfastError("OPTION_INVALID", `Unknown durability ${JSON.stringify(durability)}.`, 'Give "power" or "process".');
  }
  return {
    ...(isAddress(where) ? onServer(where, options) : inFile(where, options)),
    ...(durability === undefined ? {} : { durability }),
    ...(create === undefined ? {} : { create }),
    ...(mode === undefined ? {} : { mode }),
  };
}

export async function openStore(location: StoreLocation, options: OpenStoreOptions): Promise<Store> {
  const { clock, random = Math.random, ownThread = false, backsUp = false } = options;
  const common = { ...location, ...options, random };
  if (location.kind === "sqlite") {
    const { SqliteStore } = await import("./sqlite/sqlite-store.ts");
    const { path, driver } = location;
    const busyTimeout = ownThread ? 1_000 : 10;
    return SqliteStore.open(path, { ...common, driver, backsUp: backsUp && path !== ":memory:", busyTimeout });
  }
  const { PostgresStore } = await import("./postgres/postgres-store.ts");
  const store = await PostgresStore.open(location.url, { ...common, ...(ownThread ? { readers: 1, waits: true } : {}) });
  if (clock.during === undefined) return store;
  const during = (work: Promise<unknown>): void => clock.during?.(work);
  const parts = Object.fromEntries(WAITED_FOR.map((noun) => [noun, reporting(store[noun], during)]));
  return reporting<Store>(store, during, parts);
}

const WAITED_FOR = [
  "queries",
  "queues",
  "builds",
  "work",
  "audit",
  "recoveries",
  "processes",
  "locks",
  "schedules",
  "events",
] as const;

/** Reports every call, so that a clock that a test moves waits for it. */
function reporting<T extends object>(store: T, during: (work: Promise<unknown>) => void, parts: Partial<T> = {}): T {
  return new Proxy(store, {
    get(target, name) {
      const value: unknown = Reflect.get(parts, name) ?? Reflect.get(target, name, target);
      if (typeof value !== "function") return value;
      return (...given: unknown[]) => {
        const answer: unknown = Reflect.apply(value, target, given);
        if (answer instanceof Promise) during(answer);
        return answer;
      };
    },
  });
}

function onServer(where: string, { driver, schema = "holdfast" }: LocateOptions): StoreLocation {
  const { name } = parseAddress(where);
  if (driver !== undefined) {
    throw new HoldfastError(
      "OPTION_INVALID",
      `The driver ${JSON.stringify(driver)} is for files, and ${name} is a PostgreSQL server.`,
      "Leave `driver` out.",
    );
  }
  const checked = checkSchema(schema);
  return {
    kind: "postgres",
    url: where,
    schema: checked,
    name: `postgres://${name}${checked === "holdfast" ? "" : ` (${checked})`}`,
    key: `${where} ${checked}`,
  };
}

function inFile(where: string, { driver = "node:sqlite", schema }: LocateOptions): StoreLocation {
  const [, kind] = /^(?!file:)([a-z][a-z0-9+.-]+):\/\//i.exec(where) ?? [];
  // The address may contain a password, so it is not repeated.
  if (kind !== undefined) {
    throw new HoldfastError(
      "ADDRESS_INVALID",
      `Holdfast cannot open a ${kind}:// address.`,
      'Give the path of a file, ":memory:", or postgres://user:password@host:5432/database.',
    );
  }
  if (driver !== "node:sqlite" && driver !== "better-sqlite3") {
    throw new HoldfastError(
      "OPTION_INVALID",
      `Unknown driver ${JSON.stringify(driver)}.`,
      'Give "node:sqlite" or "better-sqlite3".',
    );
  }
  if (schema !== undefined) {
    throw new HoldfastError(
      "OPTION_INVALID",
      `\`schema\` needs a PostgreSQL database, and ${where} is a file.`,
      "Leave `schema` out, or give the address of a server: postgres://…",
    );
  }
  const path = canonicalPath(where);
  return { kind: "sqlite", path, driver, name: path, key: path === ":memory:" ? null : path };
}
