import { RECOVER_COMMAND } from "./recovery-plan.ts";
import { durationText } from "../text/duration.ts";
import { bytesText, plural } from "../text/text.ts";
import { isLong, readersText, VERY_LONG_WAL_BYTES, type WalView } from "./loss.ts";

/** "damage": stored data changed. "error": something does not work. "warning": it will not, or not well. */
export type Grade = "damage" | "error" | "warning" | "note";

export interface Diagnosis {
  grade: Grade;
  area: Area;
  message: string;
  /** The command that fixes it; null: nothing to do. */
  mend: string | null;
}

export type Area =
  | "artifacts"
  | "audit"
  | "backups"
  | "clock"
  | "damage"
  | "disk"
  | "jobs"
  | "locks"
  | "processes"
  | "recovery"
  | "schema"
  | "settings"
  | "wal";

/** What the doctor collected. Null: unreadable, or not applicable. */
export interface Inspection {
  now: number;
  disk: { folder: string; network: string | null; free: number } | null;
  file: { path: string; mode: number } | null;
  size: { bytes: number; unused: number } | null;
  schema: { version: number; known: number } | null;
  settings: readonly { name: string; value: string; wanted: string | null }[];
  wal: WalView | null;
  processes: readonly { pid: number; host: string; program: string; dead: boolean; running: number }[];
  locks: readonly { name: string; holder: string; stale: boolean }[];
  stuck: readonly { id: string; why: "expired" | "overdue" | "forgotten"; by: number | null }[];
  artifacts: { there: number; orphaned: number; missing: readonly string[] } | null;
  audit: { entries: number; fault: string | null } | null;
  backups: { folder: string; count: number; newest: number | null; every: number | null } | null;
  /** Changes that no file of the journal has yet, and since when. */
  journal: { changes: number; since: number | null } | null;
  clock: { latest: number; store: number; stepsBack: readonly { at: number; by: number }[] } | null;
  reports: readonly { state: string; errors: readonly string[]; begunAt: number }[];
  findings: readonly { severity: "damage" | "loss" | "expected" | "row" | "unlocked"; what: string }[];
  checked: readonly string[];
  transactions: readonly { pid: number; program: string; since: number }[];
}

const MIB = 1024 * 1024;
const DAY_MS = 86_400_000;
/** A disk with less free space counts as full. */
const MIN_FREE_BYTES = 64 * MIB;
const OLD_BACKUP_MS = 7 * DAY_MS;
/** A commit reaches a file of the journal within a second or two. */
const JOURNAL_LATE_MS = 60_000;
const MAX_CLOCK_SKEW_MS = 2_000;
const MAX_NAMED = 3;

export function diagnose(seen: Inspection): Diagnosis[] {
  const found = [
    ...ofDamage(seen),
    ...ofDisk(seen),
    ...ofSettings(seen),
    ...ofWal(seen),
    ...ofTransactions(seen),
    ...ofProcesses(seen),
    ...ofJobs(seen),
    ...ofArtifacts(seen),
    ...ofAudit(seen),
    ...ofBackups(seen),
    ...ofJournal(seen),
    ...ofClock(seen),
    ...ofReports(seen),
  ];
  return found.sort((a, b) => GRADES.indexOf(a.grade) - GRADES.indexOf(b.grade));
}

const GRADES: readonly Grade[] = ["damage", "error", "warning", "note"];

function ofDamage({ findings, checked }: Inspection): Diagnosis[] {
  const mend = "holdfast doctor --recheck; then holdfast salvage, or holdfast restore BACKUP";
  const known = findings.map(({ severity, what }): Diagnosis => {
    if (severity === "damage") return { grade: "damage", area: "damage", message: what, mend };
    if (severity === "unlocked") return { grade: "error", area: "processes", message: what, mend: RESTART };
    const grade = severity === "loss" ? "error" : severity === "row" ? "warning" : "note";
    return {
      grade,
      area: "damage",
      message: what,
      mend: severity === "row" ? "holdfast quarantine list" : "holdfast recover --last",
    };
  });
  const isKnown = known.some(({ grade }) => grade === "damage");
  const now = checked.map((message): Diagnosis => ({ grade: "damage", area: "damage", message, mend }));
  return [...known, ...(isKnown ? [] : now)];
}

const RESTART = "restart that process; use holdfast backup where it copies or reads the database's files";

function ofDisk({ disk, file, size, schema }: Inspection): Diagnosis[] {
  const found: Diagnosis[] = [];
  const say = (grade: Grade, area: Area, message: string, mend: string | null) => found.push({ grade, area, message, mend });
  if (file !== null && (file.mode & 0o007) !== 0) {
    const mode = `0${(file.mode & 0o777).toString(8)}`;
    const message = `Every user of this host can open the database (mode ${mode}), read it, and hold up its writers.`;
    say("warning", "disk", message, `chmod -R o= '${file.path}' '${file.path}'-*`);
  }
  if (disk !== null && disk.network !== null) {
    say(
      "error",
      "disk",
      `${disk.folder} is on a network file system (${disk.network}): locks cannot be trusted there.`,
      "move it to a local disk",
    );
  }
  const needed = size?.bytes ?? 0;
  if (disk !== null && disk.free < MIN_FREE_BYTES)
    say("error", "disk", `There are only ${bytesText(disk.free)} left on the disk.`, "free some space");
  else if (disk !== null && disk.free < needed) {
    say(
      "warning",
      "disk",
      `There are ${bytesText(disk.free)} left, and a backup or a salvage needs ${bytesText(needed)}.`,
      "free some space",
    );
  }
  if (size !== null && size.unused > MIN_FREE_BYTES && size.unused > size.bytes / 2) {
    say(
      "note",
      "disk",
      `${bytesText(size.unused)} of ${bytesText(size.bytes)} are unused.`,
      "holdfast backup, then holdfast restore of it, makes it small",
    );
  }
  if (schema !== null && schema.version !== schema.known) {
    say(
      "warning",
      "schema",
      `The schema is version ${schema.version}, and this Holdfast writes ${schema.known}.`,
      "start a worker of this version",
    );
  }
  return found;
}

function ofSettings({ settings }: Inspection): Diagnosis[] {
  return settings
    .filter(({ value, wanted }) => wanted !== null && value !== wanted)
    .map(({ name, value, wanted }) => {
      const grade = name === "data_checksums" ? "warning" : "error";
      const mend = name === "data_checksums" ? "pg_checksums --enable, while the server is down" : `set ${name} to ${wanted}`;
      return { grade, area: "settings", message: `${name} is ${value}, and should be ${wanted}.`, mend };
    });
}

function ofWal({ wal }: Inspection): Diagnosis[] {
  if (wal === null || !isLong(wal)) return [];
  const who = readersText(wal.readers);
  const message = `The write-ahead log has ${bytesText(wal.bytes)}${who === null ? "" : `; ${who} reads an earlier state and pins it`}.`;
  const mend =
    who === null
      ? "end transactions that are open for long, in programs that use this file"
      : "end that transaction, or that program";
  return [{ grade: wal.bytes >= VERY_LONG_WAL_BYTES ? "error" : "warning", area: "wal", message, mend }];
}

function ofTransactions({ transactions, now }: Inspection): Diagnosis[] {
  return transactions.map(({ pid, program, since }) => ({
    grade: "warning",
    area: "wal",
    message: `A transaction of ${program} (server's pid ${pid}) is open for ${durationText(now - since)}, and keeps the server from cleaning up.`,
    mend: `select pg_terminate_backend(${pid})`,
  }));
}

function ofProcesses({ processes, locks }: Inspection): Diagnosis[] {
  const dead = processes.filter((one) => one.dead);
  const stale = locks.filter((lock) => lock.stale);
  return [
    ...dead.slice(0, MAX_NAMED).map(({ pid, host, program, running }): Diagnosis => {
      const message = `${program} (pid ${pid} on ${host}) is dead, and has left ${plural(running, "job")}.`;
      return { grade: "warning", area: "processes", message, mend: RECOVER_COMMAND };
    }),
    ...more(dead.length, "processes", "dead processes", RECOVER_COMMAND),
    ...stale.slice(0, MAX_NAMED).map(({ name, holder }): Diagnosis => {
      return {
        grade: "warning",
        area: "locks",
        message: `The lock ${name} of ${holder} has run out.`,
        mend: `holdfast unlock ${name}`,
      };
    }),
    ...more(stale.length, "locks", "locks that have run out", "holdfast unlock"),
  ];
}

function ofJobs({ stuck }: Inspection): Diagnosis[] {
  return [
    ...stuck.slice(0, MAX_NAMED).map(({ id, why, by }): Diagnosis => {
      if (why === "forgotten") {
        const message = `Job ${id} waits, and nothing is known that it waits for.`;
        return { grade: "error", area: "jobs", message, mend: `holdfast jobs cancel ${id}` };
      }
      const what = why === "expired" ? "its lease ran out" : "it is past its timeout";
      const message = `Job ${id} is stuck: ${what} ${durationText(by ?? 0)} ago, and no process has reclaimed it.`;
      return { grade: "warning", area: "jobs", message, mend: "holdfast recover --expired-for 1m" };
    }),
    ...more(stuck.length, "jobs", "jobs that are stuck", "holdfast recover --expired-for 1m"),
  ];
}

function ofArtifacts({ artifacts }: Inspection): Diagnosis[] {
  if (artifacts === null) return [];
  const found: Diagnosis[] = [];
  const [first] = artifacts.missing;
  if (first !== undefined) {
    const others = artifacts.missing.length === 1 ? "" : ` and ${artifacts.missing.length - 1} more`;
    const message = `Artifacts that something refers to are missing: ${first}${others}.`;
    found.push({ grade: "error", area: "artifacts", message, mend: "holdfast restore a backup that was made --with-artifacts" });
  }
  if (artifacts.orphaned > 0) {
    const message = `${artifacts.orphaned} of ${artifacts.there} artifacts are referenced by nothing.`;
    found.push({ grade: "note", area: "artifacts", message, mend: "holdfast artifacts sweep" });
  }
  return found;
}

function ofAudit({ audit }: Inspection): Diagnosis[] {
  if (audit === null || audit.fault === null) return [];
  return [
    {
      grade: "damage",
      area: "audit",
      message: `The audit is not as it was written. ${audit.fault}`,
      mend: "holdfast audit verify",
    },
  ];
}

function ofBackups({ backups, now }: Inspection): Diagnosis[] {
  if (backups === null) return [];
  const { folder, newest, every } = backups;
  if (newest === null) {
    return [{ grade: "warning", area: "backups", message: `There is no backup in ${folder}.`, mend: "holdfast backup" }];
  }
  const old = every === null ? OLD_BACKUP_MS : 2 * every;
  if (now - newest <= old) return [];
  return [
    {
      grade: "warning",
      area: "backups",
      message: `The newest backup is ${durationText(now - newest)} old.`,
      mend: "holdfast backup",
    },
  ];
}

function ofJournal({ journal, now }: Inspection): Diagnosis[] {
  if (journal === null || journal.since === null || now - journal.since <= JOURNAL_LATE_MS) return [];
  const message = `The journal's files lack ${plural(journal.changes, "change")}, the oldest of ${durationText(now - journal.since)} ago: they are in the database alone.`;
  const mend = "see that DATABASE-changes/ can be written, and that its disk is not full";
  return [{ grade: "warning", area: "backups", message, mend }];
}

function ofClock({ clock, now }: Inspection): Diagnosis[] {
  if (clock === null) return [];
  const found: Diagnosis[] = [];
  const mend = "see that the host's clock is kept by NTP";
  if (clock.latest > clock.store + MAX_CLOCK_SKEW_MS) {
    const message = `Something is written down for ${durationText(clock.latest - clock.store)} from now: a clock was set back, or another host's is ahead.`;
    found.push({ grade: "warning", area: "clock", message, mend });
  }
  if (Math.abs(clock.store - now) > MAX_CLOCK_SKEW_MS) {
    const message = `The clock of this host is ${durationText(Math.abs(clock.store - now))} ${now > clock.store ? "ahead of" : "behind"} the server's.`;
    found.push({ grade: "note", area: "clock", message, mend });
  }
  const last = clock.stepsBack.at(-1);
  if (last !== undefined) {
    const times = clock.stepsBack.length === 1 ? "once" : `${clock.stepsBack.length} times`;
    const message = `The clock has gone back ${times} lately, last by ${durationText(last.by)}, ${durationText(Math.max(0, now - last.at))} ago.`;
    found.push({ grade: "note", area: "clock", message, mend });
  }
  return found;
}

function ofReports({ reports, now }: Inspection): Diagnosis[] {
  return reports.map(({ state, errors, begunAt }) => {
    if (state !== "failed") {
      const message = `A recovery is under way for ${durationText(now - begunAt)}.`;
      return { grade: "note", area: "recovery", message, mend: null };
    }
    const message = `After a crash something was found to be wrong: ${errors[0] ?? ""}`;
    return { grade: "error", area: "recovery", message, mend: "holdfast recover --last, then --acknowledge" };
  });
}

function more(count: number, area: Area, what: string, mend: string): Diagnosis[] {
  return count <= MAX_NAMED ? [] : [{ grade: "warning", area, message: `And ${count - MAX_NAMED} more ${what}.`, mend }];
}
