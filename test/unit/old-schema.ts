import * as jobs from "../../src/store/sqlite/migrations/001-jobs.ts";
import * as queues from "../../src/store/sqlite/migrations/002-queues.ts";
import * as dependencies from "../../src/store/sqlite/migrations/003-dependencies.ts";
import * as schedules from "../../src/store/sqlite/migrations/004-schedules.ts";
import * as events from "../../src/store/sqlite/migrations/005-events.ts";
import * as builds from "../../src/store/sqlite/migrations/006-builds.ts";

const MIGRATIONS = [jobs, queues, dependencies, schedules, events, builds];

/** Makes what a file of an earlier version holds, up to this migration. */
export function oldSchema(version: number): string {
  const applied = MIGRATIONS.slice(0, version);
  return [
    "create table holdfast_migrations (version integer primary key, name text not null, applied_at integer not null)",
    ...applied.map(({ sql }) => sql),
    "insert into holdfast_database (id, database_id, durability, created_at) values (1, 'old', 'power', 1)",
    ...applied.map(
      ({ name }, i) => `insert into holdfast_migrations (version, name, applied_at) values (${i + 1}, '${name}', 1)`,
    ),
  ].join(";\n");
}
