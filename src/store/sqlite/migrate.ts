import { SCHEMA } from "./schema.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { passPoint } from "../points.ts";
import { Audit } from "../sql/audit.ts";
import { runSync } from "../sql/script.ts";
import { DIALECT, txOn } from "./scripts.ts";
import { connect, type Connection, type DriverName, inTransaction, scalar } from "./driver.ts";
import { Events } from "./jobs/events.ts";
import { faultOf } from "./faults.ts";

interface Migration {
  name: string;
  sql: string;
}

/** Migrations in order. A migration that was released never changes. */
export const MIGRATIONS: Migration[] = [{ name: "initial", sql: SCHEMA }];

export function schemaVersion(): number {
  return MIGRATIONS.length;
}

interface MigrateOptions {
  path: string;
  now: number;
  actor: string | null;
  whenNew: (db: Connection) => void;
  upTo?: number;
}

// Each step is one transaction that reads the version again, so that two starting processes, or a kill, leave a whole schema.
export function migrate(db: Connection, options: MigrateOptions): void {
  refuseNewer(versionOf(db), options.path);
  const upTo = options.upTo ?? schemaVersion();
  while (versionOf(db) < upTo) {
    inTransaction(db, () => step(db, options));
    passPoint("migrate", "committed");
  }
}

function step(db: Connection, { path, now, actor, whenNew }: MigrateOptions): void {
  const version = versionOf(db);
  refuseNewer(version, path);
  const migration = MIGRATIONS[version];
  if (migration === undefined) return;
  passPoint("migrate", "begun");
  if (version === 0) {
    db.exec("create table holdfast_migrations (version integer primary key, name text not null, applied_at integer not null)");
  }
  db.exec(migration.sql);
  if (version === 0) whenNew(db);
  const insert = db.prepare("insert into holdfast_migrations (version, name, applied_at) values (?, ?, ?)");
  insert.run(version + 1, migration.name, now);
  if (version > 0 && wasUsed(db)) {
    const moved = { before: { version }, after: { version: version + 1, name: migration.name } };
    const audited = new Audit(DIALECT, { actor, events: new Events(db) });
    runSync(audited.add(txOn(db, now), { action: "schema.migrated", subject: "schema", ...moved }));
  }
  passPoint("migrate", "written");
}

export function wasUsed(db: Connection): boolean {
  return scalar<number>(db, "select commits from holdfast_counter where id = 1") > 0;
}

export function versionOf(db: Connection): number {
  const table = scalar(db, "select 1 from sqlite_master where type = 'table' and name = 'holdfast_migrations'");
  return table === undefined ? 0 : scalar(db, "select coalesce(max(version), 0) from holdfast_migrations");
}

export function refuseNewer(version: number, path: string): void {
  if (version <= schemaVersion()) return;
  throw new HoldfastError(
    "SCHEMA_NEWER",
    `${path} was written by a newer Holdfast (schema ${version}; this one knows ${schemaVersion()}). It was not changed.`,
    "Update holdfast here to the version that wrote it.",
  );
}

/** Reads the version without migrating. Null: the file is unreadable. */
export function schemaAt(path: string, driver: DriverName): { version: number; known: number } | null {
  try {
    using db = connect(driver, path, { busyTimeout: 100, readOnly: true });
    return { version: versionOf(db), known: schemaVersion() };
  } catch (error) {
    if (faultOf(error) === null) throw error;
    return null;
  }
}
