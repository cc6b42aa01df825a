import { HoldfastError } from "./errors.ts";
import { type Duration, toMillis } from "./duration.ts";
import { checkAtLeast, checkCount, refuseUnknown } from "./options.ts";

/** Backups that are made by themselves, by a process that has the database open; of several, by one at a time. */
export interface BackupsOptions {
  /** Where they go; default: a folder beside the database, `work.db-backups`. */
  folder?: string;
  /** How old the newest may be until the next is made; default "1d". */
  every?: Duration;
  /** How many of them are kept; default 7. Others in that folder are left alone. */
  keep?: number;
  /** Copy the artifacts, too. */
  artifacts?: boolean;
  /** False: none is made before a new Holdfast changes the schema. Default true. */
  beforeMigration?: boolean;
}

export interface BackupPlan {
  folder: string;
  every: number;
  keep: number;
  artifacts: boolean;
}

/** Null: no schedule was asked for. */
export function checkBackups(options: BackupsOptions | undefined, beside: string | null): BackupPlan | null {
  if (options === undefined) return null;
  refuseUnknown(options, ["folder", "every", "keep", "artifacts", "beforeMigration"], "backups");
  const { folder = beside, every = "1d", keep = 7, artifacts = false } = options;
  // Whoever only says that none is wanted before a migration has not asked for others.
  if (Object.keys(options).join() === "beforeMigration") return null;
  if (typeof folder !== "string" || folder === "") {
    throw new HoldfastError("OPTION_INVALID", "Nobody can guess where the backups go.", "Give backups: { folder }.");
  }
  return {
    folder,
    every: checkAtLeast(toMillis(every, "backups.every"), 1_000, "backups.every"),
    keep: checkCount(keep, "backups.keep", 1),
    artifacts: artifacts === true,
  };
}

/** What is known of a backup in the folder. */
export interface KnownBackup {
  file: string;
  takenAt: number;
  scheduled: boolean;
  whole: boolean;
}

/** How long until the next is due; 0: now. Only whole ones count, or a damaged database would look well kept. */
export function dueIn(plan: Pick<BackupPlan, "every">, backups: readonly KnownBackup[], now: number): number {
  const newest = Math.max(...backups.filter(({ scheduled, whole }) => scheduled && whole).map(({ takenAt }) => takenAt));
  // One from the future says nothing: the clock was set.
  return newest > now ? plan.every : Math.max(0, newest + plan.every - now);
}

/**
 * Those that need not be kept: scheduled ones beyond the newest so many that are whole, and damaged ones but for the newest.
 * As long as new ones are damaged, no whole one goes.
 */
export function retired(plan: Pick<BackupPlan, "keep">, backups: readonly KnownBackup[]): string[] {
  const newestFirst = backups.filter(({ scheduled }) => scheduled).toSorted((a, b) => b.takenAt - a.takenAt);
  const beyond = (whole: boolean, keep: number) => newestFirst.filter((one) => one.whole === whole).slice(keep);
  return [...beyond(true, plan.keep), ...beyond(false, 1)].map(({ file }) => file);
}
