import { HoldfastError } from "../../core/errors.ts";
import type { Tx } from "./group-commit.ts";
import { passPoint } from "../points.ts";
import { Audit } from "./audit.ts";
import type { Connection } from "./driver.ts";
import * as jobs from "./migrations/001-jobs.ts";
import * as queues from "./migrations/002-queues.ts";
import * as dependencies from "./migrations/003-dependencies.ts";
import * as schedules from "./migrations/004-schedules.ts";
import * as events from "./migrations/005-events.ts";
import * as builds from "./migrations/006-builds.ts";
import * as audit from "./migrations/008-audit.ts";
import * as recoveries from "./migrations/009-recoveries.ts";
import * as reportTotals from "./migrations/010-report-totals.ts";

interface Migration {
  name: string;
  sql: string;
  /** What a statement cannot do, in the same transaction. */
  fill?: (db: Connection) => void;
}

/** In order; a migration that was released never changes. */
const MIGRATIONS: readonly Migration[] = [jobs, queues, dependencies, schedules, events, builds, audit, recoveries, reportTotals];
export const SCHEMA_VERSION = MIGRATIONS.length;
/** From here on there is a chain to write to. */
const AUDITED = MIGRATIONS.indexOf(audit) + 1;

export interface MigrateOptions {
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
  const upTo = options.upTo ?? SCHEMA_VERSION;
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
  migration.fill?.(db);
  if (version === 0) whenNew(db);
  db.prepare("insert into holdfast_migrations (version, name, applied_at) values (?, ?, ?)").run(
    version + 1,
    migration.name,
    now,
  );
  // That it was made is no news, that it was changed is.
  if (version + 1 >= AUDITED && wasUsed(db)) {
    const moved = { before: { version }, after: { version: version + 1, name: migration.name } };
    new Audit(db, actor).add({ now, wrote: () => {} } as Tx, { action: "schema.migrated", subject: "schema", ...moved });
  }
  passPoint("migrate", "written");
}

/** Whoever opens it enters himself, once it is whole. */
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
  if (version <= SCHEMA_VERSION) return;
  throw new HoldfastError(
    "SCHEMA_NEWER",
    `${path} was written by a newer Holdfast (schema ${version}; this one knows ${SCHEMA_VERSION}). It was left as it is.`,
    "Update holdfast here to the version that the other processes run.",
  );
}
