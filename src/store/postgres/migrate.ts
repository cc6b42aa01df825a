import { randomUUID } from "node:crypto";
import { HoldfastError } from "../../core/text/errors.ts";
import { passPoint } from "../points.ts";
import { IS_THREAD_CODE } from "../thread-code.ts";
import type { Durability } from "../store.ts";
import { Audit } from "../sql/audit.ts";
import { runAsync } from "../sql/script.ts";
import { dialectOf, Statements } from "./scripts.ts";
import { Events } from "./events.ts";
import { codeOf } from "./connection/faults.ts";
import { schemaSql } from "./schema.ts";
import type { Session } from "./connection/session.ts";

interface Migration {
  name: string;
  sql: (schema: string) => string;
}

export const MIGRATIONS: Migration[] = [{ name: "initial", sql: IS_THREAD_CODE ? refuseInThread : schemaSql }];

/** A thread opens the database of a process that has migrated it, so that its packed code needs no schema. */
function refuseInThread(): string {
  throw new Error("a thread does not change the schema");
}

export function schemaVersion(): number {
  return MIGRATIONS.length;
}

export interface Migrated {
  databaseId: string;
  durability: Durability;
}

const MIGRATION_WAIT_MS = 60_000;
/** Codes after which another process has created the schema or its first table at the same instant. */
const CREATED_BY_ANOTHER = new Set(["23505", "42P06", "42P07", "42710"]);
const MOST_TRIES = 5;

/** Migrates in one transaction, which reads the version again under the lock. A killed process leaves the schema as it was. */
export async function migrate(
  session: Session,
  options: { schema: string; durability: Durability; create: boolean; now: number | null; actor: string | null },
): Promise<Migrated> {
  const s = quoteName(options.schema);
  const version = await versionOf(session, options.schema);
  if (version === 0 && !options.create) throw noDatabase(options.schema);
  refuseNewer(version, options.schema);
  if (version < schemaVersion()) await upgradeOnce(session, options, s);
  const [row] = await session.rows<[string, Durability]>(`select database_id, durability from ${s}.database where id = 1`);
  const [databaseId, durability] = row as [string, Durability];
  return { databaseId, durability };
}

/** Retries, because before the first table exists there is no row to lock: of two processes that create it, one fails. */
async function upgradeOnce(session: Session, options: Parameters<typeof upgrade>[1], s: string): Promise<void> {
  for (let tries = 1; ; tries++) {
    try {
      return await upgrade(session, options, s);
    } catch (error) {
      if (!CREATED_BY_ANOTHER.has(codeOf(error)) || tries === MOST_TRIES) throw error;
    }
  }
}

async function upgrade(
  session: Session,
  options: { schema: string; durability: Durability; now: number | null; actor: string | null },
  s: string,
): Promise<void> {
  await session.command(`begin isolation level read committed; set local lock_timeout = ${MIGRATION_WAIT_MS}`);
  try {
    if ((await versionOf(session, options.schema)) > 0) await session.command(`lock table ${s}.migrations in exclusive mode`);
    const version = await versionOf(session, options.schema);
    refuseNewer(version, options.schema);
    passPoint("migrate", "begun");
    if (version === 0) {
      // If an owner created the schema, this role may lack the right to create one.
      const [made] = await session.rows<[boolean]>("select to_regnamespace($1) is not null", [s]);
      if (made?.[0] !== true) await session.command(`create schema if not exists ${s}`);
      await session.command(
        `create table ${s}.migrations (version integer primary key, name text not null, applied_at timestamptz not null)`,
      );
    }
    for (const [i, { name, sql }] of MIGRATIONS.entries()) {
      if (i < version) continue;
      await session.command(sql(s));
      await session.rows(`insert into ${s}.migrations (version, name, applied_at) values ($1, $2, now())`, [i + 1, name]);
    }
    if (version === 0) {
      await session.rows(
        `insert into ${s}.database (id, database_id, durability, created_at) values (1, $1, $2, ${s}.clock($3))`,
        [randomUUID(), options.durability, options.now],
      );
    } else if (version < schemaVersion()) {
      const moved = { before: { version }, after: { version: schemaVersion() } };
      const db = new Statements(s).reads({ at: options.now, rows: (text, ...values) => session.rows(text, values) });
      const audited = new Audit(dialectOf(s), { actor: options.actor, events: new Events(s) });
      await runAsync(audited.write(db, [{ action: "schema.migrated", subject: "schema", ...moved }]));
    }
    passPoint("migrate", "written");
    await session.command("commit");
  } catch (error) {
    if (!session.isLost) await session.command("rollback");
    throw error;
  }
  passPoint("migrate", "committed");
}

export async function versionOf(session: Session, schema: string): Promise<number> {
  const s = quoteName(schema);
  const [found] = await session.rows<[string | null]>(
    `select string_agg(attname, ' ' order by attname) from pg_attribute
     where attrelid = to_regclass($1) and attnum > 0 and not attisdropped`,
    [`${s}.migrations`],
  );
  const columns = found?.[0] ?? null;
  if (columns === null) return 0;
  if (columns !== "applied_at name version") throw somebodyElses(schema);
  const rows = await session.rows<[number, string]>(`select version, name from ${s}.migrations order by version`);
  const isOurs = rows.every(([version, name]) => (MIGRATIONS[version - 1]?.name ?? name) === name);
  if (!isOurs || rows[0]?.[0] !== 1) throw somebodyElses(schema);
  return (rows.at(-1) as [number, string])[0];
}

export function quoteName(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

function noDatabase(schema: string): HoldfastError {
  return new HoldfastError(
    "NO_DATABASE",
    `There is no schema ${JSON.stringify(schema)} of Holdfast in that database.`,
    "Check the address and the schema. `holdfast enqueue`, `holdfast work` and `open` create it.",
  );
}

function somebodyElses(schema: string): HoldfastError {
  return new HoldfastError(
    "SCHEMA_TAKEN",
    `The schema ${JSON.stringify(schema)} holds a table "migrations" that is not Holdfast's. It was not changed.`,
    "Give another schema with the option `schema`.",
  );
}

function refuseNewer(version: number, schema: string): void {
  if (version <= schemaVersion()) return;
  throw new HoldfastError(
    "SCHEMA_NEWER",
    `The schema ${JSON.stringify(schema)} was written by a newer Holdfast (version ${version}; this one knows ${schemaVersion()}). It was not changed.`,
    "Update holdfast here to the version that the other processes run.",
  );
}
