import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { type BackupPlan, dueIn, type KnownBackup, retired } from "../core/backup-plan.ts";
import { backupName, backupsIn, removeBackup } from "../store/backup-folder.ts";
import { makeBackup } from "./backup.ts";
import type { Engine } from "./engine.ts";
import { said } from "./trouble.ts";
import { createFolder, modeLike } from "../store/sqlite/modes.ts";

/** The lock of whoever makes one: of all processes with the same database, one at a time. */
const LOCK = "holdfast.backups";
const TTL = 60_000;
/** However long until the next one: look again by then, since clocks are set and folders are emptied. */
const LOOK_AGAIN = 3_600_000;
/** While another process makes one, and after trouble. */
const TRY_AGAIN = 60_000;

/** Makes backups by a plan, and removes those that need not be kept. Whoever dies on the way has made none; the next look finds that. */
export class ScheduledBackups {
  readonly #engine: Engine;
  readonly #plan: BackupPlan;
  #cancel: (() => void) | null = null;
  #looking: Promise<void> | null = null;
  #stopped = false;
  /** What was said already: it is tried again and again. */
  #trouble: string | null = null;

  constructor(engine: Engine, plan: BackupPlan) {
    this.#engine = engine;
    this.#plan = plan;
  }

  start(): void {
    this.#cancel?.();
    this.#looking ??= this.#look().finally(() => (this.#looking = null));
    this.#engine.clock.during?.(this.#looking);
  }

  /** One that is being made comes to its end first. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#cancel?.();
    await this.#looking;
  }

  async #look(): Promise<void> {
    let wait: number;
    try {
      wait = await this.#make();
      this.#trouble = null;
    } catch (error) {
      wait = Math.min(TRY_AGAIN, this.#plan.every);
      await this.#tell(error);
    }
    if (!this.#stopped) this.#cancel = this.#engine.clock.after(Math.min(wait, LOOK_AGAIN), () => this.start());
  }

  /** How long until it is worth looking again. */
  async #make(): Promise<number> {
    const { store, clock, program } = this.#engine;
    const due = () => dueIn(this.#plan, this.#counting(), clock.now());
    if (due() > 0 || this.#stopped || store.damage.damaged !== null) return Math.max(due(), TRY_AGAIN);
    const token = randomUUID();
    if (!(await store.locks.acquire(LOCK, program, token, TTL))) return TRY_AGAIN;
    const renewal = this.#keep(token);
    try {
      // Somebody may have made it between the look and the lock.
      if (due() === 0) await this.#makeOne();
    } finally {
      renewal();
      await store.locks.release(LOCK, token);
    }
    return due();
  }

  async #makeOne(): Promise<void> {
    const { location, clock, log } = this.#engine;
    const { folder, artifacts } = this.#plan;
    // The last part of it alone: where more is missing, a disk may not be mounted.
    const source = location.kind === "sqlite" && location.path !== ":memory:" ? location.path : "holdfast";
    if (!existsSync(folder)) createFolder(folder, modeLike(source), { recursive: false });
    const file = backupName(source, clock.now());
    const { findings, size } = await makeBackup(this.#engine, join(folder, file), { artifacts, reason: "scheduled" });
    log.info("a backup was made", { path: join(folder, file), size });
    for (const old of retired(this.#plan, this.#known())) removeBackup(folder, old);
    const { store } = this.#engine;
    await store.backups.trimJournal(backupsIn(folder, store.databaseId));
    if (findings.length > 0) throw new Error(`the database is damaged, and so is its backup: ${findings[0]}`);
  }

  /** After a restore the journal leads on from none of before: the next is due at once. */
  #counting(): KnownBackup[] {
    const { journaled, epoch } = this.#engine.store.backups;
    return journaled ? this.#known().filter((one) => one.epoch === epoch) : this.#known();
  }

  #known(): KnownBackup[] {
    return backupsIn(this.#plan.folder, this.#engine.store.databaseId).map(
      ({ file, takenAt, epoch, commits, reason, findings }) => ({
        file,
        takenAt,
        epoch,
        commits,
        scheduled: reason === "scheduled",
        whole: findings.length === 0 && existsSync(join(this.#plan.folder, file)),
      }),
    );
  }

  /** A large one takes longer than any lock should last by itself. */
  #keep(token: string): () => void {
    const timer = setInterval(() => void this.#engine.store.locks.extend(LOCK, token, TTL).catch(() => {}), TTL / 3).unref();
    return () => clearInterval(timer);
  }

  /** In the log each time it is another; in the audit and to all who listen, when it begins. */
  async #tell(failure: unknown): Promise<void> {
    const { log, store } = this.#engine;
    const error = failure instanceof Error ? failure.message : String(failure);
    const { folder } = this.#plan;
    if (this.#trouble !== error) log.error("a backup failed; it is tried again", { folder, ...said(failure), error });
    const begins = this.#trouble === null;
    this.#trouble = error;
    if (!begins || store.damage.damaged !== null) return;
    const act = { action: "backup.failed", name: folder, after: { error } };
    await store.audit.record(act).catch((trouble: unknown) => log.warn("that could not be written down", said(trouble)));
  }
}
