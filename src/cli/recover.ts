import type { Command } from "commander";
import { type Duration, toMillis } from "../core/duration.ts";
import type { RecoveryStats } from "../runtime/janitor.ts";
import type { RecoveryTotals } from "../store/store.ts";
import { openExisting } from "./database.ts";
import { examples } from "./help.ts";
import { age } from "./terminal/age.ts";
import { paint } from "./terminal/colours.ts";
import { answer } from "./terminal/output.ts";
import { type Column, table } from "./terminal/table.ts";
import { number, plural } from "./terminal/text.ts";

type Entry = RecoveryTotals["log"][number];

/** More expired leases than this are just "more". */
const LOOK = 1_000;

export function recoverCommand(parent: Command): void {
  parent
    .command("recover")
    .summary("give back what dead processes left behind")
    .description(
      "Give back now what dead processes left behind: jobs, expired leases, expired locks. Workers do the same by themselves " +
        "within a second; this is for when none is there.",
    )
    .option("--expired-for <duration>", "take back every lease that expired at least this long ago, e.g. 5m, whoever holds it")
    .addHelpText("after", examples("holdfast recover", "holdfast recover --expired-for 5m"))
    .action(async (options: { expiredFor?: string }, command: Command) => {
      const since = options.expiredFor === undefined ? null : toMillis(options.expiredFor as Duration, "--expired-for");
      await using hf = await openExisting(command);
      const { store, clock } = hf.engine;
      const recovered = since === null ? await hf.recovery.recoverStale() : await hf.recovery.reclaimStale(since);
      const left = (await store.stale({ dead: [], skewed: false, limit: LOOK })).length;
      const { log, ...totals } = await store.recovery();
      answer(command, { recovered, left, totals, history: log }, () =>
        [sayRecovered(recovered), sayLeft(left), history(log, clock.now())].filter((part) => part !== "").join("\n\n"),
      );
    });
}

function sayRecovered({ entriesReclaimed, locksCleaned }: RecoveryStats): string {
  if (entriesReclaimed + locksCleaned === 0) return "Nothing to recover.";
  return paint("green", `Recovered ${plural(entriesReclaimed, "job")} and ${plural(locksCleaned, "lock")}.`);
}

/** Their holder may live and be about to renew, which one look cannot tell. */
function sayLeft(left: number): string {
  if (left === 0) return "";
  const leases = left === LOOK ? `${number(LOOK)} or more leases` : plural(left, "lease");
  return paint(
    "yellow",
    `${leases} expired, but the holder may be alive: add --expired-for 5m to take back what is older than that.`,
  );
}

function history(log: readonly Entry[], now: number): string {
  if (log.length === 0) return "";
  const count = (title: string, of: (entry: Entry) => number): Column<Entry> => ({
    title,
    right: true,
    value: (entry) => number(of(entry)),
    style: (entry) => (of(entry) === 0 ? "dim" : null),
  });
  return table<Entry>(
    [
      { title: "AGO", right: true, value: ({ at }) => age(now - at) },
      count("JOBS", ({ entries }) => entries),
      count("QUARANTINED", ({ quarantined }) => quarantined),
      count("FAILED", ({ failed }) => failed),
      count("LOCKS", ({ locks }) => locks),
      { title: "WHY", value: ({ cause }) => cause, least: 16 },
    ],
    log,
  );
}
