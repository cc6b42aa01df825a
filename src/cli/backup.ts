import { existsSync, statSync } from "node:fs";
import { resolve } from "node:path";
import type { Command } from "commander";
import { clock } from "../core/age.ts";
import { HoldfastError } from "../core/errors.ts";
import { bytes, plural } from "../core/words.ts";
import { verifyWhole } from "../runtime/backup.ts";
import { Operator } from "../runtime/operator.ts";
import type { Manifest } from "../store/backups.ts";
import { driverOf, openExisting } from "./database.ts";
import { EXIT } from "./exit.ts";
import { answer } from "./render/output.ts";
import { paint } from "./render/table.ts";
import { withProgress } from "./render/terminal.ts";
import { examples } from "./verb.ts";

export function backupCommand(parent: Command): void {
  parent
    .command("backup")
    .summary("copy the whole database while everybody works, and check the copy")
    .description(
      "Copy the whole database as it is now, your own tables too, while workers go on; the copy is checked, and gets its name " +
        "only when it is whole and on the disk. Beside it comes a manifest, PATH.json, with counts and a hash. Artifacts are " +
        "listed there, and copied with --with-artifacts. Nothing is ever written over. With --verify: check a backup instead.",
    )
    .argument(
      "[path]",
      "where it goes: a file that is not there yet, or a folder (default: DATABASE-backups/, named by the time)",
    )
    .option("--with-artifacts", "copy the artifacts that are referenced, too, into PATH-artifacts")
    .option("--verify", "do not make one, but check the one at this path against its manifest")
    .addHelpText(
      "after",
      examples("holdfast backup", "holdfast backup /mnt/backups/monday.db", "holdfast backup --verify /mnt/backups/monday.db"),
    )
    .action(async (path: string | undefined, options: { withArtifacts?: boolean; verify?: boolean }, command: Command) => {
      if (options.verify) return await verify(path, command);
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const to = targetOf(operator, path);
      const manifest = await withProgress((tell) =>
        operator.backup(to, { artifacts: options.withArtifacts ?? false, onProgress: tell }),
      );
      // A copy of what is damaged is as damaged, and nobody should rely on it.
      if (manifest.findings.length > 0) process.exitCode = EXIT.damaged;
      answer(command, { path: to, ...manifest }, () => sayMade(to, manifest));
    });
}

async function verify(path: string | undefined, command: Command): Promise<void> {
  if (path === undefined) throw new HoldfastError("USAGE", "Which backup is to be checked?", "Give its path.");
  const verified = await withProgress((tell) => verifyWhole(path, driverOf(command), tell));
  const { manifest, facts, size, sha256 } = verified;
  answer(command, { path: verified.path, size, sha256, ...facts, manifest: manifest !== null }, () =>
    [
      `${paint("green", "Whole:")} ${verified.path}, ${bytes(size)}, ${sayJobs(facts.counts)}.`,
      manifest === null ? paint("yellow", "There is no manifest beside it, so it could be compared to nothing.") : "",
      manifest === null ? "" : `Taken ${clock(manifest.takenAt)}.`,
    ]
      .filter((line) => line !== "")
      .join("\n"),
  );
}

/** The path of the new backup: a file as given, or a new name in a folder. */
function targetOf(operator: Operator, path: string | undefined): string {
  const isFile = path !== undefined && !(existsSync(path) && statSync(path).isDirectory());
  return isFile ? resolve(path) : operator.backupPath(path);
}

function sayMade(path: string, { size, counts, artifacts, findings }: Manifest): string {
  const { included, hashes, missing, bytes: volume } = artifacts;
  const lines = [`${paint("green", "Backup:")} ${path}, ${bytes(size)}, ${sayJobs(counts)}.`];
  if (hashes.length > 0) {
    lines.push(
      included
        ? `${plural(hashes.length, "artifact")} with it, ${bytes(volume)}.`
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

function sayJobs({ jobs }: Manifest["counts"]): string {
  return plural(
    Object.values(jobs).reduce((sum, n) => sum + n, 0),
    "job",
  );
}
