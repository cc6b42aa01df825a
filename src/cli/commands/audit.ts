import { definedOnly } from "../../core/text/options.ts";
import { type Command, InvalidArgumentError } from "commander";
import { clockText } from "../../core/text/duration.ts";
import { numberText, plural } from "../../core/text/text.ts";
import type { AuditVerdict } from "../../engine/maintenance/check.ts";
import type { AuditEntry, AuditHead } from "../../store/audit.ts";
import { atLeast } from "../arguments.ts";
import { EXIT } from "../exit.ts";
import { isJson, writeLines } from "../render/output.ts";
import { type Column, paint, tableOr } from "../render/table.ts";
import { addCommand, onDatabase } from "../verb.ts";

export function auditCommand(parent: Command): void {
  const audit = addCommand(parent, "audit", {
    description:
      "Show the last entries of the audit, the newest at the end: what operators, recovery and builds did, by whom, when, and " +
      "what changed. With --json one line of JSON for each.",
    examples: ["holdfast audit", "holdfast audit --subject queue:mail --json", "holdfast audit --subject b1k7i1ug7v00000001"],
  })
    .option(
      "--subject <subject>",
      "only what was done to this: a build's id, or job:ID, queue:NAME, schedule:KEY, lock:NAME, lead:PIPELINE, …",
    )
    .option("--limit <number>", "at most this many", atLeast(1), 50)
    .action(
      onDatabase(async ({ operator, command }, { subject, limit }: { subject?: string; limit: number }) => {
        const entries = await operator.auditEntries({ after: 0, limit, last: true, ...definedOnly({ subject }) });
        writeLines(
          isJson(command) ? entries.map((entry) => JSON.stringify(entry)) : [tableOr("No audit entries.", COLUMNS, entries)],
        );
      }),
    );
  addVerify(audit);
}

function addVerify(audit: Command): void {
  addCommand(audit, "verify", {
    summary: "find entries that were edited, removed or inserted",
    description:
      "Verify that each audit entry follows from the one before it, and that none is missing at the end. Exit code 5 if " +
      "not; the first bad entry is named. A user who can write to the database can rewrite the whole chain: keep the " +
      "printed head elsewhere, and pass it with --head.",
    examples: ["holdfast audit verify", "holdfast audit verify --json | jq -r '.head | \"\\(.seq):\\(.hash)\"'"],
  })
    .option("--head <seq:hash>", "a head that was printed earlier; may be given several times", parseHead)
    .action(
      onDatabase(async ({ operator }, { head = [] }: { head?: AuditHead[] }) => {
        const verdict = await operator.verifyAudit(head);
        if (!verdict.ok) process.exitCode = EXIT.damaged;
        return [verdict, () => verdictText(verdict)];
      }),
    );
}

const COLUMNS: Column<AuditEntry>[] = [
  { title: "SEQ", right: true, value: ({ seq }) => String(seq) },
  { title: "AT", value: ({ at }) => clockText(at), style: () => "dim" },
  { title: "ACTION", value: ({ action }) => action },
  { title: "SUBJECT", value: ({ subject }) => subject, least: 12 },
  { title: "BY", value: ({ by }) => by, least: 12 },
  { title: "AFTER", value: ({ after }) => JSON.stringify(after), least: 12, style: () => "dim" },
];

function parseHead(text: string, others: AuditHead[] = []): AuditHead[] {
  const [, seq, hash] = /^(\d{1,15}):([0-9a-f]{64})$/.exec(text) ?? [];
  if (seq === undefined || hash === undefined) throw new InvalidArgumentError("Give it as it was printed: 12:9f86d081….");
  return [...others, { seq: Number(seq), hash }];
}

function verdictText({ entries, head, fault }: AuditVerdict): string {
  if (fault === null) {
    return `${paint("green", "The audit is whole")}: ${plural(entries, "entry", "entries")}.\n${paint("dim", "head")} ${head.seq}:${head.hash}`;
  }
  const upTo = head.seq === 0 ? "Nothing before it is whole." : `Up to entry ${numberText(head.seq)} it is whole.`;
  return `${paint("red", `The audit is not as it was written (${fault.kind})`)}. ${fault.message} ${upTo}\nCompare it with a backup: what was done from there on may be other than it says.`;
}
