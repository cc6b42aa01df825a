import type { Command } from "commander";
import type { Diagnosis } from "../../core/diagnosis.ts";
import { toMillis } from "../../core/duration.ts";
import { HoldfastError } from "../../core/errors.ts";
import { examine } from "../../runtime/doctor.ts";
import type { Holdfast } from "../../runtime/holdfast.ts";
import { Operator } from "../../runtime/operator.ts";
import { isOfBefore } from "../../runtime/surroundings.ts";
import { isAddress, locate } from "../../store/open-store.ts";
import { configOf } from "../config.ts";
import { driverOf, fileOf, openExisting } from "../database.ts";
import { EXIT } from "../exit.ts";
import { version } from "../program.ts";
import { answer } from "../render/output.ts";
import { examples } from "../verb.ts";
import { doctorPage, type Examined, type Recheck } from "./page.ts";

export function doctorCommand(parent: Command): void {
  parent
    .command("doctor")
    .summary("one page on how the database stands, and what mends it")
    .description(
      "Look at everything that keeps a database well, and change nothing: versions, the disk, settings as they really are, the " +
        "write-ahead log and who pins it, dead processes, stale leases and locks, stuck jobs, artifacts, the audit, backups, clocks, " +
        "reports of crashes, damage. What stands out comes with the command that mends it. Exit code 5 when something is damaged, 1 " +
        "when something does not work, 0 otherwise.",
    )
    .option("--recheck", "check every page, index and row first; where all is well, clear findings of damage and write again")
    .option("--checkpoint", "copy the write-ahead log into the database first, and empty it as far as readers let it")
    .addHelpText("after", examples("holdfast doctor", "holdfast doctor --recheck", "holdfast doctor --json | jq '.found[]'"))
    .action(async (options: { recheck?: boolean; checkpoint?: boolean }, command: Command) => {
      let opened = await openOrDamaged(command);
      try {
        const recheck = options.recheck && isOpen(opened) ? await recheckAll(opened) : null;
        // A handle that was opened read-only stays so; the next writes the audit entry of what was cleared.
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

/** A reader that holds the log for longer is named on the page. */
const CHECKPOINT_WAIT_MS = 2_000;

/** What a complete check finds, and which findings of damage it has cleared. */
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
    backups: {
      ...(folder === undefined ? {} : { folder }),
      ...(every === undefined ? {} : { every: toMillis(every, "backups.every") }),
    },
    now: Date.now(),
  });
  // The damage that kept it from being opened may have been found before.
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

/** What keeps a database from being opened, and is found all the same. */
const UNOPENED = new Set(["DAMAGED", "DISK_FULL", "DISK_ERROR", "READ_ONLY"]);

/** One that cannot even be opened is what this is for. Null: of an older schema, which to open it would change. */
async function openOrDamaged(command: Command): Promise<Holdfast | HoldfastError | null> {
  const where = fileOf(command);
  // Of a server that does not let it be opened there is nothing else to look at.
  if (isAddress(where)) return openExisting(command);
  if (await isOfBefore(locate(where, { driver: driverOf(command) }))) return null;
  try {
    return await openExisting(command);
  } catch (error) {
    if (error instanceof HoldfastError && UNOPENED.has(error.code)) return error;
    throw error;
  }
}
