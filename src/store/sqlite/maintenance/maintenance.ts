import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { endianness } from "node:os";
import { promisify } from "node:util";
import { isLong, type WalReader, type WalView } from "../../../core/recovery/loss.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { publicId } from "../../job-row.ts";
import { type Gauged, type JournalLag, NAMED, type Setting, STUCK, type StuckJob, type Vitals } from "../../maintenance.ts";
import type { Durability, MaintenanceStore } from "../../store.ts";
import { type Connection, type DriverName, scalar } from "../driver.ts";
import { schemaVersion, versionOf } from "../migrate.ts";
import type { StoreAccess } from "../scripts.ts";
import { epochIn } from "./epoch.ts";
import { locksOn } from "./open-files.ts";
import { FRAME_HEADER, walSize } from "./wal.ts";
import { backUp } from "./backup/backups.ts";
import type { Clock } from "../../../core/text/duration.ts";
import type { Damage } from "./damage/damage.ts";
import type { Drain } from "./changes/journal.ts";
import type { BackUpOptions, Manifest } from "../../backups.ts";
import { runTask } from "./backup/tasks.ts";

/** A log of this many bytes needs maintenance, even in a process that only enqueues. */
const OVERDUE_BYTES = 32 * 1024 * 1024;
const LONG_BYTES = 4 * 1024 * 1024;
/** Copying a shorter log takes less time than starting a thread. */
const SHORT_BYTES = 1024 * 1024;

const SETTINGS = [
  "journal_mode",
  "synchronous",
  "journal_size_limit",
  "wal_autocheckpoint",
  "foreign_keys",
  "page_size",
  "auto_vacuum",
];

interface Parts {
  path: string;
  driver: DriverName;
  durability: Durability;
  clock: Pick<Clock, "now">;
  journaled: boolean;
  damage: Damage;
  drain: Drain | null;
}

export class Maintenance implements MaintenanceStore {
  readonly journaled: boolean;
  readonly #db: Connection;
  readonly #parts: Parts;
  readonly #access: Pick<StoreAccess, "now" | "read">;
  readonly #checkpoint: Checkpoint | null;
  #keptBy: "thread" | "commits" = "commits";
  #isClosed = false;

  constructor(db: Connection, parts: Parts, access: Pick<StoreAccess, "now" | "read">) {
    this.journaled = parts.journaled;
    this.#db = db;
    this.#parts = parts;
    this.#access = access;
    this.#checkpoint = parts.path === ":memory:" || parts.damage.damaged !== null ? null : new Checkpoint(db);
  }

  get epoch(): number {
    return epochIn(this.#db);
  }

  get isOverdue(): boolean {
    return this.journaled || (this.#checkpoint !== null && walSize(this.#parts.path) > OVERDUE_BYTES);
  }

  async run(): Promise<WalView | null> {
    const { damage, drain } = this.#parts;
    // A checkpoint of a log that was removed would write its old pages over what other processes have committed since.
    if (this.#checkpoint === null || damage.damaged !== null || damage.replaced(0) !== null) return null;
    const bytes = await this.#access.read(() => (this.#checkpoint as Checkpoint).run());
    await this.#access.read(() => drain?.run());
    return isLong({ bytes }) ? await this.#wal(false) : null;
  }

  get keptBy(): "thread" | "commits" {
    return this.#keptBy;
  }

  set keptBy(whom: "thread" | "commits") {
    this.#keptBy = whom;
    if (!this.#isClosed) this.#checkpoint?.leaveTo(whom);
  }

  async checkpoint(how: { alone: boolean } | { waitMs: number }): Promise<void> {
    const { path, driver } = this.#parts;
    const bytes = walSize(path);
    if (bytes === 0) return;
    if ("waitMs" in how) return runTask("checkpoint", { driver, path, waitMs: how.waitMs });
    if (bytes < LONG_BYTES && !how.alone) return;
    if (bytes < SHORT_BYTES) await this.#access.read(() => this.#db.prepare("pragma wal_checkpoint(passive)").row());
    else await runTask("checkpoint", { driver, path });
  }

  async gauge({ readers = false }: { readers?: boolean } = {}): Promise<Gauged> {
    const wal = await this.#wal(readers);
    return this.#access.read(() => ({ size: this.#size(), expiredLeases: this.#expired(this.#access.now()), wal }));
  }

  diagnose(): Promise<Vitals> {
    return this.#access.read(() => {
      const now = this.#access.now();
      return {
        engine: `SQLite ${scalar<string>(this.#db, "select sqlite_version()")} (${this.#parts.driver})`,
        schema: { version: versionOf(this.#db), known: schemaVersion() },
        settings: this.#settings(),
        size: this.#size(),
        stuck: this.#stuck(now),
        latest: this.#latest(),
        now,
        transactions: [],
        journal: this.#journalLag(),
      };
    });
  }

  backUp(path: string, options: BackUpOptions): Promise<Manifest> {
    return backUp({ db: this.#db, ...this.#parts }, path, options);
  }

  close(): void {
    this.#isClosed = true;
    this.#parts.drain?.close();
  }

  async #wal(asked: boolean): Promise<WalView | null> {
    const { path } = this.#parts;
    if (path === ":memory:") return null;
    const { size, wal, programs } = await this.#access.read(() => this.#walNow());
    if (wal.bytes === 0 || !(asked || isLong(wal))) return wal;
    const readers = await readersOf(path, size, programs);
    return { ...wal, readers: readers.filter(({ pid }) => pid !== process.pid) };
  }

  #walNow(): { size: number; wal: WalView; programs: Map<number, string> } {
    const size = this.#number("page_size");
    const [, frames, copied] = this.#db.prepare("pragma wal_checkpoint(noop)").row() as [number, number, number];
    const [bytes, inDatabase] = [frames, copied].map((n) => Math.max(0, n) * (size + FRAME_HEADER)) as [number, number];
    const rows = this.#db.prepare("select pid, program from holdfast_processes").rows() as [number, string][];
    return { size, wal: { bytes, copied: inDatabase, readers: [] }, programs: new Map(rows) };
  }

  #journalLag(): JournalLag | null {
    if (!this.journaled) return null;
    const [changes, since] = this.#db.prepare("select count(*), min(at) from holdfast_changes").row() as [number, number | null];
    return { changes, since };
  }

  #size(): Gauged["size"] {
    const page = this.#number("page_size");
    return { bytes: this.#number("page_count") * page, unused: this.#number("freelist_count") * page };
  }

  #expired(now: number): number {
    return scalar(this.#db, "select count(*) from holdfast_jobs where state = 'running' and expires_at <= ?", now);
  }

  #settings(): Setting[] {
    const { path, durability } = this.#parts;
    const wanted: Record<string, string> =
      path === ":memory:" ? {} : { journal_mode: "wal", synchronous: durability === "power" ? "2" : "1" };
    return SETTINGS.map((name) => {
      return { name, value: String(scalar(this.#db, `pragma ${name}`) ?? ""), wanted: wanted[name] ?? null };
    });
  }

  #stuck(now: number): StuckJob[] {
    const rows = this.#db
      .prepare(
        `select id, created_at, key, iif(expires_at < ?1, 'expired', 'overdue'), ?2 - iif(expires_at < ?1, expires_at, due)
         from (select job.id, job.created_at, job.key, job.expires_at, job.started_at + json_extract(policy.body, '$.timeout') as due
               from holdfast_jobs as job left join holdfast_policies as policy on policy.id = job.policy
               where job.state = 'running' and (job.expires_at < ?1 or due < ?1) order by job.expires_at limit ${NAMED})
         union all
         select * from (select id, created_at, key, 'forgotten', null from holdfast_jobs as job
               where state = 'waiting' and not exists (select 1 from holdfast_waits where holdfast_waits.job = job.key) limit ${NAMED})`,
      )
      .rows(now - STUCK, now) as [string | null, number, JobKey, StuckJob["why"], number | null][];
    return rows.map(([id, createdAt, key, why, by]) => ({ id: publicId(id, createdAt, key), why, by }));
  }

  /** Returns the latest time in the database. Rows are added in order, so the last ones have it unless the clock was set. */
  #latest(): number {
    return scalar(
      this.#db,
      `select max(coalesce((select created_at from holdfast_jobs order by key desc limit 1), 0),
                  coalesce((select max(at) from (select at from holdfast_audit order by seq desc limit 100)), 0),
                  coalesce((select max(started_at) from holdfast_processes), 0))`,
    );
  }

  #number(pragma: string): number {
    return scalar(this.#db, `pragma ${pragma}`);
  }
}

/** Without the keeper thread, a commit copies a log of this many pages itself. */
const ALONE_PAGES = 1_000;
/** With the keeper thread, a commit copies only a log of this many pages. */
const BACKSTOP_PAGES = 4_000;
/** A checkpoint copies a log of this many pages into the database while writers continue. */
const COPY_PAGES = 500;
/** At this many pages writers wait for a moment, if they never let the copying catch up. */
const RESTART_PAGES = 8_000;

// Keeps the log short. A log that restarts is overwritten in place, with a cheaper fsync: one that grows halved the commit rate.
export class Checkpoint {
  readonly #db: Connection;
  readonly #sql;
  #seen = 0;

  constructor(db: Connection) {
    this.#db = db;
    this.leaveTo("commits");
    this.#sql = {
      version: db.prepare("pragma data_version"),
      noop: db.prepare("pragma wal_checkpoint(noop)"),
      passive: db.prepare("pragma wal_checkpoint(passive)"),
      restart: db.prepare("pragma wal_checkpoint(restart)"),
      size: db.prepare("pragma page_size"),
    };
  }

  leaveTo(whom: "thread" | "commits"): void {
    if (this.#db.isOpen) this.#db.exec(`pragma wal_autocheckpoint = ${whom === "thread" ? BACKSTOP_PAGES : ALONE_PAGES}`);
  }

  run(): number {
    // In most rounds no process has written, and reading that from one page of shared memory is cheap.
    const [version] = this.#sql.version.row() as [number];
    if (version === this.#seen) return 0;
    this.#seen = version;
    const [, frames, done] = this.#sql.noop.row() as [number, number, number];
    if (done === frames || frames < COPY_PAGES) return 0;
    const [, log, copied] = this.#sql.passive.row() as [number, number, number];
    // When all is copied, the next writer restarts the log. If a reader pins it, this answers "busy", a row and no error.
    if (copied < log && log >= RESTART_PAGES) this.#sql.restart.row();
    if (copied >= log) return 0;
    this.#seen = 0;
    return log * ((this.#sql.size.row() as [number])[0] + FRAME_HEADER);
  }
}

/** Offsets in the `-shm` file, which has two copies of the log's header, then readers' marks, then the bytes that they lock. */
const LENGTH = 136;
const LAST_FRAME = 16;
const MARKS = 100;
const READERS = 5;
const READ_LOCKS = 123;

/** Finds readers that keep the log from restarting. A child reads the -shm: closing it here would drop this process's locks. */
async function readersOf(path: string, pageSize: number, programs: ReadonlyMap<number, string>): Promise<WalReader[]> {
  const shm = `${path}-shm`;
  if (process.platform !== "linux" || !existsSync(shm)) return [];
  const memory = await startOf(shm);
  if (memory === null) return [];
  const at = (offset: number) => (endianness() === "LE" ? memory.readUInt32LE(offset) : memory.readUInt32BE(offset));
  const last = at(LAST_FRAME);
  const behind = new Map<number, number>();
  for (const { pid, from, to } of locksOn(shm)) {
    for (let mark = 0; mark < READERS; mark++) {
      if (from > READ_LOCKS + mark || to < READ_LOCKS + mark) continue;
      // The first mark belongs to readers that use nothing of the log.
      const frames = last - (mark === 0 ? 0 : at(MARKS + 4 * mark));
      if (frames > 0) behind.set(pid, Math.max(behind.get(pid) ?? 0, frames * (pageSize + FRAME_HEADER)));
    }
  }
  return [...behind]
    .map(([pid, bytes]) => ({ pid, program: programs.get(pid) ?? programOf(pid), behind: bytes }))
    .sort((a, b) => b.behind - a.behind);
}

async function startOf(file: string): Promise<Buffer | null> {
  try {
    const { stdout } = await promisify(execFile)("head", ["-c", String(LENGTH), "--", file], { encoding: "buffer" });
    return stdout.length === LENGTH ? stdout : null;
  } catch {
    return null;
  }
}

function programOf(pid: number): string | null {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0").filter(Boolean).slice(0, 3).join(" ") || null;
  } catch {
    return null;
  }
}
