import { join, resolve } from "node:path";
import type { Command } from "commander";
import { clock } from "../core/age.ts";
import { HoldfastError } from "../core/errors.ts";
import { plural } from "../core/words.ts";
import { databaseAt, type RestoredWhole, restoreWhole } from "../runtime/restore.ts";
import { backupsFolder, backupsIn } from "../store/backup-folder.ts";
import { isAddress } from "../store/open-store.ts";
import { actorOf, artifactsOf, backupsOf, driverOf, fileOf, schemaOf } from "./database.ts";
import { answer } from "./render/output.ts";
import { paint } from "./render/table.ts";
import { withProgress } from "./render/terminal.ts";
import { examples } from "./verb.ts";

export function restoreCommand(parent: Command): void {
  parent
    .command("restore")
    .summary("put a backup in the place of the database")
    .description(
      "Put a backup in the place of the database. The backup is checked first, and nothing is changed while any process has the " +
        "database open (exit code 4). What is there is kept under a name with the time. Jobs that ran when the backup was made " +
        "run again; claims and locks of before are good for nothing any more. With --at the journal goes on from the backup.",
    )
    .argument("[backup]", "the backup: the path that `holdfast backup` was given; with --at it can be found")
    .option(
      "--at <time>",
      "go on from the backup to this instant, e.g. 2030-01-31T12:00:00Z; it takes a journal (`journal: true`)",
    )
    .option("--force", "also where another database is than the one that the backup was made of")
    .addHelpText(
      "after",
      examples(
        "holdfast restore /mnt/backups/monday.db",
        "holdfast restore --at 2030-01-31T12:00:00Z",
        "holdfast restore monday.db --json",
      ),
    )
    .action(async (given: string | undefined, options: { force?: boolean; at?: string }, command: Command) => {
      const path = fileOf(command);
      if (isAddress(path)) throw byServer(schemaOf(command));
      const { force = false } = options;
      const at = options.at === undefined ? undefined : instant(options.at);
      const driver = driverOf(command);
      const backup = given ?? baseOf(path, at, backupsOf(command), databaseAt(path, driver));
      const artifacts = artifactsOf(command);
      const restored = await withProgress((tell) =>
        restoreWhole({
          path,
          backup,
          driver,
          by: actorOf(command),
          now: Date.now(),
          force,
          ...(at === undefined ? {} : { at }),
          onProgress: tell,
          ...(artifacts === undefined ? {} : { artifacts }),
        }),
      );
      const { manifest, hashes: _, ...rest } = restored;
      answer(command, { ...rest, takenAt: manifest?.takenAt ?? null }, () => say(restored));
    });
}

/** The newest backup that holds nothing that was done later. */
function baseOf(path: string, at: number | undefined, folder: string | undefined, databaseId: string | null): string {
  if (at === undefined)
    throw new HoldfastError("USAGE", "Which backup is to be restored?", "Give its path, or an instant with --at.");
  const place = resolve(folder ?? backupsFolder(resolve(path)));
  const found = backupsIn(place, databaseId)
    .filter(({ changes, copiedAt, findings }) => typeof changes === "number" && copiedAt <= at && findings.length === 0)
    .toSorted((a, b) => b.copiedAt - a.copiedAt)[0];
  if (found !== undefined) return join(place, found.file);
  throw new HoldfastError(
    "NO_BACKUP",
    `In ${place} is no backup from before that instant that a journal goes on from.`,
    "Give the path of one, or a later instant.",
  );
}

function instant(text: string): number {
  const at = /^\d{11,}$/.test(text) ? Number(text) : Date.parse(text);
  if (Number.isSafeInteger(at)) return at;
  throw new HoldfastError("USAGE", `--at ${text} is no instant.`, "Give one as 2030-01-31T12:00:00Z, or in milliseconds.");
}

function say({ path, counts, manifest, kept, running, artifacts, replayed }: RestoredWhole): string {
  const jobs = Object.values(counts.jobs).reduce((sum, n) => sum + n, 0);
  const since = replayed?.reached ?? manifest?.takenAt ?? null;
  const lines = [
    `${paint("green", "Restored:")} ${path}, ${since === null ? "" : `as it was ${clock(since)}, `}${plural(jobs, "job")}.`,
  ];
  if (manifest === null) {
    lines.push(paint("yellow", "There was no manifest beside the backup, so it could be compared to nothing."));
  }
  if (replayed !== null) {
    const until =
      replayed.reached === null ? "nothing was done after it until then" : `the last commit was made ${clock(replayed.reached)}`;
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

function byServer(schema: string): HoldfastError {
  return new HoldfastError(
    "RESTORE_BY_SERVER",
    "A database on a server is restored by the server's own tools.",
    `Stop all workers, run pg_restore, and then, in that database: truncate ${schema}.awake. docs/postgres.md says why.`,
  );
}
