import { hostname } from "node:os";
import type { Command } from "commander";
import { HoldfastError } from "../core/errors.ts";
import { restoreWhole, type RestoredWhole } from "../runtime/restore.ts";
import { isAddress } from "../store/open-store.ts";
import { shown } from "./backup.ts";
import { artifactsOf, driverOf, fileOf, programOf } from "./database.ts";
import { examples } from "./help.ts";
import { clock } from "./terminal/age.ts";
import { paint } from "./terminal/colours.ts";
import { answer } from "./terminal/output.ts";
import { plural } from "./terminal/text.ts";

export function restoreCommand(parent: Command): void {
  parent
    .command("restore")
    .summary("put a backup in the place of the database")
    .description(
      "Put a backup in the place of the database. The backup is checked first, and nothing is changed while any process has the " +
        "database open (exit code 4). What is there is kept under a name with the time. Jobs that ran when the backup was made " +
        "run again; claims and locks of before are good for nothing any more.",
    )
    .argument("<backup>", "the backup: the path that `holdfast backup` was given")
    .option("--force", "also where another database is than the one that the backup was made of")
    .addHelpText("after", examples("holdfast restore /mnt/backups/monday.db", "holdfast restore monday.db --db work.db --json"))
    .action(async (backup: string, { force = false }: { force?: boolean }, command: Command) => {
      const path = fileOf(command);
      if (isAddress(path)) throw byServer();
      const artifacts = artifactsOf(command);
      const restored = await shown((tell) =>
        restoreWhole({
          path,
          backup,
          driver: driverOf(command),
          by: `${programOf(command)} (pid ${process.pid} on ${hostname()})`,
          now: Date.now(),
          force,
          onProgress: tell,
          ...(artifacts === undefined ? {} : { artifacts }),
        }),
      );
      const { manifest, hashes: _, ...rest } = restored;
      answer(command, { ...rest, takenAt: manifest?.takenAt ?? null }, () => say(restored));
    });
}

function say({ path, facts, manifest, kept, running, artifacts }: RestoredWhole): string {
  const jobs = Object.values(facts.counts.jobs).reduce((sum, n) => sum + n, 0);
  const lines = [
    `${paint("green", "Restored:")} ${path}, ${manifest === null ? "" : `as it was ${clock(manifest.takenAt)}, `}${plural(jobs, "job")}.`,
  ];
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

function byServer(): HoldfastError {
  return new HoldfastError(
    "RESTORE_BY_SERVER",
    "A database on a server is restored by the server's own tools.",
    "Stop all workers, run pg_restore, and then, in that database: truncate holdfast.awake. docs/postgres.md says why.",
  );
}
