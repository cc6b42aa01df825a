import * as audit from "./schema/audit.ts";
import * as builds from "./schema/builds.ts";
import * as jobs from "./schema/jobs.ts";
import * as queues from "./schema/queues.ts";
import * as recoveries from "./schema/recoveries.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { passPoint } from "../points.ts";
import { Audit } from "../sql/audit.ts";
import { runSync } from "../sql/script.ts";
import { DIALECT, txOn } from "./scripts.ts";
import { connect, type Connection, type DriverName } from "./driver.ts";
import { Events } from "./jobs/events.ts";
import { faultOf } from "./faults.ts";

interface Migration {
  name: string;
  sql: string;
}

/** In order; a migration that was released never changes. */
export const MIGRATIONS: Migration[] = [
  {
    name: "initial",
    sql:
      [jobs, queues, builds, audit, recoveries].map(({ sql }) => sql).join("") +
      audit.GUARDS.map(({ sql }) => `${sql};\n`).join(""),
  },
];

/** The version of the schema that this Holdfast reads and writes. */
export function schemaVersion(): number {
  return MIGRATIONS.length;
}

interface MigrateOptions {
  path: string;
  now: number;
  /** Who opens it, for the audit. */
  actor: string | null;
  whenNew: (db: Connection) => void;
  /** No further than this version; left out: to the newest. */
  upTo?: number;
}

/**
 * Brings the schema up to date, each step in one transaction that looks again what is there: two processes that start
 * at once, or one killed in the middle, leave a whole schema of some version.
 */
export function migrate(db: Connection, options: MigrateOptions): void {
  refuseNewer(versionOf(db), options.path);
  const upTo = options.upTo ?? schemaVersion();
  while (versionOf(db) < upTo) {
    db.exec("begin immediate");
    try {
      step(db, options);
      db.exec("commit");
    } catch (error) {
      if (db.inTransaction) db.exec("rollback");
      throw error;
    }
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
  db.prepare("insert into holdfast_migrations (version, name, applied_at) values (?, ?, ?)").run(
    version + 1,
    migration.name,
    now,
  );
  // That it was made is no news, that it was changed is.
  if (version > 0 && wasUsed(db)) {
    const moved = { before: { version }, after: { version: version + 1, name: migration.name } };
    const audited = new Audit(DIALECT, { actor, events: new Events(db) });
    runSync(audited.add(txOn(db, now), { action: "schema.migrated", subject: "schema", ...moved }));
  }
  passPoint("migrate", "written");
}

/** The process that opens it registers itself, once it is whole. */
export function wasUsed(db: Connection): boolean {
  return (db.prepare("select commits from holdfast_counter where id = 1").row() as [number])[0] > 0;
}

/** 0: Holdfast has never been in this file. */
export function versionOf(db: Connection): number {
  const table = db.prepare("select 1 from sqlite_master where type = 'table' and name = 'holdfast_migrations'").row();
  if (table === undefined) return 0;
  return (db.prepare("select coalesce(max(version), 0) from holdfast_migrations").row() as [number])[0];
}

function refuseNewer(version: number, path: string): void {
  if (version <= schemaVersion()) return;
  throw new HoldfastError(
    "SCHEMA_NEWER",
    `${path} was written by a newer Holdfast (schema ${version}; this one knows ${schemaVersion()}). It was not changed.`,
    "Update holdfast here to the version that the other processes run.",
  );
}

/** The schema of a file that may be an older Holdfast's, without bringing it up to date; null: that cannot be read. */
export function schemaAt(path: string, driver: DriverName): { version: number; known: number } | null {
  try {
    const db = connect(driver, path, { busyTimeout: 100, readOnly: true });
    try {
      return { version: versionOf(db), known: schemaVersion() };
    } finally {
      db.close();
    }
  } catch (error) {
    if (faultOf(error) === null) throw error;
    return null;
  }
}
