import type { Command } from "commander";
import { ageText, type Duration, instantText, toMillis } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { isOfCrash, type RecoveryPlan, type CrashRecoveryReport } from "../../core/recovery/recovery-report.ts";
import { numberText, plural } from "../../core/text/text.ts";
import { Operator } from "../../operator/operator.ts";
import type { ReclaimTotals } from "../../store/recoveries.ts";
import type { StoreLocation } from "../../store/open-store.ts";
import { isManual, openExisting, recoverAdvice, sameDatabase } from "../database.ts";
import { EXIT } from "../exit.ts";
import { answer } from "../render/output.ts";
import { type Column, count, oneLine, paint, table } from "../render/table.ts";
import { addCommand, onDatabase } from "../verb.ts";

type Entry = ReclaimTotals["log"][number];

const LEASES_COUNTED = 1_000;

export function recoverCommand(parent: Command): void {
  addCommand(parent, "recover", {
    description:
      "Reclaim now what dead processes left behind: jobs, builds, locks, expired leases. Workers do the same by themselves " +
      'within a second; use this command if no worker runs. With `recovery: "manual"` in the config, it only shows what would ' +
      "be done, and --apply does it. Every crash has a report; one with errors stays open until acknowledged.",
    examples: ["holdfast recover", "holdfast recover --last", "holdfast recover --apply", "holdfast recover --expired-for 5m"],
  })
    .option(
      "--expired-for <duration>",
      "reclaim every lease that expired at least this long ago, e.g. 5m, whichever process holds it",
    )
    .option("--dry-run", "only show what would be done")
    .option("--apply", 'do it, also where the config says `recovery: "manual"`')
    .option("--last", "show the report of the last crash, and recover nothing")
    .option("--history", "list the reports of all crashes, the newest first, and recover nothing")
    .option("--acknowledge", "say that you have seen the reports with errors: they stay open until then")
    .action(async (options: RecoverOptions, command: Command) => {
      refuseCombined(options);
      const since = options.expiredFor === undefined ? null : toMillis(options.expiredFor as Duration, "--expired-for");
      if (options.last || options.history) return await showReports(options, command);
      if (options.acknowledge) return await acknowledge(command);
      if (options.dryRun || (isManual(command) && !options.apply && since === null)) return await preview(since, command);
      await using hf = await openExisting(command, { recovery: "by an operator" });
      const operator = new Operator(hf);
      const page = (one: CrashRecoveryReport) => reportPage(one, operator.now(), operator.location.kind);
      const { done, recovered } = await operator.recover(since);
      const left = await operator.expiredLeases(LEASES_COUNTED);
      // `lastReport` waits for a recovery that is under way; the totals include it then.
      const report = await hf.recovery.lastReport();
      const { log, ...totals } = await operator.recoveryTotals();
      const wrong = await operator.failedReports(LEASES_COUNTED);
      if (wrong.length > 0) process.exitCode = EXIT.failed;
      answer(command, { done, recovered, left, totals, history: log, report, wrong }, () =>
        [donePage(done, operator.now()), ...wrong.map(page), expiredText(left), recoveryTable(log, operator.now())]
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
  const next =
    waiting === null && lost.length === 0
      ? ""
      : `${paint("yellow", "A crash has not been recovered from yet.")}\n${planPage(waiting, lost, command, now)}`;
  const page = (shown: string) => [shown, ...(next === "" ? [] : [next])].join("\n\n");
  const none = () => (next === "" ? paint("dim", "No process has crashed so far.") : next);
  if (last) {
    const report = await hf.recovery.lastReport();
    // The advice to acknowledge reports names this command, so this page shows all open reports.
    const open = (await operator.failedReports(LEASES_COUNTED)).filter(({ recoveredAt }) => recoveredAt !== report?.recoveredAt);
    const text = (one: CrashRecoveryReport) => reportPage(one, now, operator.location.kind);
    return [{ report, open, waiting, lost }, () => (report === null ? none() : page([report, ...open].map(text).join("\n\n")))];
  }
  const reports = await hf.recovery.history();
  return [{ reports, waiting, lost }, () => (reports.length === 0 ? none() : page(table(columns(now), reports)))];
});

const acknowledge = onDatabase(async ({ hf }) => {
  const acknowledged = await hf.recovery.acknowledge();
  const isNone = acknowledged.length === 0;
  const text = isNone ? paint("dim", "No report is open.") : `Acknowledged ${plural(acknowledged.length, "report")} with errors.`;
  return [{ acknowledged }, () => text];
});

const preview = onDatabase(async ({ operator, command }, since: number | null) => {
  const plan = await operator.previewRecovery(since);
  const lost = since === null ? await operator.findingsToReport() : [];
  const isNothing = plan === null && lost.length === 0;
  return [{ plan, lost }, () => (isNothing ? NOTHING : planPage(plan, lost, command, operator.now(), since))];
});

/** Describes expired leases whose holder may be alive and about to renew. */
function expiredText(left: number): string {
  if (left === 0) return "";
  const leases = left === LEASES_COUNTED ? `${numberText(LEASES_COUNTED)} or more leases` : plural(left, "lease");
  return paint(
    "yellow",
    `${leases} expired, but the holder may be alive: add --expired-for 5m to reclaim what is older than that.`,
  );
}

function recoveryTable(log: readonly Entry[], now: number): string {
  if (log.length === 0) return "";
  return table<Entry>(
    [
      { title: "AGO", right: true, value: ({ at }) => ageText(now - at) },
      count("JOBS", ({ entries }) => entries),
      count("QUARANTINED", ({ quarantined }) => quarantined),
      count("FAILED", ({ failed }) => failed),
      count("LOCKS", ({ locks }) => locks),
      { title: "WHY", value: ({ cause }) => cause, least: 16 },
    ],
    log,
  );
}

export function reportLine(report: CrashRecoveryReport, now: number): string {
  const { recoveredAt, crashed, jobsRecovered, buildsCrashed, locksReleased, recoveryDurationMs, errors } = report;
  // A job that was claimed again and lost again before the report ended counts twice.
  const back = [plural(jobsRecovered, crashed.length > 1 ? "attempt" : "job")];
  if (buildsCrashed > 0) back.push(plural(buildsCrashed, "build"));
  if (locksReleased > 0) back.push(plural(locksReleased, "lock"));
  const wrong = errors.length === 0 ? "" : `, ${plural(errors.length, "error")}`;
  const who = plural(crashed.length, "process", "processes");
  return `${ageText(now - recoveredAt)} ago, ${who}: ${back.join(", ")} reclaimed in ${numberText(recoveryDurationMs)} ms${wrong}`;
}

function reportPage(report: CrashRecoveryReport, now: number, store: StoreLocation["kind"]): string {
  const { crashed, errors, wasSuccessful } = report;
  const lines: [string, string][] = [
    ["recovered", `${instantText(report.recoveredAt, now)}, in ${numberText(report.recoveryDurationMs)} ms`],
    ["jobs", jobsText(report)],
    ["pending then", numberText(report.jobsPending)],
    ["builds crashed", numberText(report.buildsCrashed)],
    ["locks released", numberText(report.locksReleased)],
    ...(store === "postgres" ? [] : walLines(report)),
    ...crashed.map((one): [string, string] => ["crashed", processText(one, now)]),
    ...errors.map((error): [string, string] => ["error", paint("red", oneLine(error))]),
  ];
  const verdict = wasSuccessful ? paint("green", "Recovered.") : paint("red", "Recovered, and something is wrong.");
  return `${verdict}\n${lines.map(([name, value]) => `  ${name.padEnd(16)}${value}`).join("\n")}`;
}

function walLines(report: CrashRecoveryReport): [string, string][] {
  const { walSizeBeforeRecoveryBytes, walFramesReplayed, commitsMissing } = report;
  return [
    ["write-ahead log", `${numberText(walSizeBeforeRecoveryBytes)} bytes, ${plural(walFramesReplayed, "frame")} read back`],
    ["commits missing", commitsMissing === null ? "none that is known of" : numberText(commitsMissing)],
  ];
}

function jobsText(report: CrashRecoveryReport): string {
  const { jobsRunningBeforeCrash, jobsRecovered, jobsResetToPending, jobsQuarantined } = report;
  const others = jobsRecovered - jobsResetToPending - jobsQuarantined;
  const parts = [`${numberText(jobsResetToPending)} pending again`, `${numberText(jobsQuarantined)} quarantined`];
  if (others > 0) parts.push(`${numberText(others)} failed or replaced by a newer job`);
  return `${numberText(jobsRecovered)} of ${numberText(jobsRunningBeforeCrash)} reclaimed: ${parts.join(", ")}`;
}

function processText({ pid, host, program, startedAt }: CrashRecoveryReport["crashed"][number], now: number): string {
  return `pid ${pid} on ${oneLine(host)}, ${oneLine(program)}, since ${instantText(startedAt, now)}`;
}

const NOTHING = "Nothing to recover.";

function planPage(
  plan: RecoveryPlan | null,
  lost: readonly string[],
  command: Command,
  now: number,
  since: number | null = null,
): string {
  const parts = [];
  if (plan !== null) parts.push("This would be done:", ...actionsOf(plan, now).map(([verb, what]) => `  ${verb} ${what}`));
  if (lost.length > 0) parts.push("This will be reported:", ...lost.map((what) => `  ${paint("red", oneLine(what))}`));
  // With `recovery: "manual"` workers wait for an operator only after a crash.
  const isLeftToOperator = since !== null || (isManual(command) && (plan === null || isOfCrash(plan)));
  const waits = isLeftToOperator ? "" : "A worker that starts does it by itself. ";
  const advice = since === null ? recoverAdvice(command) : `holdfast recover --expired-for ${since}ms${sameDatabase(command)}`;
  return [...parts, "", paint("dim", `${waits}To do it now:`), `  ${advice}`].join("\n");
}

function donePage(done: RecoveryPlan | null, now: number): string {
  if (done === null) return NOTHING;
  const lines = actionsOf(done, now).map(([verb, what]) => `  ${PAST_TENSE[verb]} ${what}`);
  return [paint("green", "This was done:"), ...lines].join("\n");
}

const PAST_TENSE = {
  continue: "continued",
  unregister: "unregistered",
  reclaim: "reclaimed",
  quarantine: "quarantined",
  fail: "failed",
  mark: "marked",
  release: "released",
  remove: "removed",
  shorten: "shortened",
  cancel: "cancelled",
};

function actionsOf(plan: RecoveryPlan, now: number): [verb: keyof typeof PAST_TENSE, what: string][] {
  const { crashed, jobs, ends, builds, locks, orchestratorLocks, continues, expired, overlong, leftoverJobs } = plan;
  const actions: ReturnType<typeof actionsOf> = crashed.map((one) => ["unregister", processText(one, now)]);
  if (continues) actions.unshift(["continue", "a recovery that was not ended"]);
  if (jobs > 0) actions.push(["reclaim", `${plural(jobs, "job")} of dead processes`]);
  if (expired.jobs > 0) actions.push(["reclaim", `${plural(expired.jobs, "job")} whose lease has expired`]);
  if (ends.quarantined > 0) actions.push(["quarantine", `${numberText(ends.quarantined)} of these, crashed too often`]);
  if (ends.failed > 0) actions.push(["fail", `${numberText(ends.failed)} of these, with onInterrupt "fail"`]);
  if (ends.replaced > 0) actions.push(["cancel", `${numberText(ends.replaced)} of these, replaced by a newer job`]);
  for (const id of builds) actions.push(["mark", `build ${id} as CRASHED, ready to resume`]);
  for (const name of orchestratorLocks) actions.push(["release", `the orchestrator lock ${oneLine(name)}`]);
  for (const name of locks) actions.push(["release", `the lock ${oneLine(name)}`]);
  for (const name of expired.locks) actions.push(["remove", `the expired lock ${oneLine(name)}`]);
  const leases = plural(overlong.leases, "lease that expires", "leases that expire");
  if (overlong.leases > 0) actions.push(["shorten", `${leases} too late`]);
  for (const name of overlong.locks) actions.push(["shorten", `the lock ${oneLine(name)}, which expires too late`]);
  if (leftoverJobs > 0) actions.push(["cancel", `${plural(leftoverJobs, "job")} of builds that have ended`]);
  return actions;
}

function columns(now: number): Column<CrashRecoveryReport>[] {
  return [
    { title: "AGO", right: true, value: ({ recoveredAt }) => ageText(now - recoveredAt) },
    count("PROCESSES", ({ crashed }) => crashed.length),
    count("JOBS", ({ jobsRecovered }) => jobsRecovered),
    count("QUARANTINED", ({ jobsQuarantined }) => jobsQuarantined),
    count("BUILDS", ({ buildsCrashed }) => buildsCrashed),
    count("LOCKS", ({ locksReleased }) => locksReleased),
    { title: "TOOK", right: true, value: ({ recoveryDurationMs }) => `${numberText(recoveryDurationMs)} ms` },
    {
      title: "ERRORS",
      value: ({ errors }) => (errors.length === 0 ? "–" : errors.map(oneLine).join("; ")),
      least: 12,
      style: ({ wasSuccessful }) => (wasSuccessful ? "dim" : "red"),
    },
  ];
}
