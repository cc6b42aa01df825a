import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { lacking } from "../../artifacts/collect.ts";
import { type BackupPlan, backupDueIn, type KnownBackup, backupsToRemove } from "../../core/recovery/backup-plan.ts";
import {
  artifactsPath,
  type BackupArtifacts,
  backupName,
  type BackupReason,
  backupsIn,
  type Manifest,
  type OnProgress,
  removeBackup,
} from "../../store/backups.ts";
import { damaged, type VerifiedBackup, verifyBackup } from "../../store/sqlite/maintenance/backup/backups.ts";
import { changesFolder, trimSegments } from "../../store/sqlite/maintenance/changes/segments.ts";
import { createFolder, modeLike } from "../../store/sqlite/faults.ts";
import type { Engine } from "../engine.ts";
import { describeError } from "../log.ts";

const BACKUP_LOCK = "holdfast.backups";
const LOCK_TTL_MS = 60_000;
/** Longest pause between two checks, because clocks are set and folders are emptied. */
const MAX_WAIT_MS = 3_600_000;
const RETRY_MS = 60_000;

/** Makes backups by a plan and removes old ones. A process that dies on the way has made none; the next check finds that. */
export class ScheduledBackups {
  readonly #engine: Engine;
  readonly #plan: BackupPlan;
  #cancel: (() => void) | null = null;
  #checking: Promise<void> | null = null;
  #stopped = false;
  #lastError: string | null = null;

  constructor(engine: Engine, plan: BackupPlan) {
    this.#engine = engine;
    this.#plan = plan;
  }

  start(): void {
    this.#cancel?.();
    this.#checking ??= this.#check().finally(() => (this.#checking = null));
    this.#engine.clock.during?.(this.#checking);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#cancel?.();
    await this.#checking;
  }

  async #check(): Promise<void> {
    let wait: number;
    try {
      wait = await this.#makeIfDue();
      this.#lastError = null;
    } catch (error) {
      wait = Math.min(RETRY_MS, this.#plan.every);
      await this.#reportFailure(error);
    }
    if (!this.#stopped) this.#cancel = this.#engine.clock.after(Math.min(wait, MAX_WAIT_MS), () => this.start());
  }

  async #makeIfDue(): Promise<number> {
    const { store, clock, program } = this.#engine;
    const due = () => backupDueIn(this.#plan, this.#countedBackups(), clock.now());
    if (due() > 0 || this.#stopped || store.damage.damaged !== null) return Math.max(due(), RETRY_MS);
    const token = randomUUID();
    if (!(await store.locks.acquire(BACKUP_LOCK, program, token, LOCK_TTL_MS))) return RETRY_MS;
    const renewal = this.#renewLock(token);
    try {
      // Another process may have made one between the check and the lock.
      if (due() === 0) await this.#makeOne();
    } finally {
      renewal();
      await store.locks.renew(BACKUP_LOCK, token, null);
    }
    return due();
  }

  async #makeOne(): Promise<void> {
    const { location, clock, log } = this.#engine;
    const { folder, artifacts } = this.#plan;
    // Create only this folder: if its parent is missing too, a disk may not be mounted.
    const path = location.kind === "sqlite" && location.path !== ":memory:" ? location.path : null;
    const source = path ?? "holdfast";
    if (!existsSync(folder)) createFolder(folder, modeLike(source), { recursive: false });
    const file = backupName(source, clock.now());
    const { findings, size } = await makeBackup(this.#engine, join(folder, file), { artifacts, reason: "scheduled" });
    log.info("a backup was made", { path: join(folder, file), size });
    for (const old of backupsToRemove(this.#plan, this.#knownBackups())) removeBackup(folder, old);
    const { databaseId, maintenance } = this.#engine.store;
    if (path !== null) trimSegments(changesFolder(path), { databaseId, epoch: maintenance.epoch }, backupsIn(folder, databaseId));
    if (findings.length > 0) throw new Error(`the database is damaged, and so is its backup: ${findings[0]}`);
  }

  /** Leaves out backups from before a restore if there is a journal, which continues none of them: the next is due at once. */
  #countedBackups(): KnownBackup[] {
    const { journaled, epoch } = this.#engine.store.maintenance;
    return journaled ? this.#knownBackups().filter((one) => one.epoch === epoch) : this.#knownBackups();
  }

  #knownBackups(): KnownBackup[] {
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

  #renewLock(token: string): () => void {
    const timer = setInterval(
      () => void this.#engine.store.locks.renew(BACKUP_LOCK, token, LOCK_TTL_MS).catch(() => {}),
      LOCK_TTL_MS / 3,
    ).unref();
    return () => clearInterval(timer);
  }

  async #reportFailure(failure: unknown): Promise<void> {
    const { log, store } = this.#engine;
    const error = failure instanceof Error ? failure.message : String(failure);
    const { folder } = this.#plan;
    if (this.#lastError !== error) log.error("a backup failed; it is tried again", { folder, ...describeError(failure), error });
    const begins = this.#lastError === null;
    this.#lastError = error;
    if (!begins || store.damage.damaged !== null) return;
    const act = { action: "backup.failed", name: folder, after: { error } } as const;
    await store.audit
      .record(act)
      .catch((error: unknown) => log.warn("a backup could not be recorded in the audit", describeError(error)));
  }
}

export interface BackupOptions {
  /** True: copy the artifacts too. False: the backup only records their hashes. Default: false. */
  artifacts?: boolean;
  /** Called repeatedly while the backup is made. */
  onProgress?: OnProgress;
}

/** Makes a checked copy of one instant, which gets its name only when it is whole. No other process waits for it. */
export async function makeBackup(
  engine: Engine,
  path: string,
  { artifacts = false, onProgress = () => {}, reason = "asked" }: BackupOptions & { reason?: BackupReason } = {},
): Promise<Manifest> {
  const collect = (hashes: string[], folder: string) =>
    artifacts ? includeArtifacts(engine, hashes, folder, onProgress) : referToArtifacts(engine, hashes);
  const manifest = await engine.store.maintenance.backUp(path, { reason, onProgress, collect });
  await recordBackup(engine, path, manifest);
  return manifest;
}

/** Writes the audit entry. A failure is only logged, because the backup exists. A damaged database is not written to. */
async function recordBackup({ store, log }: Engine, path: string, { size, sha256, reason }: Manifest): Promise<void> {
  if (store.damage.damaged !== null) return;
  await store.audit
    .record({ action: "backup.made", name: path, after: { size, sha256, reason } })
    .catch((error: unknown) => log.warn("a backup was made, and could not be written down", { path, ...describeError(error) }));
}

export async function verifyWhole(
  path: string,
  driver: "node:sqlite" | "better-sqlite3",
  onProgress: OnProgress,
): Promise<VerifiedBackup> {
  const verified = await verifyBackup(path, driver, onProgress);
  await verifyArtifacts(verified.path, verified.manifest, onProgress);
  return verified;
}

export async function verifyArtifacts(backup: string, manifest: Manifest | null, onProgress: OnProgress): Promise<void> {
  if (manifest === null || !manifest.artifacts.included) return;
  const { hashes } = manifest.artifacts;
  const bad = await lacking(hashes, artifactsPath(backup), (done) =>
    onProgress({ step: "artifacts", done, total: hashes.length }),
  );
  if (bad.length > 0) throw damaged(backup, `of its artifacts ${bad.length} are missing or damaged, ${bad[0]} among them`);
}

async function includeArtifacts(
  engine: Engine,
  hashes: string[],
  folder: string,
  onProgress: OnProgress,
): Promise<BackupArtifacts> {
  const opened = await engine.artifacts();
  const { bytes, missing } = await opened.collect(hashes, folder, (done) =>
    onProgress({ step: "artifacts", done, total: hashes.length }),
  );
  return { included: true, ...present(hashes, missing), bytes };
}

/** Records hashes, and which artifacts are missing, so that an operator knows it before a restore. */
async function referToArtifacts(engine: Engine, hashes: string[]): Promise<BackupArtifacts> {
  const { path } = engine.artifactFolder;
  const isThere = hashes.length > 0 && path !== null && existsSync(path);
  return { included: false, ...present(hashes, isThere ? (await engine.artifacts()).missing(hashes) : hashes), bytes: 0 };
}

function present(hashes: readonly string[], missing: string[]): Pick<BackupArtifacts, "hashes" | "missing"> {
  const gone = new Set(missing);
  return { hashes: hashes.filter((hash) => !gone.has(hash)), missing };
}
