import type { JobKey } from "../../../core/text/ids.ts";
import { publicId } from "../../job-row.ts";
import { type Gauged, NAMED, type Setting, STUCK, type StuckJob, type Vitals, type VitalsStore } from "../../vitals.ts";
import type { Access } from "../transactions/access.ts";
import { schemaVersion } from "../migrate.ts";
import type { Rows } from "./driver.ts";

/** Settings that Holdfast's promises rest on; `synchronous_commit` is set by each connection. */
const SETTINGS: Record<string, string | null> = {
  fsync: "on",
  full_page_writes: "on",
  data_checksums: "on",
  synchronous_commit: null,
  wal_level: null,
  max_connections: null,
  idle_in_transaction_session_timeout: null,
};
/** A transaction that is open for longer is named. */
const LONG = "1 minute";

/** How a database on a server stands, as far as whoever connects may see. */
export class PostgresVitals implements VitalsStore {
  readonly #rows: Rows;
  readonly #at: () => number | null;
  readonly #schema: string;

  /** `schema` is quoted. */
  constructor(schema: string, { read, at }: Pick<Access, "read" | "at">) {
    this.#rows = read;
    this.#at = at;
    this.#schema = schema;
  }

  async wal(): Promise<null> {
    return null;
  }

  async look(): Promise<Vitals> {
    const s = this.#schema;
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
    };
  }

  async gauge(): Promise<Gauged> {
    const s = this.#schema;
    const now = `(select ${s}.clock($1))`;
    // By claims_expiring: it reads those that it counts.
    const [row] = await this.#rows<[number | string, number | string]>(
      `select pg_database_size(current_database()),
              (select count(*) from ${s}.running where bound <= ${now} and expires_at <= ${now})`,
      this.#at(),
    );
    const [bytes, expired] = row as NonNullable<typeof row>;
    return { size: { bytes: Number(bytes), unused: 0 }, expiredLeases: Number(expired) };
  }

  async #settings(): Promise<Setting[]> {
    const names = Object.keys(SETTINGS);
    const rows = await this.#rows<[string, string]>(
      `select name, setting from pg_settings where name in (${names.map((name) => `'${name}'`).join(", ")}) order by name`,
    );
    return rows.map(([name, value]) => ({ name, value, wanted: SETTINGS[name] ?? null }));
  }

  async #stuck(now: number): Promise<StuckJob[]> {
    const s = this.#schema;
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

  /** Those of others are shown to whoever may see them. */
  async #transactions(): Promise<Vitals["transactions"]> {
    const rows = await this.#rows<[number, string | null, number | string]>(
      `select pid, nullif(application_name, ''), floor(extract(epoch from xact_start) * 1000) from pg_stat_activity
       where datname = current_database() and xact_start < clock_timestamp() - interval '${LONG}' and pid <> pg_backend_pid()
       order by xact_start limit ${NAMED}`,
    );
    return rows.map(([pid, program, since]) => ({ pid, program: program ?? "a program without a name", since: Number(since) }));
  }
}
