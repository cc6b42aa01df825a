interface Extent {
  databaseId: string;
  epoch: number;
  commits: number;
  key: number;
}

export interface OpenCircumstances {
  durability: "power" | "process";
  rebooted: boolean;
  isNew: boolean;
  /** The host has been up since the witness was written. Otherwise the witness may lack its last second. */
  isExact: boolean;
  log: "there" | "missing" | "cut";
}

export interface Loss {
  severity: "loss" | "expected";
  what: string;
  commitsMissing: number;
}

export function findLoss(seen: Extent | null, here: Extent, circumstances: OpenCircumstances): Loss | null {
  if (seen === null) return null;
  // A restore puts an earlier state in place on purpose, and starts a new epoch.
  if (here.epoch > seen.epoch) return null;
  if (seen.databaseId !== here.databaseId) return replacedLoss(seen, circumstances.isNew);
  const missing = here.epoch < seen.epoch ? commitsOf(seen) : seen.commits - here.commits;
  const fewer = seen.key - here.key;
  if (missing <= 0 && fewer <= 0) return null;
  // If jobs are missing although the commit numbers agree, at least one commit is missing.
  const commitsMissing = Math.max(missing, 1);
  const both = fewer > 0 ? `${commits(commitsMissing)}, with ${jobs(fewer)},` : commits(commitsMissing);
  // Numbers of a missing epoch say nothing about what came before it.
  const exactly = circumstances.isExact && missing > 0 && here.epoch === seen.epoch;
  const isExpected = circumstances.durability === "process" && circumstances.rebooted;
  const why = isExpected
    ? `The host went down, and durability "process" lets that take the last of them`
    : here.epoch < seen.epoch
      ? "An older file was put into its place"
      : LOG_CAUSES[circumstances.log];
  return {
    severity: isExpected ? "expected" : "loss",
    what: `${exactly ? "" : "At least "}${both} were acknowledged and are gone. ${why}.`,
    commitsMissing,
  };
}

const LOG_CAUSES: Record<OpenCircumstances["log"], string> = {
  missing: "Its write-ahead log (-wal) is missing, or an older file was put into its place",
  cut: "Its write-ahead log (-wal) was cut off, or is damaged at its end",
  there: "Its write-ahead log (-wal) was cut off, an older file was put into its place, or the disk forgot what it had synced",
};

function replacedLoss(seen: Extent, isNew: boolean): Loss {
  const what = isNew ? "The database was gone, and a new one was made" : "Another database was put into its place";
  return { severity: "loss", what: `${what}: the one that was here had ${extentText(seen)}.`, commitsMissing: commitsOf(seen) };
}

export function extentText(seen: Extent): string {
  return `${commits(commitsOf(seen))} and ${jobs(seen.key)}`;
}

function commitsOf({ epoch, commits }: Extent): number {
  return Math.max(1, commits - epoch * COMMITS_PER_EPOCH);
}

/** Commits of one epoch, enough for a million a second for twelve days. */
export const COMMITS_PER_EPOCH = 2 ** 40;

/** Returns null if the log just ends, as after a crash. Two whole commits behind a bad frame prove that it was whole once. */
export function findLogDamage(
  bad: { frame: number; ended: boolean; beyond: number } | null,
  { durability, rebooted }: Pick<OpenCircumstances, "durability" | "rebooted">,
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

export interface WalView {
  bytes: number;
  copied: number;
  readers: WalReader[];
}

export interface WalReader {
  pid: number;
  program: string | null;
  behind: number;
}

/** From this size on the operator is warned, because every reader gets slower and the disk fills up. */
export const LONG_WAL_BYTES = 64 * 1024 * 1024;
export const VERY_LONG_WAL_BYTES = 1024 * 1024 * 1024;

export function isLong({ bytes }: Pick<WalView, "bytes">): boolean {
  return bytes >= LONG_WAL_BYTES;
}

export function readersText(readers: readonly WalReader[]): string | null {
  if (readers.length === 0) return null;
  return readers.map(({ pid, program }) => (program === null ? `pid ${pid}` : `pid ${pid} (${program})`)).join(", ");
}
