import { RECOVER_COMMAND } from "./recovery-report.ts";
import { durationText } from "../text/duration.ts";
import { bytesText, plural } from "../text/text.ts";
import { isLong, readersText, VERY_LONG_WAL_BYTES, type WalView } from "./loss.ts";

/** "damage": stored data changed. "error": something does not work. "warning": it will not work, or not well. */
export type Grade = "damage" | "error" | "warning" | "note";

export interface Diagnosis {
  grade: Grade;
  area: Area;
  message: string;
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

/** What the doctor collected. A part is null if it is unreadable or not applicable. */
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
  journal: { changes: number; since: number | null } | null;
  clock: { latest: number; store: number; stepsBack: readonly { at: number; by: number }[] } | null;
  reports: readonly { state: string; errors: readonly string[]; begunAt: number }[];
  findings: readonly { severity: "damage" | "loss" | "expected" | "row" | "unlocked"; what: string }[];
  checked: readonly string[];
  transactions: readonly { pid: number; program: string; since: number }[];
}

const MIB = 1024 * 1024;
const DAY_MS = 86_400_000;
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

function diagnosis(grade: Grade, area: Area, message: string, mend: string | null): Diagnosis {
  return { grade, area, message, mend };
}

function ofDamage({ findings, checked }: Inspection): Diagnosis[] {
  const mend = "holdfast doctor --recheck; then holdfast salvage, or holdfast restore BACKUP";
  const known = findings.map(({ severity, what }) => {
    switch (severity) {
      case "damage":
        return diagnosis("damage", "damage", what, mend);
      case "unlocked":
        return diagnosis("error", "processes", what, RESTART_HINT);
      case "row":
        return diagnosis("warning", "damage", what, "holdfast quarantine list");
      default:
        return diagnosis(severity === "loss" ? "error" : "note", "damage", what, "holdfast recover --last");
    }
  });
  if (known.some(({ grade }) => grade === "damage")) return known;
  return [...known, ...checked.map((message) => diagnosis("damage", "damage", message, mend))];
}

const RESTART_HINT = "restart that process; use holdfast backup where it copies or reads the database's files";

function ofDisk({ disk, file, size, schema }: Inspection): Diagnosis[] {
  const found: Diagnosis[] = [];
  if (file !== null && (file.mode & 0o007) !== 0) {
    const mode = `0${(file.mode & 0o777).toString(8)}`;
    const message = `Every user of this host can open the database (mode ${mode}), read it, and hold up its writers.`;
    found.push(diagnosis("warning", "disk", message, `chmod -R o= '${file.path}' '${file.path}'-*`));
  }
  if (disk !== null && disk.network !== null) {
    const message = `${disk.folder} is on a network file system (${disk.network}): locks cannot be trusted there.`;
    found.push(diagnosis("error", "disk", message, "move it to a local disk"));
  }
  const needed = size?.bytes ?? 0;
  if (disk !== null && disk.free < MIN_FREE_BYTES) {
    found.push(diagnosis("error", "disk", `There are only ${bytesText(disk.free)} left on the disk.`, "free some space"));
  } else if (disk !== null && disk.free < needed) {
    const message = `There are ${bytesText(disk.free)} left, and a backup or a salvage needs ${bytesText(needed)}.`;
    found.push(diagnosis("warning", "disk", message, "free some space"));
  }
  if (size !== null && size.unused > MIN_FREE_BYTES && size.unused > size.bytes / 2) {
    const message = `${bytesText(size.unused)} of ${bytesText(size.bytes)} are unused.`;
    found.push(
      diagnosis(
        "note",
        "disk",
        message,
        "back up and restore the database to make the file small: holdfast backup, holdfast restore BACKUP",
      ),
    );
  }
  if (schema !== null && schema.version !== schema.known) {
    const message = `The schema is version ${schema.version}, and this Holdfast writes ${schema.known}.`;
    found.push(diagnosis("warning", "schema", message, "start a worker of this version"));
  }
  return found;
}

function ofSettings({ settings }: Inspection): Diagnosis[] {
  return settings
    .filter(({ value, wanted }) => wanted !== null && value !== wanted)
    .map(({ name, value, wanted }) => {
      const message = `${name} is ${value}, and should be ${wanted}.`;
      if (name !== "data_checksums") return diagnosis("error", "settings", message, `set ${name} to ${wanted}`);
      return diagnosis("warning", "settings", message, "pg_checksums --enable, while the server is down");
    });
}

function ofWal({ wal }: Inspection): Diagnosis[] {
  if (wal === null || !isLong(wal)) return [];
  const who = readersText(wal.readers);
  const pinned = who === null ? "" : `; ${who} reads an earlier state and pins it`;
  const mend =
    who === null
      ? "end transactions that are open for long, in programs that use this file"
      : "end that transaction, or that program";
  const grade = wal.bytes >= VERY_LONG_WAL_BYTES ? "error" : "warning";
  return [diagnosis(grade, "wal", `The write-ahead log has ${bytesText(wal.bytes)}${pinned}.`, mend)];
}

function ofTransactions({ transactions, now }: Inspection): Diagnosis[] {
  return transactions.map(({ pid, program, since }) => {
    const message = `A transaction of ${program} (server's pid ${pid}) is open for ${durationText(now - since)}, and keeps the server from cleaning up.`;
    return diagnosis("warning", "wal", message, `select pg_terminate_backend(${pid})`);
  });
}

function ofProcesses({ processes, locks }: Inspection): Diagnosis[] {
  const dead = processes.filter((one) => one.dead);
  const stale = locks.filter((lock) => lock.stale);
  return [
    ...dead.slice(0, MAX_NAMED).map(({ pid, host, program, running }) => {
      const message = `${program} (pid ${pid} on ${host}) is dead, and has left ${plural(running, "job")}.`;
      return diagnosis("warning", "processes", message, RECOVER_COMMAND);
    }),
    ...more(dead.length, "processes", "dead processes", RECOVER_COMMAND),
    ...stale.slice(0, MAX_NAMED).map(({ name, holder }) => {
      return diagnosis("warning", "locks", `The lock ${name} of ${holder} has run out.`, `holdfast unlock ${name}`);
    }),
    ...more(stale.length, "locks", "locks that have run out", "holdfast unlock"),
  ];
}

function ofJobs({ stuck }: Inspection): Diagnosis[] {
  const mend = "holdfast recover --expired-for 1m";
  return [
    ...stuck.slice(0, MAX_NAMED).map(({ id, why, by }) => {
      if (why === "forgotten") {
        const message = `Job ${id} waits, and nothing is known that it waits for.`;
        return diagnosis("error", "jobs", message, `holdfast jobs cancel ${id}`);
      }
      const what = why === "expired" ? "its lease ran out" : "it is past its timeout";
      const message = `Job ${id} is stuck: ${what} ${durationText(by ?? 0)} ago, and no process has reclaimed it.`;
      return diagnosis("warning", "jobs", message, mend);
    }),
    ...more(stuck.length, "jobs", "jobs that are stuck", mend),
  ];
}

function ofArtifacts({ artifacts }: Inspection): Diagnosis[] {
  if (artifacts === null) return [];
  const found: Diagnosis[] = [];
  const [first] = artifacts.missing;
  if (first !== undefined) {
    const others = artifacts.missing.length === 1 ? "" : ` and ${artifacts.missing.length - 1} more`;
    const message = `Artifacts that something refers to are missing: ${first}${others}.`;
    found.push(
      diagnosis("error", "artifacts", message, "restore a backup that was made with --with-artifacts: holdfast restore BACKUP"),
    );
  }
  if (artifacts.orphaned > 0) {
    const message = `${artifacts.orphaned} of ${artifacts.there} artifacts are referenced by nothing.`;
    found.push(diagnosis("note", "artifacts", message, "holdfast artifacts sweep"));
  }
  return found;
}

function ofAudit({ audit }: Inspection): Diagnosis[] {
  if (audit === null || audit.fault === null) return [];
  return [diagnosis("damage", "audit", `The audit is not as it was written. ${audit.fault}`, "holdfast audit verify")];
}

function ofBackups({ backups, now }: Inspection): Diagnosis[] {
  if (backups === null) return [];
  const { folder, newest, every } = backups;
  if (newest === null) return [diagnosis("warning", "backups", `There is no backup in ${folder}.`, "holdfast backup")];
  if (now - newest <= (every === null ? OLD_BACKUP_MS : 2 * every)) return [];
  return [diagnosis("warning", "backups", `The newest backup is ${durationText(now - newest)} old.`, "holdfast backup")];
}

function ofJournal({ journal, now }: Inspection): Diagnosis[] {
  if (journal === null || journal.since === null || now - journal.since <= JOURNAL_LATE_MS) return [];
  const message = `The journal's files lack ${plural(journal.changes, "change")}, the oldest of ${durationText(now - journal.since)} ago: they are in the database alone.`;
  const mend = "see that DATABASE-changes/ can be written, and that its disk is not full";
  return [diagnosis("warning", "backups", message, mend)];
}

function ofClock({ clock, now }: Inspection): Diagnosis[] {
  if (clock === null) return [];
  const found: Diagnosis[] = [];
  const add = (grade: Grade, message: string) =>
    found.push(diagnosis(grade, "clock", message, "see that the host's clock is kept by NTP"));
  const { latest, store, stepsBack } = clock;
  if (latest > store + MAX_CLOCK_SKEW_MS) {
    const ahead = durationText(latest - store);
    add("warning", `Something is written down for ${ahead} from now: a clock was set back, or another host's is ahead.`);
  }
  if (Math.abs(store - now) > MAX_CLOCK_SKEW_MS) {
    const direction = now > store ? "ahead of" : "behind";
    add("note", `The clock of this host is ${durationText(Math.abs(store - now))} ${direction} the server's.`);
  }
  const last = stepsBack.at(-1);
  if (last !== undefined) {
    const times = stepsBack.length === 1 ? "once" : `${stepsBack.length} times`;
    const when = durationText(Math.max(0, now - last.at));
    add("note", `The clock has gone back ${times} lately, last by ${durationText(last.by)}, ${when} ago.`);
  }
  return found;
}

function ofReports({ reports, now }: Inspection): Diagnosis[] {
  return reports.map(({ state, errors, begunAt }) => {
    if (state !== "failed") {
      return diagnosis("note", "recovery", `A recovery is under way for ${durationText(now - begunAt)}.`, null);
    }
    const message = `After a crash something was found to be wrong: ${errors[0] ?? ""}`;
    return diagnosis("error", "recovery", message, "holdfast recover --last && holdfast recover --acknowledge");
  });
}

function more(count: number, area: Area, what: string, mend: string): Diagnosis[] {
  return count <= MAX_NAMED ? [] : [diagnosis("warning", area, `And ${count - MAX_NAMED} more ${what}.`, mend)];
}
