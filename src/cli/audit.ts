import type { Command } from "commander";
import type { Holdfast } from "../runtime/holdfast.ts";
import type { AuditEntry } from "../store/builds.ts";
import { atLeastOne } from "./arguments.ts";
import { openExisting } from "./database.ts";
import { examples } from "./help.ts";
import { clock } from "./terminal/age.ts";
import { paint } from "./terminal/colours.ts";
import { isJson } from "./terminal/output.ts";
import { type Column, table } from "./terminal/table.ts";

const PAGE = 500;

export function auditCommand(parent: Command): void {
  parent
    .command("audit")
    .summary("who did what to builds and their locks")
    .description(
      "Show the last entries of the audit, the newest at the end: who did what, when, and what changed. With --json one line of JSON for each.",
    )
    .option("--subject <subject>", "only what was done to this: a build's id, or lead:PIPELINE")
    .option("--limit <number>", "at most this many", atLeastOne, 50)
    .addHelpText("after", examples("holdfast audit", "holdfast audit --subject b1k7i1ug7v00000001 --json"))
    .action(async (options: { subject?: string; limit: number }, command: Command) => {
      await using hf = await openExisting(command);
      const entries = await lastEntries(hf, options);
      if (isJson(command)) for (const entry of entries) process.stdout.write(`${JSON.stringify(entry)}\n`);
      else process.stdout.write(`${entries.length === 0 ? paint("dim", "Nothing was done.") : table(COLUMNS, entries)}\n`);
    });
}

/** The store answers from the beginning on. */
async function lastEntries(hf: Holdfast, { subject, limit }: { subject?: string; limit: number }): Promise<AuditEntry[]> {
  const last: AuditEntry[] = [];
  for (let after = 0; ;) {
    const page = await hf.engine.store.builds.audit({ after, limit: PAGE, ...(subject === undefined ? {} : { subject }) });
    last.push(...page);
    last.splice(0, last.length - limit);
    if (page.length < PAGE) return last;
    after = page.at(-1)?.seq ?? after;
  }
}

const COLUMNS: Column<AuditEntry>[] = [
  { title: "SEQ", right: true, value: ({ seq }) => String(seq) },
  { title: "AT", value: ({ at }) => clock(at), style: () => "dim" },
  { title: "ACTION", value: ({ action }) => action },
  { title: "SUBJECT", value: ({ subject }) => subject, least: 12 },
  { title: "BY", value: ({ by }) => by, least: 12 },
  { title: "AFTER", value: ({ after }) => JSON.stringify(after), least: 12, style: () => "dim" },
];
