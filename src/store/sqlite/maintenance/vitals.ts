import type { JobKey } from "../../../core/text/ids.ts";
import { isLong, type WalView } from "../../../core/recovery/loss.ts";
import { publicId } from "../../job-row.ts";
import type { Durability } from "../../store.ts";
import { type Gauged, NAMED, type Setting, STUCK, type StuckJob, type Vitals, type VitalsStore } from "../../vitals.ts";
import type { StoreAccess } from "../scripts.ts";
import type { Connection, DriverName } from "../driver.ts";
import { schemaVersion, versionOf } from "../migrate.ts";
import { FRAME_HEADER } from "./wal.ts";
import { readersOf } from "./checkpoint.ts";

interface Parts {
  path: string;
  driver: DriverName;
  durability: Durability;
}

/** How a file stands. */
export class SqliteVitals implements VitalsStore {
  readonly #db: Connection;
  readonly #parts: Parts;
  readonly #access: Pick<StoreAccess, "now" | "read">;

  constructor(db: Connection, parts: Parts, access: Pick<StoreAccess, "now" | "read">) {
    this.#db = db;
    this.#parts = parts;
    this.#access = access;
  }

  async wal({ readers: asked = false }: { readers?: boolean } = {}): Promise<WalView | null> {
    const { path } = this.#parts;
    if (path === ":memory:") return null;
    const { size, wal, programs } = await this.#access.read(() => this.#walNow());
    if (wal.bytes === 0 || !(asked || isLong(wal))) return wal;
    const readers = await readersOf(path, size, programs);
    return { ...wal, readers: readers.filter(({ pid }) => pid !== process.pid) };
  }

  look(): Promise<Vitals> {
    return this.#access.read(() => this.#lookNow());
  }

  gauge(): Promise<Gauged> {
    return this.#access.read(() => ({ size: this.#size(), expiredLeases: this.#expired(this.#access.now()) }));
  }

  #walNow(): { size: number; wal: WalView; programs: Map<number, string> } {
    const size = this.#number("page_size");
    const [, frames, copied] = this.#db.prepare("pragma wal_checkpoint(noop)").row() as [number, number, number];
    const [bytes, inDatabase] = [frames, copied].map((n) => Math.max(0, n) * (size + FRAME_HEADER)) as [number, number];
    const rows = this.#db.prepare("select pid, program from holdfast_processes").rows() as [number, string][];
    return { size, wal: { bytes, copied: inDatabase, readers: [] }, programs: new Map(rows) };
  }

  #lookNow(): Vitals {
    const { driver } = this.#parts;
    const [version] = this.#db.prepare("select sqlite_version()").row() as [string];
    const now = this.#access.now();
    return {
      engine: `SQLite ${version} (${driver})`,
      schema: { version: versionOf(this.#db), known: schemaVersion() },
      settings: this.#settings(),
      size: this.#size(),
      stuck: this.#stuck(now),
      latest: this.#latest(),
      now,
      transactions: [],
    };
  }

  /** With what stands in its log alone so far. */
  #size(): Gauged["size"] {
    const page = this.#number("page_size");
    return { bytes: this.#number("page_count") * page, unused: this.#number("freelist_count") * page };
  }

  /** By holdfast_jobs_running: it reads those that it counts. */
  #expired(now: number): number {
    const statement = this.#db.prepare("select count(*) from holdfast_jobs where state = 'running' and expires_at <= ?");
    return (statement.row(now) as [number])[0];
  }

  #settings(): Setting[] {
    const { path, durability } = this.#parts;
    const inFile = path !== ":memory:";
    const wanted: Record<string, string | null> = {
      journal_mode: inFile ? "wal" : null,
      synchronous: inFile ? (durability === "power" ? "2" : "1") : null,
      journal_size_limit: null,
      wal_autocheckpoint: null,
      foreign_keys: null,
      page_size: null,
      auto_vacuum: null,
      busy_timeout: null,
    };
    return Object.entries(wanted).map(([name, value]) => {
      const found = this.#db.prepare(`pragma ${name}`).row()?.[0] ?? "";
      return { name, value: String(found), wanted: value };
    });
  }

  /** By holdfast_jobs_running and holdfast_jobs_aside: what runs and what waits, and no history. */
  #stuck(now: number): StuckJob[] {
    const before = now - STUCK;
    const running = this.#db
      .prepare(
        `select job.id, job.created_at, job.key, job.expires_at, job.started_at + json_extract(policy.body, '$.timeout')
         from holdfast_jobs as job left join holdfast_policies as policy on policy.id = job.policy
         where job.state = 'running' and (job.expires_at < ?1 or job.started_at + json_extract(policy.body, '$.timeout') < ?1)
         order by job.expires_at limit ${NAMED}`,
      )
      .rows(before) as [string | null, number, JobKey, number, number | null][];
    const waiting = this.#db
      .prepare(
        `select job.id, job.created_at, job.key from holdfast_jobs as job
         where job.state = 'waiting' and not exists (select 1 from holdfast_waits where holdfast_waits.job = job.key) limit ${NAMED}`,
      )
      .rows() as [string | null, number, JobKey][];
    return [
      ...running.map(([id, createdAt, key, expires, due]): StuckJob => {
        const expired = expires < before;
        return {
          id: publicId(id, createdAt, key),
          why: expired ? "expired" : "overdue",
          by: now - (expired ? expires : (due ?? now)),
        };
      }),
      ...waiting.map(([id, createdAt, key]): StuckJob => ({ id: publicId(id, createdAt, key), why: "forgotten", by: null })),
    ];
  }

  /** Of the last of each: they are added in order, so that only a clock that was set back makes an earlier one later. */
  #latest(): number {
    const [latest] = this.#db
      .prepare(
        `select max(coalesce((select created_at from holdfast_jobs order by key desc limit 1), 0),
                    coalesce((select max(at) from (select at from holdfast_audit order by seq desc limit 100)), 0),
                    coalesce((select max(started_at) from holdfast_processes), 0))`,
      )
      .row() as [number];
    return latest;
  }

  #number(pragma: string): number {
    return (this.#db.prepare(`pragma ${pragma}`).row() as [number])[0];
  }
}
