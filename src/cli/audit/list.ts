import type { Command } from "commander";
import { clock } from "../../core/age.ts";
import { Operator } from "../../runtime/operator.ts";
import type { AuditEntry } from "../../store/audit.ts";
import { atLeastOne } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { isJson } from "../render/output.ts";
import { type Column, paint, table } from "../render/table.ts";
import { examples } from "../verb.ts";

export function listAudit(audit: Command): Command {
  return audit
    .summary("who did what, and whether that is all")
    .description(
      "Show the last entries of the audit, the newest at the end: what operators, recovery and builds did, by whom, when, and " +
        "what changed. With --json one line of JSON for each.",
    )
    .option(
      "--subject <subject>",
      "only what was done to this: a build's id, or job:ID, queue:NAME, schedule:KEY, lock:NAME, lead:PIPELINE, …",
    )
    .option("--limit <number>", "at most this many", atLeastOne, 50)
    .addHelpText(
      "after",
      examples("holdfast audit", "holdfast audit --subject queue:mail --json", "holdfast audit --subject b1k7i1ug7v00000001"),
    )
    .action(async ({ subject, limit }: { subject?: string; limit: number }, command: Command) => {
      await using hf = await openExisting(command);
      const asked = { after: 0, limit, last: true, ...(subject === undefined ? {} : { subject }) };
      const entries = await new Operator(hf).auditEntries(asked);
      if (isJson(command)) for (const entry of entries) process.stdout.write(`${JSON.stringify(entry)}\n`);
      else process.stdout.write(`${entries.length === 0 ? paint("dim", "Nothing was done.") : table(COLUMNS, entries)}\n`);
    });
}

const COLUMNS: Column<AuditEntry>[] = [
  { title: "SEQ", right: true, value: ({ seq }) => String(seq) },
  { title: "AT", value: ({ at }) => clock(at), style: () => "dim" },
  { title: "ACTION", value: ({ action }) => action },
  { title: "SUBJECT", value: ({ subject }) => subject, least: 12 },
  { title: "BY", value: ({ by }) => by, least: 12 },
  { title: "AFTER", value: ({ after }) => JSON.stringify(after), least: 12, style: () => "dim" },
];
