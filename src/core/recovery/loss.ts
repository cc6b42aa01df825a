/** How far a database goes, in one copy of it or as a process has seen it. */
interface Extent {
  databaseId: string;
  epoch: number;
  commits: number;
  /** The highest key of a job. */
  key: number;
}

/** What is known of a database when it is opened, beside itself. */
export interface Circumstances {
  durability: "power" | "process";
  /** The host was started anew since it was written down what must be there. */
  rebooted: boolean;
  /** It was not there, and was made just now. */
  isNew: boolean;
  /**
   * The host has been up since what must be there was written down: that is all there was. Otherwise the last second of it
   * may have gone down with the host.
   */
  isExact: boolean;
  /** Its write-ahead log, before anybody opened it. */
  log: "there" | "missing" | "cut";
}

/** What was acknowledged, and is not there. */
export interface Loss {
  severity: "loss" | "expected";
  what: string;
  /** Of those that are known: there may be more, where `what` says "at least". */
  commitsMissing: number;
}

/** A database against what was once seen in it: null when all of that is there. */
export function lossOf(seen: Extent | null, here: Extent, circumstances: Circumstances): Loss | null {
  if (seen === null) return null;
  // A restore puts an earlier state into its place on purpose, and starts a new epoch.
  if (here.epoch > seen.epoch) return null;
  if (seen.databaseId !== here.databaseId) return replaced(seen, circumstances.isNew);
  const missing = here.epoch < seen.epoch ? commitsOf(seen) : seen.commits - here.commits;
  const fewer = seen.key - here.key;
  if (missing <= 0 && fewer <= 0) return null;
  // A database of before commits that only add jobs had numbers: the jobs tell that there was one.
  const commitsMissing = Math.max(missing, 1);
  const both = fewer > 0 ? `${commits(commitsMissing)}, with ${jobs(fewer)},` : commits(commitsMissing);
  // Numbers of an epoch that is not there any more say nothing of what came before it.
  const exactly = circumstances.isExact && missing > 0 && here.epoch === seen.epoch;
  const isExpected = circumstances.durability === "process" && circumstances.rebooted;
  const why = isExpected
    ? `The host went down, and durability "process" lets that take the last of them`
    : here.epoch < seen.epoch
      ? "An older file was put into its place"
      : WHY[circumstances.log];
  return {
    severity: isExpected ? "expected" : "loss",
    what: `${exactly ? "" : "At least "}${both} were acknowledged and are gone. ${why}.`,
    commitsMissing,
  };
}

const WHY: Record<Circumstances["log"], string> = {
  missing: "Its write-ahead log (-wal) is missing, or an older file was put into its place",
  cut: "Its write-ahead log (-wal) was cut off, or is damaged at its end",
  there: "Its write-ahead log (-wal) was cut off, an older file was put into its place, or the disk forgot what it had synced",
};

function replaced(seen: Extent, isNew: boolean): Loss {
  const what = isNew ? "The database was gone, and a new one was made" : "Another database was put into its place";
  return { severity: "loss", what: `${what}: the one that was here had ${extentOf(seen)}.`, commitsMissing: commitsOf(seen) };
}

/** In words. */
export function extentOf(seen: Extent): string {
  return `${commits(commitsOf(seen))} and ${jobs(seen.key)}`;
}

/** Those of its last epoch; what came before was given up when it was restored. */
function commitsOf({ epoch, commits }: Extent): number {
  return Math.max(1, commits - epoch * EPOCH);
}

/** Commits of one epoch: no database makes a million a second for twelve days. */
export const EPOCH = 2 ** 40;

/**
 * A write-ahead log in which a frame is not what was written. Null: it ends there, as one may that was being written. At
 * "power" each commit is on the disk before the next is begun, so two whole ones beyond mean that the bad one was whole.
 */
export function logDamage(
  bad: { frame: number; ended: boolean; beyond: number } | null,
  { durability, rebooted }: Pick<Circumstances, "durability" | "rebooted">,
): { severity: "damage" | "expected"; what: string; commitsMissing: number } | null {
  if (bad === null || bad.beyond < 2) return null;
  const commitsMissing = bad.beyond + (bad.ended ? 1 : 0);
  const where = bad.frame === 0 ? "Its header" : `Frame ${bad.frame} of it`;
  if (durability === "process" && rebooted) {
    const what = `The host went down, and durability "process" lets that take commits: ${commitsMissing} are gone.`;
    return { severity: "expected", what, commitsMissing };
  }
  const what = `The write-ahead log (-wal) is damaged. ${where} is not what was written, and ${commits(commitsMissing)} from there on cannot be read.`;
  return { severity: "damage", what, commitsMissing };
}

function commits(n: number): string {
  return `${n} commit${n === 1 ? "" : "s"}`;
}

function jobs(n: number): string {
  return `${n} job${n === 1 ? "" : "s"}`;
}

/** The write-ahead log of a file, as it stands. */
export interface WalView {
  /** What of it is in use; the file itself may be longer, from before. */
  bytes: number;
  /** So much of that is in the database, too. */
  copied: number;
  /** Who reads an earlier state, so that the log cannot start anew; those that can be told. */
  readers: WalReader[];
}

export interface WalReader {
  pid: number;
  program: string | null;
  /** How much of the log came after what it reads. */
  behind: number;
}

/** From this size in bytes on, the operator is warned: every reader gets slower, and the disk fills up. */
export const LONG_WAL = 64 * 1024 * 1024;
/** From here on something is wrong. */
export const VERY_LONG_WAL = 1024 * 1024 * 1024;

export function isLong({ bytes }: Pick<WalView, "bytes">): boolean {
  return bytes >= LONG_WAL;
}

/** `pid 4711 (report.ts), pid 4712`; null: no reader is known. */
export function sayReaders(readers: readonly WalReader[]): string | null {
  if (readers.length === 0) return null;
  return readers.map(({ pid, program }) => (program === null ? `pid ${pid}` : `pid ${pid} (${program})`)).join(", ");
}
