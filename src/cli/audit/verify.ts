import { type Command, InvalidArgumentError } from "commander";
import { number, plural } from "../../core/words.ts";
import type { AuditVerdict } from "../../runtime/audit.ts";
import { Operator } from "../../runtime/operator.ts";
import type { AuditHead } from "../../store/audit.ts";
import { openExisting } from "../database.ts";
import { EXIT } from "../exit.ts";
import { answer } from "../render/output.ts";
import { paint } from "../render/table.ts";
import { examples } from "../verb.ts";

export function verifyCommand(parent: Command): void {
  parent
    .command("verify")
    .summary("find an entry that was edited, removed or put in")
    .description(
      "Read the audit from its first entry to its last, and see whether each follows from the one before it, and nothing is " +
        "missing at the end. Exit code 5 when it does not; the first bad entry is named. Whoever can write to the database can " +
        "write all of it anew: against that, keep the head that this command prints elsewhere, and give it back with --head.",
    )
    .option("--head <seq:hash>", "a head that was printed earlier; may be given several times", heads)
    .addHelpText(
      "after",
      examples("holdfast audit verify", "holdfast audit verify --json | jq -r '.head | \"\\(.seq):\\(.hash)\"'"),
    )
    .action(async ({ head = [] }: { head?: AuditHead[] }, command: Command) => {
      await using hf = await openExisting(command);
      const verdict = await new Operator(hf).verifyAudit(head);
      if (!verdict.ok) process.exitCode = EXIT.damaged;
      answer(command, verdict, () => say(verdict));
    });
}

function heads(text: string, others: AuditHead[] = []): AuditHead[] {
  const [, seq, hash] = /^(\d{1,15}):([0-9a-f]{64})$/.exec(text) ?? [];
  if (seq === undefined || hash === undefined) throw new InvalidArgumentError("Give it as it was printed: 12:9f86d081….");
  return [...others, { seq: Number(seq), hash }];
}

function say({ entries, head, fault }: AuditVerdict): string {
  if (fault === null) {
    return `${paint("green", "The audit is whole")}: ${plural(entries, "entry", "entries")}.\n${paint("dim", "head")} ${head.seq}:${head.hash}`;
  }
  const upTo = head.seq === 0 ? "Nothing before it is whole." : `Up to entry ${number(head.seq)} it is whole.`;
  return `${paint("red", `The audit is not as it was written (${fault.kind})`)}. ${fault.message} ${upTo}\nCompare it with a backup: what was done from there on may be other than it says.`;
}
