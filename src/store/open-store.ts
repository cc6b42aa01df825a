import type { Clock } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { checkSchema, isAddress, parseAddress } from "./postgres/connection/address.ts";
import { canonicalPath } from "./sqlite/open.ts";
import type { DriverName } from "./sqlite/driver.ts";
import type { Durability, Store } from "./store.ts";

export { isAddress };

/** Where a store is and how it is reached: plain data, so that a thread can open the same. */
export type StoreLocation = (SqliteLocation | PostgresLocation) & {
  /** For people to read; no password is in it. */
  name: string;
  /** The same for all that open the same database; null: each opening is a store of its own, which no thread can reach. */
  key: string | null;
  durability?: Durability;
  /** False: it must be there already. */
  create?: boolean;
  /** Of files that are created. */
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
  /** Whether the given clock's time is written, also where there is a database with a clock of its own. */
  injected: boolean;
  random?: () => number;
  /** Who acts through it, for the audit. */
  actor?: string;
  /** Whether a backup of a file is made before its schema is changed. */
  backsUp?: boolean;
  /** Of this process, and of this run of its host. */
  identity?: string;
  boot?: string;
  /** The caller only reads, and writes nothing. */
  looks?: boolean;
  /** Whether a file is to have a journal of changes; left out: as it is. */
  journal?: boolean;
  /** How long a write to a file waits for another process's transaction, in milliseconds. */
  writeWaitMs?: number;
  /** A thread with nothing else to do, of a process that has it open: it may block while it waits for a lock, and for the server. */
  ownThread?: boolean;
}

/** The one place that knows which stores there are. */
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
  const common = {
    ...(location.durability === undefined ? {} : { durability: location.durability }),
    ...(location.create === undefined ? {} : { create: location.create }),
    clock: options.clock,
    random: options.random ?? Math.random,
    ...(options.actor === undefined ? {} : { actor: options.actor }),
  };
  // Who has a file need not load what is for a server, nor the other way round.
  if (location.kind === "sqlite") {
    const { SqliteStore } = await import("./sqlite/sqlite-store.ts");
    const { path, driver } = location;
    const { identity = "", boot = "", looks = false, ownThread = false, backsUp = false, journal, writeWaitMs } = options;
    return SqliteStore.open(path, {
      ...common,
      driver,
      identity,
      boot,
      looks,
      ownThread,
      backsUp: backsUp && path !== ":memory:",
      ...(journal === undefined ? {} : { journal }),
      ...(location.mode === undefined ? {} : { mode: location.mode }),
      ...(writeWaitMs === undefined ? {} : { writeWaitMs }),
      busyTimeout: ownThread ? 1_000 : 10,
    });
  }
  const { PostgresStore } = await import("./postgres/postgres-store.ts");
  const { url, schema } = location;
  const { injected, clock } = options;
  const store = await PostgresStore.open(url, {
    ...common,
    schema,
    injected,
    ...(options.ownThread ? { readers: 1, waits: true } : {}),
  });
  if (clock.during === undefined) return store;
  const during = (work: Promise<unknown>): void => clock.during?.(work);
  const parts = Object.fromEntries(WAITED_FOR.map((noun) => [noun, reporting(store[noun], during)]));
  return reporting<Store>(store, during, parts);
}

/** The nouns of a store whose calls a clock that is moved by hand waits for. */
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
  "sinks",
] as const;

/** For a clock that is moved by hand: every call says that it is under way. */
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
  const said = checkSchema(schema);
  return {
    kind: "postgres",
    url: where,
    schema: said,
    name: `postgres://${name}${said === "holdfast" ? "" : ` (${said})`}`,
    key: `${where} ${said}`,
  };
}

function inFile(where: string, { driver = "node:sqlite", schema }: LocateOptions): StoreLocation {
  const [, kind] = /^(?!file:)([a-z][a-z0-9+.-]+):\/\//i.exec(where) ?? [];
  // It may hold a password, so it is not repeated.
  if (kind !== undefined) {
    throw new HoldfastError(
      "ADDRESS_INVALID",
      `Holdfast cannot work on a ${kind}:// address.`,
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
