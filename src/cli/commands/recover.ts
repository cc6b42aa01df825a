import type { Command } from "commander";
import { age, type Duration, instant, toMillis } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { CrashRecoveryReport } from "../../core/recovery/recovery-report.ts";
import { number, plural } from "../../core/text/text.ts";
import type { RecoveryStats } from "../../engine/maintenance/janitor.ts";
import { Operator } from "../../operator/operator.ts";
import { isOfCrash, type RecoveryPlan } from "../../engine/maintenance/recovery.ts";
import type { ReclaimTotals } from "../../store/recoveries.ts";
import type { StoreLocation } from "../../store/open-store.ts";
import { isManual, openExisting } from "../database.ts";
import { EXIT } from "../exit.ts";
import { answer } from "../render/output.ts";
import { type Column, count, oneLine, paint, table } from "../render/table.ts";
import { addCommand, onDatabase } from "../verb.ts";

type Entry = ReclaimTotals["log"][number];

/** Expired leases are counted up to this number. */
const LEASES_COUNTED = 1_000;

export function recoverCommand(parent: Command): void {
  addCommand(parent, "recover", {
    description:
      "Give back now what dead processes left behind: jobs, builds, locks, expired leases. Workers do the same by themselves " +
      'within a second; this is for when none is there. Where the config says `recovery: "manual"`, it only shows what would ' +
      "be done, and --apply does it. Every crash has a report; one with errors stands open until it is acknowledged.",
    examples: ["holdfast recover", "holdfast recover --last", "holdfast recover --apply", "holdfast recover --expired-for 5m"],
  })
    .option(
      "--expired-for <duration>",
      "take back every lease that expired at least this long ago, e.g. 5m, whichever process holds it",
    )
    .option("--dry-run", "only show what would be done")
    .option("--apply", 'do it, also where the config says `recovery: "manual"`')
    .option("--last", "show the report of the last crash, and recover nothing")
    .option("--history", "list the reports of all crashes, the newest first, and recover nothing")
    .option("--acknowledge", "say that you have seen the reports with errors: they stand open until then")
    .action(async (options: RecoverOptions, command: Command) => {
      refuseCombined(options);
      const since = options.expiredFor === undefined ? null : toMillis(options.expiredFor as Duration, "--expired-for");
      if (options.last || options.history) return await showReports(options, command);
      if (options.acknowledge) return await acknowledge(command);
      if (options.dryRun || (isManual(command) && !options.apply && since === null)) return await preview(command);
      await using hf = await openExisting(command, { recovery: "by an operator" });
      const operator = new Operator(hf);
      const page = (one: CrashRecoveryReport) => reportPage(one, operator.now(), operator.location.kind);
      const recovered = since === null ? await hf.recovery.recoverStale() : await hf.recovery.reclaimStale(since);
      const left = await operator.expiredLeases(LEASES_COUNTED);
      const { log, ...totals } = await operator.recoveryTotals();
      // `lastReport` waits for a recovery that is under way.
      const report = await hf.recovery.lastReport();
      const wrong = await operator.failedReports(LEASES_COUNTED);
      if (wrong.length > 0) process.exitCode = EXIT.failed;
      answer(command, { recovered, left, totals, history: log, report, wrong }, () =>
        [sayRecovered(recovered), ...wrong.map(page), sayLeft(left), recoveryTable(log, operator.now())]
          .filter((part) => part !== "")
          .join("\n\n"),
      );
    });
}

interface RecoverOptions {
  expiredFor?: string;
  dryRun?: boolean;
  apply?: boolean;
  last?: boolean;
  history?: boolean;
  acknowledge?: boolean;
}

/** Rejects options that exclude each other. */
function refuseCombined(options: RecoverOptions): void {
  const given = Object.keys(options).filter((name) => ["dryRun", "apply", "last", "history", "acknowledge"].includes(name));
  if (given.length < 2) return;
  throw new HoldfastError(
    "USAGE",
    "--dry-run, --apply, --last, --history and --acknowledge exclude each other.",
    "Give one of them at a time.",
  );
}

const showReports = onDatabase(async ({ hf, operator, command }, { last = false }: RecoverOptions) => {
  const now = operator.now();
  const plan = await hf.recovery.preview();
  const waiting = plan !== null && isOfCrash(plan) ? plan : null;
  const lost = (await operator.findings("loss")).map(({ what }) => what);
  const next = waitingPage({ waiting, lost, byHand: isManual(command) }, now);
  const page = (shown: string) => [shown, ...(next === "" ? [] : [next])].join("\n\n");
  const none = () => (next === "" ? paint("dim", "No process has crashed so far.") : next);
  if (last) {
    const report = await hf.recovery.lastReport();
    return [{ report, waiting, lost }, () => (report === null ? none() : page(reportPage(report, now, operator.location.kind)))];
  }
  const reports = await hf.recovery.history();
  return [{ reports, waiting, lost }, () => (reports.length === 0 ? none() : page(table(columns(now), reports)))];
});

const acknowledge = onDatabase(async ({ hf }) => {
  const acknowledged = await hf.recovery.acknowledge();
  const isNone = acknowledged.length === 0;
  const text = isNone
    ? paint("dim", "No report stands open.")
    : `Acknowledged ${plural(acknowledged.length, "report")} with errors.`;
  return [{ acknowledged }, () => text];
});

/** Shows what a recovery would do, and writes nothing. */
const preview = onDatabase(async ({ hf, operator }) => {
  const plan = await hf.recovery.preview();
  const text = () =>
    plan === null
      ? "Nothing to recover."
      : `${planPage(plan, operator.now())}\n\n${paint("dim", "holdfast recover --apply does it.")}`;
  return [{ plan }, text];
});

function sayRecovered({ entriesReclaimed, locksCleaned }: RecoveryStats): string {
  if (entriesReclaimed + locksCleaned === 0) return "Nothing to recover.";
  return paint("green", `Recovered ${plural(entriesReclaimed, "job")} and ${plural(locksCleaned, "lock")}.`);
}

/** Expired leases whose holder may be alive and about to renew. */
function sayLeft(left: number): string {
  if (left === 0) return "";
  const leases = left === LEASES_COUNTED ? `${number(LEASES_COUNTED)} or more leases` : plural(left, "lease");
  return paint(
    "yellow",
    `${leases} expired, but the holder may be alive: add --expired-for 5m to take back what is older than that.`,
  );
}

function recoveryTable(log: readonly Entry[], now: number): string {
  if (log.length === 0) return "";
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

/** A report in one line. */
export function sayReport(report: CrashRecoveryReport, now: number): string {
  const { recoveredAt, crashed, jobsRecovered, buildsCrashed, locksReleased, recoveryDurationMs, errors } = report;
  const back = [plural(jobsRecovered, "job")];
  if (buildsCrashed > 0) back.push(plural(buildsCrashed, "build"));
  if (locksReleased > 0) back.push(plural(locksReleased, "lock"));
  const wrong = errors.length === 0 ? "" : `, ${plural(errors.length, "error")}`;
  const who = plural(crashed.length, "process", "processes");
  return `${age(now - recoveredAt)} ago, ${who}: ${back.join(", ")} given back in ${number(recoveryDurationMs)} ms${wrong}`;
}

/** A whole report; a server has no write-ahead log of Holdfast's to report on. */
function reportPage(report: CrashRecoveryReport, now: number, store: StoreLocation["kind"]): string {
  const { crashed, errors, wasSuccessful } = report;
  const lines: [string, string][] = [
    ["recovered", `${instant(report.recoveredAt, now)}, in ${number(report.recoveryDurationMs)} ms`],
    ["jobs", sayJobs(report)],
    ["pending then", number(report.jobsPending)],
    ["builds crashed", number(report.buildsCrashed)],
    ["locks released", number(report.locksReleased)],
    ...(store === "postgres" ? [] : sayLog(report)),
    ...crashed.map((one): [string, string] => ["crashed", sayProcess(one, now)]),
    ...errors.map((error): [string, string] => ["error", paint("red", oneLine(error))]),
  ];
  const verdict = wasSuccessful ? paint("green", "Recovered.") : paint("red", "Recovered, and something is wrong.");
  return `${verdict}\n${lines.map(([name, value]) => `  ${name.padEnd(16)}${value}`).join("\n")}`;
}

function sayLog(report: CrashRecoveryReport): [string, string][] {
  const { walSizeBeforeRecoveryBytes, walFramesReplayed, commitsMissing } = report;
  return [
    ["write-ahead log", `${number(walSizeBeforeRecoveryBytes)} bytes, ${plural(walFramesReplayed, "frame")} read back`],
    ["commits missing", commitsMissing === null ? "none that is known of" : number(commitsMissing)],
  ];
}

function sayJobs(report: CrashRecoveryReport): string {
  const { jobsRunningBeforeCrash, jobsRecovered, jobsResetToPending, jobsQuarantined } = report;
  const others = jobsRecovered - jobsResetToPending - jobsQuarantined;
  const parts = [`${number(jobsResetToPending)} pending again`, `${number(jobsQuarantined)} quarantined`];
  if (others > 0) parts.push(`${number(others)} failed`);
  return `${number(jobsRecovered)} of ${number(jobsRunningBeforeCrash)} taken back: ${parts.join(", ")}`;
}

function sayProcess({ pid, host, program, startedAt }: CrashRecoveryReport["crashed"][number], now: number): string {
  return `pid ${pid} on ${oneLine(host)}, ${oneLine(program)}, since ${instant(startedAt, now)}`;
}

/** What a recovery would do. */
function planPage(plan: RecoveryPlan, now: number): string {
  const { crashed, jobs, builds, locks, goesOn, expired } = plan;
  const lines: string[] = [
    ...(goesOn ? ["go on with a recovery that was not ended"] : []),
    ...crashed.map((one) => `strike off ${sayProcess(one, now)}`),
    ...(crashed.length > 0 || goesOn ? [`take back ${plural(jobs, "job")}`] : []),
    ...(expired.jobs > 0 ? [`take back ${plural(expired.jobs, "job")} whose lease has expired`] : []),
    ...builds.map((id) => `let build ${id} be resumed`),
    ...locks.map((name) => `release the lock ${oneLine(name)}`),
    ...expired.locks.map((name) => `remove the expired lock ${oneLine(name)}`),
  ];
  return `This would be done:\n${lines.map((line) => `  ${line}`).join("\n")}`;
}

/** What a crash left that is not recovered yet; empty if there is nothing. */
function waitingPage(
  { waiting, lost, byHand }: { waiting: RecoveryPlan | null; lost: readonly string[]; byHand: boolean },
  now: number,
): string {
  if (waiting === null && lost.length === 0) return "";
  const parts = [paint("yellow", "A crash has not been recovered from yet.")];
  if (waiting !== null) parts.push(planPage(waiting, now));
  if (lost.length > 0) parts.push(`This will be reported:\n${lost.map((what) => `  ${paint("red", oneLine(what))}`).join("\n")}`);
  const how = byHand
    ? "holdfast recover --apply does it."
    : "A worker that starts does it by itself; holdfast recover does it now.";
  return [...parts, paint("dim", how)].join("\n");
}

function columns(now: number): Column<CrashRecoveryReport>[] {
  return [
    { title: "AGO", right: true, value: ({ recoveredAt }) => age(now - recoveredAt) },
    count("PROCESSES", ({ crashed }) => crashed.length),
    count("JOBS", ({ jobsRecovered }) => jobsRecovered),
    count("QUARANTINED", ({ jobsQuarantined }) => jobsQuarantined),
    count("BUILDS", ({ buildsCrashed }) => buildsCrashed),
    count("LOCKS", ({ locksReleased }) => locksReleased),
    { title: "TOOK", right: true, value: ({ recoveryDurationMs }) => `${number(recoveryDurationMs)} ms` },
    {
      title: "ERRORS",
      value: ({ errors }) => (errors.length === 0 ? "–" : errors.map(oneLine).join("; ")),
      least: 12,
      style: ({ wasSuccessful }) => (wasSuccessful ? "dim" : "red"),
    },
  ];
}
