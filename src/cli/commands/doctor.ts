import { definedOnly } from "../../core/text/options.ts";
import type { Command } from "commander";
import { RECOVER_COMMAND } from "../../core/recovery/recovery-report.ts";
import { ageText, toMillis } from "../../core/text/duration.ts";
import type { Diagnosis, Grade } from "../../core/recovery/diagnosis.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { readersText } from "../../core/recovery/loss.ts";
import { bytesText, numberText, plural } from "../../core/text/text.ts";
import { type Examination, examine, needsMigration } from "../../operator/doctor.ts";
import type { Holdfast } from "../../holdfast.ts";
import { type Checkpointed, Operator } from "../../operator/operator.ts";
import { isAddress, locate } from "../../store/open-store.ts";
import { configOf } from "../config.ts";
import { driverOf, fileOf, openExisting, recoverAdvice } from "../database.ts";
import { EXIT } from "../exit.ts";
import { version } from "../program.ts";
import { answer } from "../render/output.ts";
import { oneLine, paint, type Style } from "../render/table.ts";
import { addCommand } from "../verb.ts";
import { adviceOf } from "./status.ts";

export function doctorCommand(parent: Command): void {
  addCommand(parent, "doctor", {
    description:
      "Check versions, disk, settings, the write-ahead log and its readers, dead processes, leases and locks, stuck " +
      "jobs, artifacts, the audit, backups, clocks, crash reports and damage; change nothing. Each finding names its " +
      "remedy. Exit code 5 when something is damaged, 1 when something does not work, 0 otherwise.",
    examples: ["holdfast doctor", "holdfast doctor --recheck", "holdfast doctor --json | jq '.found[]'"],
  })
    .option("--recheck", "check every page, index and row first, and clear findings of damage if all is well")
    .option("--checkpoint", "first copy the write-ahead log into the database, and empty it as far as readers allow")
    .action(async (options: { recheck?: boolean; checkpoint?: boolean }, command: Command) => {
      let opened = await openOrDamaged(command);
      try {
        const recheck = options.recheck && isOpen(opened) ? await recheckAll(opened) : null;
        // A handle that was opened read-only stays read-only, so a new handle writes the audit entry.
        if (recheck !== null && recheck.cleared.length > 0 && isOpen(opened)) {
          await opened.close();
          opened = await openOrDamaged(command);
        }
        const checkpoint =
          options.checkpoint && isOpen(opened) ? await new Operator(opened).checkpoint(CHECKPOINT_WAIT_MS) : null;
        const examined = {
          ...(await examineAll(command, opened)),
          ...(options.recheck ? { recheck } : {}),
          ...(options.checkpoint ? { checkpoint } : {}),
        };
        const grades = new Set(examined.found.map(({ grade }) => grade));
        if (grades.has("damage")) process.exitCode = EXIT.damaged;
        else if (grades.has("error")) process.exitCode = EXIT.failed;
        answer(command, { ok: !grades.has("damage") && !grades.has("error"), ...examined }, () => doctorPage(examined));
      } finally {
        if (isOpen(opened)) await opened.close();
      }
    });
}

function isOpen(opened: Holdfast | HoldfastError | null): opened is Holdfast {
  return opened !== null && !(opened instanceof HoldfastError);
}

/** How long a checkpoint waits for readers of the log. The page names the readers that remain. */
const CHECKPOINT_WAIT_MS = 2_000;

async function recheckAll(hf: Holdfast): Promise<Recheck> {
  const operator = new Operator(hf);
  const before = await operator.findings("damage");
  const { ok, findings } = await hf.check();
  const after = new Set((await operator.findings("damage")).map(({ id }) => id));
  return { ok, findings, cleared: before.filter(({ id }) => !after.has(id)).map(({ what }) => what) };
}

async function examineAll(command: Command, opened: Holdfast | HoldfastError | null): Promise<Examined> {
  const hf = isOpen(opened) ? opened : null;
  const location = hf === null ? locate(fileOf(command), { driver: driverOf(command) }) : new Operator(hf).location;
  const { folder, every } = configOf(command)?.options.backups ?? {};
  const { storeVersion: store, ...examination } = await examine({
    location,
    hf,
    backups: definedOnly({ folder, every: every === undefined ? undefined : toMillis(every, "backups.every") }),
    now: Date.now(),
  });
  for (const one of examination.found) {
    if (one.mend === RECOVER_COMMAND) one.mend = recoverAdvice(command);
    else if (one.mend !== null) one.mend = adviceOf(one.mend, command);
  }
  // The examination may have found the damage that prevented opening.
  const isSaid = examination.found.some(({ grade }) => grade === "damage");
  const unopened =
    opened instanceof HoldfastError ? [whyUnopened(opened)].filter(({ grade }) => grade !== "damage" || !isSaid) : [];
  return {
    database: location.name,
    versions: { holdfast: version(), node: process.version, platform: `${process.platform} ${process.arch}`, store },
    ...examination,
    found: [...unopened, ...examination.found],
  };
}

function whyUnopened({ code, message, hint }: HoldfastError): Diagnosis {
  if (code !== "DAMAGED") return { grade: "error", area: "disk", message, mend: hint };
  return {
    grade: "damage",
    area: "damage",
    message,
    mend: "holdfast doctor --recheck; then holdfast salvage, or holdfast restore BACKUP",
  };
}

const REPORTED_CODES = new Set(["DAMAGED", "DISK_FULL", "DISK_ERROR", "READ_ONLY"]);

/** Opens the database, or returns the error. Returns null for an older schema, which opening would migrate. */
async function openOrDamaged(command: Command): Promise<Holdfast | HoldfastError | null> {
  const where = fileOf(command);
  // A server that cannot be reached leaves nothing to examine, so its error is thrown.
  if (isAddress(where)) return openExisting(command);
  if (await needsMigration(locate(where, { driver: driverOf(command) }))) return null;
  try {
    return await openExisting(command);
  } catch (error) {
    if (error instanceof HoldfastError && REPORTED_CODES.has(error.code)) return error;
    throw error;
  }
}

interface Examined extends Omit<Examination, "storeVersion"> {
  database: string;
  versions: { holdfast: string; node: string; platform: string; store: string | null };
  recheck?: Recheck | null;
  checkpoint?: Checkpointed | null;
}

interface Recheck {
  ok: boolean;
  findings: string[];
  cleared: string[];
}

const STYLES: Record<Grade, Style> = { damage: "red", error: "red", warning: "yellow", note: "dim" };

function doctorPage(examined: Examined): string {
  const { found } = examined;
  const verdict = found.length === 0 ? paint("green", "Nothing stands out.") : found.map(diagnosisText).join("\n");
  const recheck = examined.recheck === undefined ? [] : [recheckText(examined.recheck)];
  const checkpoint = examined.checkpoint === undefined ? [] : [checkpointText(examined.checkpoint)];
  return [paint("bold", oneLine(examined.database)), ...recheck, ...checkpoint, verdict, factsText(examined)].join("\n\n");
}

function checkpointText(checkpoint: Checkpointed | null): string {
  if (checkpoint === null) return "No checkpoint: there is no write-ahead log of a file here.";
  const { before, after, readers } = checkpoint;
  if (after === 0)
    return paint("green", `Checkpoint: ${bytesText(before)} of the write-ahead log are in the database; it is empty.`);
  return paint("yellow", `Checkpoint: ${bytesText(after)} of the write-ahead log are still in use${pinnedText(readers)}.`);
}

function recheckText(recheck: Recheck | null): string {
  if (recheck === null) return paint("red", "Not rechecked: the database could not be opened.");
  const { ok, findings, cleared } = recheck;
  if (!ok) return paint("red", ["The check has found:", ...findings.map((what) => `  ${oneLine(what)}`)].join("\n"));
  const found = cleared.map((what) => `  ${oneLine(what)}`);
  if (found.length === 0) return paint("green", "Every page, index and row was checked: all is well.");
  return paint("green", ["Every page, index and row was checked: all is well. Cleared:", ...found].join("\n"));
}

function diagnosisText({ grade, message, mend }: Diagnosis): string {
  const head = paint(STYLES[grade], `${grade.padEnd(7)} ${oneLine(message)}`);
  return mend === null ? head : `${head}\n${" ".repeat(8)}${paint("dim", `→ ${mend}`)}`;
}

function factsText({ versions, databaseId, seen, lastReport }: Examined): string {
  const { holdfast, node, platform, store } = versions;
  const { disk, size, schema, wal, artifacts, audit, backups, now } = seen;
  const dead = seen.processes.filter((process) => process.dead).length;
  const rows: [string, string][] = [
    ["versions", [`holdfast ${holdfast}`, `Node ${node}`, platform, store ?? "store unknown"].join(", ")],
    ["database", databaseId ?? "not opened"],
  ];
  const add = (name: string, text: string | null) => {
    if (text !== null) rows.push([name, text]);
  };
  add("schema", schema && `version ${schema.version}`);
  add("size", size && `${bytesText(size.bytes)}, ${bytesText(size.unused)} unused`);
  add("disk", disk && `${disk.folder}, ${disk.network ?? "local"}, ${bytesText(disk.free)} free`);
  add("settings", seen.settings.length === 0 ? null : seen.settings.map(({ name, value }) => `${name}=${value}`).join(" "));
  add("wal", wal && `${bytesText(wal.bytes)} in use, ${bytesText(wal.copied)} checkpointed${pinnedText(wal.readers)}`);
  const isOpen = databaseId !== null;
  add("processes", isOpen ? `${numberText(seen.processes.length - dead)} alive, ${numberText(dead)} dead` : null);
  const stale = seen.locks.filter((lock) => lock.stale).length;
  add("locks", isOpen ? `${numberText(seen.locks.length)}, ${numberText(stale)} stale` : null);
  add("jobs", isOpen ? `${numberText(seen.stuck.length)} stuck` : null);
  add(
    "artifacts",
    artifacts &&
      `${numberText(artifacts.there)}, ${numberText(artifacts.orphaned)} orphaned, ${numberText(artifacts.missing.length)} missing`,
  );
  add("audit", audit && `${plural(audit.entries, "entry", "entries")}, ${audit.fault === null ? "complete" : "broken"}`);
  add(
    "backups",
    backups &&
      `${numberText(backups.count)} in ${backups.folder}${backups.newest === null ? "" : `, the newest ${ageText(now - backups.newest)} old`}`,
  );
  add("journal", seen.journal && `${plural(seen.journal.changes, "change")} in no file yet`);
  add(
    "crashes",
    !isOpen
      ? null
      : lastReport === null
        ? "none so far"
        : `the last ${ageText(now - lastReport.recoveredAt)} ago, ${outcomeText(lastReport)}`,
  );
  const width = Math.max(...rows.map(([name]) => name.length));
  return rows.map(([name, text]) => `${paint("dim", name.padEnd(width))}  ${oneLine(text)}`).join("\n");
}

function pinnedText(readers: Parameters<typeof readersText>[0]): string {
  const who = readersText(readers);
  return who === null ? "" : `, pinned by ${who}`;
}

function outcomeText({ wasSuccessful, jobsRecovered, errors }: NonNullable<Examined["lastReport"]>): string {
  return wasSuccessful ? `${plural(jobsRecovered, "job")} reclaimed` : oneLine(errors[0] ?? "something was wrong");
}
