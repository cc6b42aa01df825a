import type { Clock } from "../core/clock.ts";
import { HoldfastError } from "../core/errors.ts";
import { canonicalPath } from "./sqlite/open.ts";
import type { DriverName } from "./sqlite/driver.ts";
import { SqliteStore } from "./sqlite/sqlite-store.ts";
import type { Durability, Store } from "./store.ts";

/** Where a store is and how it is reached: plain data, so that a thread can open the same. */
export interface StoreLocation {
  path: string;
  driver: DriverName;
  durability?: Durability;
  /** False: it must be there already. */
  create?: boolean;
}

export interface OpenStoreOptions {
  clock: Clock;
  random?: () => number;
  /** A thread with nothing else to do may block while it waits for a lock. */
  ownThread?: boolean;
}

/** The one place that knows which stores there are. */
export function locate(
  where: string,
  options: { driver?: DriverName; durability?: Durability; create?: boolean },
): StoreLocation {
  if (/^postgres(ql)?:/.test(where)) {
    throw new HoldfastError("NO_SUCH_STORE", "PostgreSQL is not supported yet.", "Give the path of a file.");
  }
  const driver = options.driver ?? "node:sqlite";
  if (driver !== "node:sqlite" && driver !== "better-sqlite3") {
    throw new HoldfastError(
      "OPTION_INVALID",
      `There is no driver ${JSON.stringify(driver)}.`,
      'Give "node:sqlite" or "better-sqlite3".',
    );
  }
  const { durability } = options;
  if (durability !== undefined && durability !== "power" && durability !== "process") {
    throw new HoldfastError(
      "OPTION_INVALID",
      `There is no durability ${JSON.stringify(durability)}.`,
      'Give "power" or "process".',
    );
  }
  const location: StoreLocation = { path: canonicalPath(where), driver };
  if (durability !== undefined) location.durability = durability;
  if (options.create !== undefined) location.create = options.create;
  return location;
}

export function openStore(location: StoreLocation, options: OpenStoreOptions): Promise<Store> {
  return SqliteStore.open(location.path, {
    driver: location.driver,
    ...(location.durability === undefined ? {} : { durability: location.durability }),
    ...(location.create === undefined ? {} : { create: location.create }),
    clock: options.clock,
    random: options.random ?? Math.random,
    busyTimeout: options.ownThread ? 1_000 : 10,
  });
}
