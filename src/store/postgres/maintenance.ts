import { HoldfastError } from "../../core/text/errors.ts";
import type { JobKey } from "../../core/text/ids.ts";
import {
  type Checked,
  type Finding,
  type Gauged,
  NAMED,
  type Setting,
  STUCK,
  type StuckJob,
  type Thoroughness,
  type Vitals,
} from "../maintenance.ts";
import { publicId } from "../job-row.ts";
import type { Rows } from "./connection/driver.ts";
import { schemaVersion } from "./migrate.ts";
import type { ServerTime } from "./connection/server-state.ts";
import type { Access } from "./transactions/transaction.ts";
import type { DamageStore, MaintenanceStore } from "../store.ts";

const SETTINGS: Record<string, string | null> = {
  fsync: "on",
  full_page_writes: "on",
  data_checksums: "on",
  synchronous_commit: null,
  wal_level: null,
  max_connections: null,
  idle_in_transaction_session_timeout: null,
};
const LONG = "1 minute";

interface MaintenanceParts {
  access: Pick<Access, "read" | "at">;
  time: ServerTime;
  address: string;
  /** The schema, not quoted. */
  name: string;
}

export class Maintenance implements MaintenanceStore {
  readonly journaled = false;
  readonly epoch = 0;
  readonly isOverdue = false;
  keptBy: "thread" | "commits" = "commits";
  readonly #rows: Rows;
  readonly #s: string;
  readonly #parts: MaintenanceParts;

  constructor(s: string, parts: MaintenanceParts) {
    this.#s = s;
    this.#rows = parts.access.read;
    this.#parts = parts;
  }

  async run(): Promise<null> {
    await this.#parts.time.keep(this.#rows);
    return null;
  }

  async checkpoint(): Promise<void> {}

  async backUp(path: string): Promise<never> {
    const database = `postgres://${this.#parts.address}`;
    const file = JSON.stringify(path.replace(/(\.db)?$/, ".dump"));
    throw new HoldfastError(
      "BACKUP_BY_SERVER",
      `Holdfast makes no backups of a database on a server (${database}); use the server's tools.`,
      `Run pg_dump --format=custom --schema=${this.#parts.name} --file=${file} ${JSON.stringify(database)}, and pg_restore to bring it ` +
        "back. To go back to an instant, set up continuous archiving (PITR) on the server. Copy the artifacts' folder, too.",
    );
  }

  async diagnose(): Promise<Vitals> {
    const s = this.#s;
    const [head] = await this.#rows<[string, number | string, number | string, number | string, number | string]>(
      `select current_setting('server_version'), (select max(version) from ${s}.migrations),
              pg_database_size(current_database()), floor(extract(epoch from clock_timestamp()) * 1000),
              greatest(coalesce((select created_at from ${s}.jobs order by key desc limit 1), 0),
                       coalesce((select max(at) from (select at from ${s}.audit order by seq desc limit 100) as last), 0),
                       coalesce((select max(started_at) from ${s}.processes), 0))`,
    );
    const [version, schema, bytes, now, latest] = head as NonNullable<typeof head>;
    return {
      engine: `PostgreSQL ${version}`,
      schema: { version: Number(schema), known: schemaVersion() },
      settings: await this.#settings(),
      size: { bytes: Number(bytes), unused: 0 },
      stuck: await this.#stuck(Number(now)),
      latest: Number(latest),
      now: Number(now),
      transactions: await this.#transactions(),
      journal: null,
    };
  }

  async gauge(): Promise<Gauged> {
    const s = this.#s;
    const now = `(select ${s}.clock($1))`;
    const [row] = await this.#rows<[number | string, number | string]>(
      `select pg_database_size(current_database()),
              (select count(*) from ${s}.running where bound <= ${now} and expires_at <= ${now})`,
      this.#parts.access.at(),
    );
    const [bytes, expired] = row as NonNullable<typeof row>;
    return { size: { bytes: Number(bytes), unused: 0 }, expiredLeases: Number(expired), wal: null };
  }

  async #settings(): Promise<Setting[]> {
    const names = Object.keys(SETTINGS);
    const rows = await this.#rows<[string, string]>(
      `select name, setting from pg_settings where name in (${names.map((name) => `'${name}'`).join(", ")}) order by name`,
    );
    return rows.map(([name, value]) => ({ name, value, wanted: SETTINGS[name] ?? null }));
  }

  async #stuck(now: number): Promise<StuckJob[]> {
    const s = this.#s;
    const rows = await this.#rows<[string | null, number | string, number | string, number | string]>(
      `select job.id, job.created_at, job.key, run.expires_at from ${s}.running as run join ${s}.jobs as job on job.key = run.key
       where run.expires_at < ${now - STUCK} order by run.expires_at limit ${NAMED}`,
    );
    return rows.map(([id, createdAt, key, expires]) => ({
      id: publicId(id, Number(createdAt), Number(key) as JobKey),
      why: "expired",
      by: now - Number(expires),
    }));
  }

  async #transactions(): Promise<Vitals["transactions"]> {
    const rows = await this.#rows<[number, string | null, number | string]>(
      `select pid, nullif(application_name, ''), floor(extract(epoch from xact_start) * 1000) from pg_stat_activity
       where datname = current_database() and xact_start < clock_timestamp() - interval '${LONG}' and pid <> pg_backend_pid()
       order by xact_start limit ${NAMED}`,
    );
    return rows.map(([pid, program, since]) => ({ pid, program: program ?? "a program without a name", since: Number(since) }));
  }
}

/** Counts jobs in an unknown state or gate. The schema has no check for it, because that would slow every write down. */
export const misstated = (s: string): string => `
  select count(*) from ${s}.jobs
  where state not in ('pending', 'running', 'succeeded', 'failed', 'cancelled', 'quarantined', 'waiting')
    or (gate is not null and (state <> 'pending' or gate not in ('time', 'limit')))`;

/** Checks what only Holdfast knows. The server checks its own pages (`data_checksums`, `pg_amcheck`). */
export class Damage implements DamageStore {
  readonly damaged = null;
  readonly incomplete = null;
  readonly #rows: Rows;
  readonly #s: string;

  constructor(rows: Rows, s: string) {
    this.#rows = rows;
    this.#s = s;
  }

  async check(how: Thoroughness): Promise<Checked> {
    const s = this.#s;
    const other = (table: string, column: string) =>
      `select count(*) from ${s}.${table} where ${column}_text is not null and ${column}_hash like 'json:%'
         and ${column}_hash <> 'json:' || encode(sha256(convert_to(${column}_text, 'UTF8')), 'hex')`;
    const findings: string[] = [];
    const compared = [
      ["results", "output"],
      ["targets", "value"],
    ] as const;
    for (const [table, column] of how === "quick" ? [] : compared) {
      const n = await this.#count(other(table, column));
      if (n > 0) findings.push(`Not what was written: ${n} ${table}.`);
    }
    const unknown = how === "quick" ? 0 : await this.#count(misstated(s));
    if (unknown > 0) findings.push(`In a state that there is not: ${unknown} jobs.`);
    const artifacts = await this.#rows<[string]>(
      `select hash from ${s}.artifacts
       union select output_file from ${s}.results where output_file is not null
       union select value_file from ${s}.targets where value_file is not null`,
    );
    return { findings, artifacts: artifacts.map(([hash]) => hash), references: [], isComplete: how === "whole" };
  }

  async #count(text: string): Promise<number> {
    const [row] = await this.#rows<[string | number]>(text);
    return Number(row?.[0] ?? 0);
  }

  async findings(): Promise<Finding[]> {
    return [];
  }

  refusal(): null {
    return null;
  }
}
