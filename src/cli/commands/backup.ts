import { definedOnly } from "../../core/text/options.ts";
import { existsSync, statSync } from "node:fs";
import { join, resolve } from "node:path";
import type { Command } from "commander";
import { clockText } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { bytesText, firstOf, plural } from "../../core/text/text.ts";
import { verifyWhole } from "../../engine/maintenance/backups.ts";
import { Operator } from "../../operator/operator.ts";
import { databaseAt, type RestoredDatabase, restoreWhole, salvageWhole } from "../../operator/restore.ts";
import { backupsFolder, backupsIn, type Manifest } from "../../store/backups.ts";
import { isAddress } from "../../store/open-store.ts";
import type { SalvageReport } from "../../store/sqlite/maintenance/salvage/rebuild.ts";
import type { SalvagedDatabase } from "../../store/sqlite/maintenance/salvage/salvage.ts";
import { actorOf, driverOf, fileOf, openExisting, optionsOf } from "../database.ts";
import { EXIT } from "../exit.ts";
import { answer } from "../render/output.ts";
import { paint } from "../render/table.ts";
import { withProgress } from "../render/terminal.ts";
import { addCommand } from "../verb.ts";

export function backupCommand(parent: Command): void {
  addCommand(parent, "backup", {
    description:
      "Copy the whole database as it is now, your own tables too, while workers continue. The copy is checked, and gets " +
      "its name only when it is whole and on disk, with a manifest beside it, PATH.json. Existing files are never " +
      "overwritten. With --verify: check a backup instead.",
    examples: ["holdfast backup", "holdfast backup /mnt/backups/monday.db", "holdfast backup --verify /mnt/backups/monday.db"],
  })
    .argument(
      "[path]",
      "where it goes: a file that is not there yet, or a folder (default: DATABASE-backups/, named by the time)",
    )
    .option("--with-artifacts", "copy the artifacts that are referenced, too, into PATH-artifacts")
    .option("--verify", "check the backup at this path against its manifest")
    .action(async (path: string | undefined, options: { withArtifacts?: boolean; verify?: boolean }, command: Command) => {
      if (options.verify) return await verifyBackup(path, command);
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const to = targetOf(operator, path);
      const manifest = await withProgress((onProgress) =>
        operator.backup(to, { artifacts: options.withArtifacts ?? false, onProgress }),
      );
      // The backup of a damaged database is damaged, too.
      if (manifest.findings.length > 0) process.exitCode = EXIT.damaged;
      answer(command, { path: to, ...manifest }, () => backupText(to, manifest));
    });
}

async function verifyBackup(path: string | undefined, command: Command): Promise<void> {
  if (path === undefined) throw new HoldfastError("USAGE", "No backup to check was given.", "Give its path.");
  const verified = await withProgress((onProgress) => verifyWhole(path, driverOf(command), onProgress));
  const { manifest, facts, size, sha256 } = verified;
  answer(command, { path: verified.path, size, sha256, ...facts, manifest: manifest !== null }, () =>
    [
      `${paint("green", "Whole:")} ${verified.path}, ${bytesText(size)}, ${jobsText(facts.counts)}.`,
      manifest === null ? paint("yellow", "There is no manifest beside it, so it could be compared to nothing.") : "",
      manifest === null ? "" : `Taken ${clockText(manifest.takenAt)}.`,
    ]
      .filter((line) => line !== "")
      .join("\n"),
  );
}

function targetOf(operator: Operator, path: string | undefined): string {
  const isFile = path !== undefined && !(existsSync(path) && statSync(path).isDirectory());
  return isFile ? resolve(path) : operator.backupPath(path);
}

function backupText(path: string, { size, counts, artifacts, findings }: Manifest): string {
  const { included, hashes, missing, bytes: volume } = artifacts;
  const lines = [`${paint("green", "Backup:")} ${path}, ${bytesText(size)}, ${jobsText(counts)}.`];
  if (hashes.length > 0) {
    lines.push(
      included
        ? `${plural(hashes.length, "artifact")} with it, ${bytesText(volume)}.`
        : `${plural(hashes.length, "artifact")} referenced, not copied (--with-artifacts does).`,
    );
  }
  if (missing.length > 0)
    lines.push(paint("yellow", `${plural(missing.length, "artifact")} referenced, but missing or damaged.`));
  if (findings.length > 0) {
    lines.push(paint("red", "The database is damaged, and so is this copy:"), ...findings.map((finding) => `  ${finding}`));
  }
  return lines.join("\n");
}

function jobsText({ jobs }: Manifest["counts"]): string {
  return plural(
    Object.values(jobs).reduce((sum, n) => sum + n, 0),
    "job",
  );
}

export function restoreCommand(parent: Command): void {
  addCommand(parent, "restore", {
    description:
      "Replace the database with a backup. The backup is checked first, and nothing is changed while any process has " +
      "the database open (exit code 4). The old files are kept under a name with the time. Jobs that ran when the " +
      "backup was made run again; older claims and locks are no longer valid. With --at the journal is replayed on top " +
      "of the backup.",
    examples: [
      "holdfast restore /mnt/backups/monday.db",
      "holdfast restore --at 2030-01-31T12:00:00Z",
      "holdfast restore monday.db --json",
    ],
  })
    .argument("[backup]", "the backup: the path that `holdfast backup` was given; with --at it can be found")
    .option("--at <time>", "replay the journal up to this time, e.g. 2030-01-31T12:00:00Z; needs `journal: true`")
    .option("--force", "also replace another database than the backup's")
    .action(async (given: string | undefined, options: { force?: boolean; at?: string }, command: Command) => {
      const path = fileOf(command);
      if (isAddress(path)) throw restoreByServer(optionsOf(command).schema ?? "holdfast");
      const { force = false } = options;
      const at = options.at === undefined ? undefined : parseAt(options.at);
      const driver = driverOf(command);
      const backup = given ?? baseOf(path, at, optionsOf(command).backups?.folder, databaseAt(path, driver));
      const artifacts = optionsOf(command).artifacts;
      const restored = await withProgress((onProgress) =>
        restoreWhole({
          path,
          backup,
          driver,
          by: actorOf(command),
          now: Date.now(),
          force,
          onProgress,
          ...definedOnly({ at, artifacts }),
        }),
      );
      const { manifest, hashes: _, ...rest } = restored;
      answer(command, { ...rest, takenAt: manifest?.takenAt ?? null }, () => restoredText(restored));
    });
}

function baseOf(path: string, at: number | undefined, folder: string | undefined, databaseId: string | null): string {
  if (at === undefined)
    throw new HoldfastError("USAGE", "No backup to restore was given.", "Give its path, or an instant with --at.");
  const place = resolve(folder ?? backupsFolder(resolve(path)));
  const found = backupsIn(place, databaseId).find(
    ({ changes, copiedAt, findings }) => typeof changes === "number" && copiedAt <= at && findings.length === 0,
  );
  if (found !== undefined) return join(place, found.file);
  throw new HoldfastError(
    "NO_BACKUP",
    `${place} has no backup from before that instant with a journal that continues it.`,
    "Give the path of one, or a later instant.",
  );
}

function parseAt(text: string): number {
  const at = /^\d{11,}$/.test(text) ? Number(text) : Date.parse(text);
  if (Number.isSafeInteger(at)) return at;
  throw new HoldfastError(
    "USAGE",
    `--at ${text} is not a time.`,
    "Give a time such as 2030-01-31T12:00:00Z, or milliseconds since 1970.",
  );
}

function restoredText({ path, counts, manifest, kept, running, artifacts, replayed }: RestoredDatabase): string {
  const jobs = Object.values(counts.jobs).reduce((sum, n) => sum + n, 0);
  const since = replayed?.reached ?? manifest?.takenAt ?? null;
  const lines = [
    `${paint("green", "Restored:")} ${path}, ${since === null ? "" : `as it was ${clockText(since)}, `}${plural(jobs, "job")}.`,
  ];
  if (manifest === null) {
    lines.push(paint("yellow", "The backup has no manifest, so its content was not compared to one."));
  }
  if (replayed !== null) {
    const until =
      replayed.reached === null
        ? "nothing was done after it until then"
        : `the last commit was made ${clockText(replayed.reached)}`;
    lines.push(`${plural(replayed.changes, "change")} after the backup by the journal; ${until}.`);
  }
  if (running > 0) lines.push(`${plural(running, "job")} ran then, and will run again.`);
  if (kept !== null) lines.push(`What was there is kept: ${kept}`);
  if (artifacts.restored > 0) lines.push(`${plural(artifacts.restored, "artifact")} brought back.`);
  if (artifacts.missing.length > 0) {
    lines.push(
      paint("yellow", `${plural(artifacts.missing.length, "artifact")} referenced, but not to be had: ${artifacts.missing[0]} …`),
    );
  }
  return lines.join("\n");
}

function restoreByServer(schema: string): HoldfastError {
  return new HoldfastError(
    "RESTORE_BY_SERVER",
    "Holdfast does not restore a database on a PostgreSQL server.",
    `Stop all workers, run pg_restore, and then, in that database: truncate ${schema}.awake. See docs/postgres.md.`,
  );
}

const NAMES_SHOWN = 10;

export function salvageCommand(parent: Command): void {
  addCommand(parent, "salvage", {
    description:
      "Make a new database from what can be read of a damaged one, your own tables too, and put it in its place. The " +
      "newest backup fills the gaps. The damaged file is kept with its log under a name with the time, and a list of " +
      "what was saved, restored and lost beside it. Nothing is changed while any process has the database open (exit " +
      "code 4). Running jobs run again.",
    examples: ["holdfast salvage", "holdfast salvage --from /mnt/backups/monday.db", "holdfast salvage --json"],
  })
    .option("--from <backup>", "the backup to take the rest from (default: the newest that is whole)")
    .option("--no-backup", "only what can be read, nothing from a backup")
    .action(async ({ from, backup }: { from?: string; backup: boolean }, command: Command) => {
      const path = fileOf(command);
      if (isAddress(path)) throw salvageByServer();
      const folder = optionsOf(command).backups?.folder;
      const salvaged = await withProgress((onProgress) =>
        salvageWhole({
          path,
          driver: driverOf(command),
          by: actorOf(command),
          now: Date.now(),
          onProgress,
          ...definedOnly({ backup: from ?? (backup ? undefined : null), folder }),
        }),
      );
      answer(command, salvaged, () => salvagedText(salvaged));
    });
}

function salvagedText({ path, kept, reportFile, running, report, findings }: SalvagedDatabase): string {
  const { jobs, backup } = report;
  const lines = [`${paint("green", "Salvaged:")} ${path}, ${plural(jobs.saved, "job")} read.`];
  const restored = report.tables.reduce((total, table) => total + table.restored, 0);
  if (backup !== null && restored > 0) {
    const taken = backup.takenAt === null ? "" : `, as they were ${clockText(backup.takenAt)}`;
    lines.push(
      `From the backup ${backup.path}${taken}: ${plural(restored, "row")}, ${plural(jobs.restored.length, "job")} among them.`,
    );
  }
  if (running > 0) lines.push(`${plural(running, "job")} ran, and will run again.`);
  for (const [ids, what] of [
    [jobs.quarantined, "waited for others that are lost, and are in quarantine"],
    [report.abandonedBuilds, "had not ended, and were abandoned: the next build reuses what they have finished"],
  ] as const) {
    if (ids.length > 0) lines.push(paint("yellow", `${firstOf(ids, NAMES_SHOWN)}: ${what}.`));
  }
  lines.push(...lostLines(report), ...report.notes, ...findings.map((finding) => paint("red", finding)));
  lines.push(`The damaged file is kept: ${kept}`, `All of this, to the row: ${reportFile}`);
  return lines.join("\n");
}

function lostLines({ jobs, tables, notes }: SalvageReport): string[] {
  const lines = tables.flatMap(({ table, lost }) => (lost.length === 0 ? [] : [`  ${table}: ${firstOf(lost, NAMES_SHOWN)}`]));
  if (jobs.lostIds.length > 0) lines.push(`  ids of lost jobs: ${firstOf(jobs.lostIds, NAMES_SHOWN)}`);
  if (lines.length > 0) return [paint("red", "Lost, as far as there was anything, by key:"), ...lines];
  return [notes.length === 0 ? "Nothing is lost." : "Nothing else is known to be lost."];
}

function salvageByServer(): HoldfastError {
  return new HoldfastError(
    "RESTORE_BY_SERVER",
    "Holdfast does not salvage a database on a PostgreSQL server.",
    "Use pg_amcheck, and restore the server's last backup. docs/postgres.md lists the steps after that.",
  );
}
