import type { Command } from "commander";
import { clock } from "../core/age.ts";
import { HoldfastError } from "../core/errors.ts";
import { number, plural } from "../core/words.ts";
import { salvageWhole } from "../runtime/salvage.ts";
import { isAddress } from "../store/open-store.ts";
import type { SalvageReport } from "../store/sqlite/salvage/report.ts";
import type { SalvagedDatabase } from "../store/sqlite/salvage/salvage.ts";
import { actorOf, backupsOf, driverOf, fileOf } from "./database.ts";
import { answer } from "./render/output.ts";
import { paint } from "./render/table.ts";
import { withProgress } from "./render/terminal.ts";
import { examples } from "./verb.ts";

/** How many ids and ranges are named; all of them stand in the report. */
const NAMED = 10;

export function salvageCommand(parent: Command): void {
  parent
    .command("salvage")
    .summary("make a new database of what can be read of a damaged one")
    .description(
      "Make a new database of what can still be read of a damaged one, your own tables too, and put it into its place. What " +
        "cannot be read is taken from the newest backup. The damaged file is only read, and kept with its log under a name " +
        "with the time; what was saved, restored and lost is listed, and kept beside it. Nothing is changed while any process " +
        "has the database open (exit code 4). What was running runs again.",
    )
    .option("--from <backup>", "the backup to take the rest from (default: the newest that is whole)")
    .option("--no-backup", "only what can be read, nothing from a backup")
    .addHelpText(
      "after",
      examples("holdfast salvage", "holdfast salvage --from /mnt/backups/monday.db", "holdfast salvage --json"),
    )
    .action(async ({ from, backup }: { from?: string; backup: boolean }, command: Command) => {
      const path = fileOf(command);
      if (isAddress(path)) throw byServer();
      const folder = backupsOf(command);
      const salvaged = await withProgress((tell) =>
        salvageWhole({
          path,
          driver: driverOf(command),
          by: actorOf(command),
          now: Date.now(),
          onProgress: tell,
          ...(backup ? {} : { backup: null }),
          ...(from === undefined ? {} : { backup: from }),
          ...(folder === undefined ? {} : { folder }),
        }),
      );
      answer(command, salvaged, () => say(salvaged));
    });
}

function say({ path, kept, reportFile, running, report, findings }: SalvagedDatabase): string {
  const { jobs, backup } = report;
  const lines = [`${paint("green", "Salvaged:")} ${path}, ${plural(jobs.saved, "job")} read.`];
  if (backup !== null && sum(report, "restored") > 0) {
    const since = backup.reached ?? backup.takenAt;
    const taken = since === null ? "" : `, as they were ${clock(since)}${backup.reached === null ? "" : " by the journal"}`;
    lines.push(
      `From the backup ${backup.path}${taken}: ${plural(sum(report, "restored"), "row")}, ${plural(jobs.restored.length, "job")} among them.`,
    );
  }
  if (running > 0) lines.push(`${plural(running, "job")} ran, and will run again.`);
  for (const [ids, what] of [
    [jobs.bereft, "waited for others that are lost, and are in quarantine"],
    [report.abandonedBuilds, "had not ended, and were abandoned: the next build reuses what they have finished"],
  ] as const) {
    if (ids.length > 0) lines.push(paint("yellow", `${named(ids)}: ${what}.`));
  }
  lines.push(...sayLost(report));
  lines.push(...report.notes, ...findings.map((finding) => paint("red", finding)));
  lines.push(`The damaged file is kept: ${kept}`, `All of this, to the row: ${reportFile}`);
  return lines.join("\n");
}

function sayLost({ jobs, tables, undefined: unmade, notes }: SalvageReport): string[] {
  const lost = tables.filter((table) => table.lost.length > 0);
  const lines = lost.map(({ table, lost: ranges }) => `  ${table}: ${named(ranges.map(sayRange))}`);
  if (jobs.lostIds.length > 0) lines.push(`  ids of lost jobs: ${named(jobs.lostIds)}`);
  if (jobs.nameless.length > 0) lines.push(`  jobs whose names are lost: ${named(jobs.nameless.map(String))}`);
  if (unmade.length > 0) lines.push(`  not made again: ${named(unmade)}`);
  const none = notes.length === 0 ? "Nothing is lost." : "Nothing else is known to be lost.";
  return lines.length === 0 ? [none] : [paint("red", "Lost, as far as there was anything:"), ...lines];
}

function sayRange(range: SalvageReport["tables"][number]["lost"][number]): string {
  if ("from" in range) return range.to === range.from ? String(range.from) : `${range.from} to ${range.to ?? "its end"}`;
  const { after, before } = range;
  const [from, to] = [sayKey(after, "its beginning"), sayKey(before, "its end")];
  return from === to ? from : `after ${from}, before ${to}`;
}

function sayKey(key: unknown[] | null, without: string): string {
  return key === null ? without : key.map(String).join("/");
}

function named(what: readonly string[]): string {
  const more = what.length > NAMED ? ` and ${number(what.length - NAMED)} more` : "";
  return what.slice(0, NAMED).join(", ") + more;
}

function sum({ tables }: SalvageReport, what: "saved" | "restored"): number {
  return tables.reduce((total, table) => total + table[what], 0);
}

function byServer(): HoldfastError {
  return new HoldfastError(
    "RESTORE_BY_SERVER",
    "A database on a server is mended by the server's own tools.",
    "See pg_amcheck, and restore the server's last backup. docs/postgres.md says what comes after that.",
  );
}
