import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { endianness } from "node:os";
import { promisify } from "node:util";
import { isLong, type WalReader, type WalView } from "../../../core/recovery/loss.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { publicId } from "../../job-row.ts";
import {
  type Gauged,
  type JournalLag,
  type MaintenanceStore,
  NAMED,
  type Setting,
  STUCK,
  type StuckJob,
  type Vitals,
} from "../../maintenance.ts";
import type { Durability } from "../../store.ts";
import type { Connection, DriverName, Statement } from "../driver.ts";
import { schemaVersion, versionOf } from "../migrate.ts";
import type { StoreAccess } from "../scripts.ts";
import { locksOn } from "./open-files.ts";
import { FRAME_HEADER, walSize } from "./wal.ts";
import { Backups } from "./backup/backups.ts";
import type { Clock } from "../../../core/text/duration.ts";
import type { Damage } from "./damage/damage.ts";
import type { Drain } from "./changes/journal.ts";
import type { Manifest, StagedBackup, StageOptions } from "../../backups.ts";
import { changesFolder, trimSegments } from "./changes/segments.ts";
import { runTask } from "./backup/tasks.ts";

/** A write-ahead log of this many bytes needs maintenance, even in a process that only enqueues. */
const OVERDUE_BYTES = 32 * 1024 * 1024;
/** A log of this many bytes is worth a thread while other processes work. */
const LONG_BYTES = 4 * 1024 * 1024;
/** A shorter log is copied sooner than a thread is started. */
const SHORT_BYTES = 1024 * 1024;

interface Parts {
  path: string;
  driver: DriverName;
  durability: Durability;
  clock: Pick<Clock, "now">;
  journaled: boolean;
  damage: Damage;
  /** Null: this handle writes no journal. */
  drain: Drain | null;
}

/** Looks after one file. */
export class Maintenance implements MaintenanceStore {
  readonly journaled: boolean;
  readonly #db: Connection;
  readonly #parts: Parts;
  readonly #access: Pick<StoreAccess, "now" | "read">;
  readonly #backups: Backups;
  /** Null: there is no log, or the file is only read. */
  readonly #checkpoint: Checkpoint | null;
  #isClosed = false;

  constructor(db: Connection, parts: Parts, access: Pick<StoreAccess, "now" | "read">) {
    this.journaled = parts.journaled;
    this.#db = db;
    this.#parts = parts;
    this.#access = access;
    this.#backups = new Backups(db, parts);
    this.#checkpoint = parts.path === ":memory:" || parts.damage.damaged !== null ? null : new Checkpoint(db, parts.path);
  }

  get epoch(): number {
    return this.#backups.epoch;
  }

  get isOverdue(): boolean {
    return this.journaled || (this.#checkpoint?.size() ?? 0) > OVERDUE_BYTES;
  }

  async run(): Promise<WalView | null> {
    const { damage, drain } = this.#parts;
    // A checkpoint of a log that was removed would write its old pages over what other processes have committed since.
    if (this.#checkpoint === null || damage.damaged !== null || damage.replaced(0) !== null) return null;
    const bytes = await this.#access.read(() => (this.#checkpoint as Checkpoint).run());
    await this.#access.read(() => drain?.run());
    return isLong({ bytes }) ? await this.#wal(false) : null;
  }

  leaveTo(whom: "thread" | "commits"): void {
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
    return this.#access.read(() => this.#diagnose());
  }

  stageBackup(path: string, options: StageOptions): Promise<StagedBackup> {
    return this.#backups.stage(path, options);
  }

  async trimJournal(kept: readonly Manifest[]): Promise<void> {
    const { path } = this.#parts;
    if (path === ":memory:") return;
    const [databaseId, epoch] = this.#db.prepare("select database_id, epoch from holdfast_database where id = 1").row() as [
      string,
      number,
    ];
    trimSegments(changesFolder(path), { databaseId, epoch }, kept);
  }

  /** Before the connection is closed. */
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

  #diagnose(): Vitals {
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
      journal: this.#journalLag(),
    };
  }

  #journalLag(): JournalLag | null {
    if (!this.journaled) return null;
    const [changes, since] = this.#db.prepare("select count(*), min(at) from holdfast_changes").row() as [number, number | null];
    return { changes, since };
  }

  /** With what is only in the log so far. */
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

/** How long the log may be before a commit copies it: by itself, and with a thread. In pages. */
const ALONE = 1_000;
const BACKSTOP = 4_000;
/** From this many pages on they are copied into the database, beside the writers. */
const COPY = 500;
/** From this many on, writers are made to wait for a moment if they never let the copying catch up. */
const RESTART = 8_000;

/**
 * Keeps the write-ahead log short, from a thread in which a stall blocks no job. A log that starts anew is written over in
 * place, which makes each fsync cheaper than one that grows: half as many commits a second were seen without.
 */
export class Checkpoint {
  readonly #db: Connection;
  readonly #path: string;
  readonly #version: Statement;
  readonly #look: Statement;
  readonly #passive: Statement;
  readonly #restart: Statement;
  readonly #size: Statement;
  #seen = 0;

  constructor(db: Connection, path: string) {
    this.#db = db;
    this.leaveTo("commits");
    this.#path = path;
    this.#version = db.prepare("pragma data_version");
    this.#look = db.prepare("pragma wal_checkpoint(noop)");
    this.#passive = db.prepare("pragma wal_checkpoint(passive)");
    this.#restart = db.prepare("pragma wal_checkpoint(restart)");
    this.#size = db.prepare("pragma page_size");
  }

  /**
   * A commit that finds the log long copies it itself. Where a thread does so, it copies only what that could not keep
   * up with, and so lets the log start anew.
   */
  leaveTo(whom: "thread" | "commits"): void {
    if (this.#db.isOpen) this.#db.exec(`pragma wal_autocheckpoint = ${whom === "thread" ? BACKSTOP : ALONE}`);
  }

  /** How much of the log is in use, in bytes, where that could not be copied. */
  run(): number {
    // Most rounds find that no process has written: one page of shared memory tells.
    const [version] = this.#version.row() as [number];
    if (version === this.#seen) return 0;
    this.#seen = version;
    if (pages(this.#look) < COPY) return 0;
    const [, log, copied] = this.#passive.row() as [number, number, number];
    // When all is copied, the next writer starts the log anew by itself. A reader that pins the log makes the restart
    // answer "busy", a row and no error; the next round tries again.
    if (copied < log && log >= RESTART) this.#restart.row();
    if (copied >= log) return 0;
    this.#seen = 0;
    return log * ((this.#size.row() as [number])[0] + FRAME_HEADER);
  }

  /** In bytes; a log that was started anew keeps its size. */
  size(): number {
    return walSize(this.#path);
  }
}

function pages(look: Statement): number {
  const [, log, copied] = look.row() as [number, number, number];
  return copied === log ? 0 : log;
}

/** Of the shared memory beside a log (`-shm`): two copies of its header, then what readers have marked, then their locks. */
const LENGTH = 136;
const LAST_FRAME = 16;
const MARKS = 100;
/** How many marks there are; a lock on the byte of one says that a process reads up to it. */
const READERS = 5;
const READ_LOCKS = 123;

/**
 * Who reads an earlier state of the database than its newest: as long as he does, the log cannot start anew. Which mark each
 * reader has is in shared memory, who has locked it says Linux; elsewhere it is not known. Another process reads that
 * memory: in this one, to close the file would drop the locks of all that have the database open here.
 */
async function readersOf(path: string, pageSize: number, programs: ReadonlyMap<number, string>): Promise<WalReader[]> {
  const shm = `${path}-shm`;
  if (process.platform !== "linux" || !existsSync(shm)) return [];
  const memory = await start(shm);
  if (memory === null) return [];
  const at = (offset: number) => (endianness() === "LE" ? memory.readUInt32LE(offset) : memory.readUInt32BE(offset));
  const last = at(LAST_FRAME);
  const behind = new Map<number, number>();
  for (const { pid, from, to } of locksOn(shm)) {
    for (let mark = 0; mark < READERS; mark++) {
      if (from > READ_LOCKS + mark || to < READ_LOCKS + mark) continue;
      // The first mark is of those who read nothing of the log.
      const frames = last - (mark === 0 ? 0 : at(MARKS + 4 * mark));
      if (frames > 0) behind.set(pid, Math.max(behind.get(pid) ?? 0, frames * (pageSize + 24)));
    }
  }
  return [...behind]
    .map(([pid, bytes]) => ({ pid, program: programs.get(pid) ?? programOf(pid), behind: bytes }))
    .sort((a, b) => b.behind - a.behind);
}

async function start(file: string): Promise<Buffer | null> {
  try {
    const { stdout } = await promisify(execFile)("head", ["-c", String(LENGTH), "--", file], { encoding: "buffer" });
    return stdout.length === LENGTH ? stdout : null;
  } catch {
    return null;
  }
}

/** What it was started as; a program in another container cannot be told. */
function programOf(pid: number): string | null {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0").filter(Boolean).slice(0, 3).join(" ") || null;
  } catch {
    return null;
  }
}
