import { type Duration, toMillis } from "../text/duration.ts";
import { checkAtLeast, checkBoolean, checkCount, describeValue, invalidOption, refuseUnknown } from "../text/options.ts";

/** Scheduled backups, made by a process that has the database open. */
export interface BackupsOptions {
  /** Folder of the backups. Default: beside the database, "work.db-backups". */
  folder?: string;
  /** How old the newest backup may be before the next one is made. Default: "1d". */
  every?: Duration;
  /** How many backups are kept; other files in the folder are left alone. Default: 7. */
  keep?: number;
  /** True: copy the artifacts too. Default: false. */
  artifacts?: boolean;
  /** False: make no backup before a migration. Default: true. */
  beforeMigration?: boolean;
}

export interface BackupPlan {
  folder: string;
  every: number;
  keep: number;
  artifacts: boolean;
}

export function checkBackups(options: BackupsOptions | undefined, beside: string | null): BackupPlan | null {
  if (options === undefined) return null;
  refuseUnknown(options, ["folder", "every", "keep", "artifacts", "beforeMigration"], "backups");
  const { folder = beside, every = "1d", keep = 7, artifacts = false, beforeMigration = true } = options;
  checkBoolean(beforeMigration, "backups.beforeMigration");
  // `beforeMigration` alone asks for no scheduled backups.
  if (Object.keys(options).join() === "beforeMigration") return null;
  if (typeof folder !== "string" || folder === "") {
    throw invalidOption(`backups.folder must be a path, got ${describeValue(folder)}.`, "Give backups: { folder }.");
  }
  return {
    folder,
    every: checkAtLeast(toMillis(every, "backups.every"), 1_000, "backups.every"),
    keep: checkCount(keep, "backups.keep", 1),
    artifacts: checkBoolean(artifacts, "backups.artifacts"),
  };
}

interface BackupAge {
  takenAt: number;
  epoch: number;
  commits: number;
}

export interface KnownBackup extends BackupAge {
  file: string;
  scheduled: boolean;
  whole: boolean;
}

/** Milliseconds until the next backup; 0 means now. Only whole backups count, or a damaged database would look well kept. */
export function backupDueIn({ every }: Pick<BackupPlan, "every">, backups: readonly KnownBackup[], now: number): number {
  const [newest] = scheduled(backups, true);
  if (newest === undefined) return 0;
  const left = newest.takenAt + every - now;
  // A backup from the future says nothing: the clock was set.
  return left > 2 * every ? 0 : Math.min(every, Math.max(0, left));
}

/** Returns the backups to remove. As long as new backups are damaged, no whole one is removed. */
export function backupsToRemove(plan: Pick<BackupPlan, "keep">, backups: readonly KnownBackup[]): string[] {
  return [...scheduled(backups, true).slice(plan.keep), ...scheduled(backups, false).slice(1)].map(({ file }) => file);
}

function scheduled(backups: readonly KnownBackup[], whole: boolean): KnownBackup[] {
  return backups.filter((one) => one.scheduled && one.whole === whole).toSorted(newestFirst);
}

/** Orders by epoch first, because a backup from before a restore has what the restore undid, and by the clock last. */
export function newestFirst(a: BackupAge, b: BackupAge): number {
  return b.epoch - a.epoch || b.commits - a.commits || b.takenAt - a.takenAt;
}
