import { existsSync, statfsSync } from "node:fs";
import { dirname, resolve } from "node:path";
import type { Circumstance } from "../core/diagnosis.ts";
import { backupsFolder, backupsIn } from "../store/backup-folder.ts";
import type { StoreLocation } from "../store/open-store.ts";
import { Arrival } from "../store/sqlite/damage/arrival.ts";
import { schemaAt } from "../store/sqlite/schema-at.ts";
import { networkFileSystem } from "../store/sqlite/file-system.ts";
import { bootId } from "./boot.ts";

/** The disk that a file is on; null: it is none. */
export function diskOf(location: StoreLocation): Circumstance["disk"] {
  if (location.kind !== "sqlite" || location.path === ":memory:") return null;
  const folder = dirname(location.path);
  const { bavail, bsize } = statfsSync(folder);
  return { folder, network: networkFileSystem(folder), free: bavail * bsize };
}

/** Whole backups of a database, in the folder where they are by its config, or by default. */
export function backupsOf(
  location: StoreLocation,
  databaseId: string | null,
  { folder, every }: { folder?: string; every?: number },
): Circumstance["backups"] {
  // A server's own tools make them, and only they know.
  if (location.kind !== "sqlite" || location.path === ":memory:") return null;
  const where = resolve(folder ?? backupsFolder(location.path));
  const whole = backupsIn(where, databaseId).filter(({ findings }) => findings.length === 0);
  const newest = whole.length === 0 ? null : Math.max(...whole.map(({ takenAt }) => takenAt));
  return { folder: where, count: whole.length, newest, every: every ?? null };
}

/** Of a file, whether or not it can be opened. */
export function schemaOf(location: StoreLocation): Circumstance["schema"] {
  if (location.kind !== "sqlite" || !existsSync(location.path)) return null;
  return schemaAt(location.path, location.driver);
}

/** To open it would bring it up to date. Behind a damaged log the schema may be newer than it looks: that one is only read. */
export async function isOfBefore(location: StoreLocation): Promise<boolean> {
  const schema = schemaOf(location);
  if (location.kind !== "sqlite" || schema === null || schema.version === 0 || schema.version >= schema.known) return false;
  const arrival = await Arrival.at(location.path, { driver: location.driver, identity: "", boot: bootId() });
  return !arrival.isLogDamaged;
}
