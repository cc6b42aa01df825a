import { age, instant } from "../../core/age.ts";
import type { CrashRecoveryReport } from "../../core/recovery-report.ts";
import { number, plural } from "../../core/words.ts";
import type { RecoveryPlan } from "../../runtime/recovery/preview.ts";
import type { StoreLocation } from "../../store/open-store.ts";
import { type Column, count, oneLine, paint, table } from "../render/table.ts";

/** In one line. */
export function sayReport(report: CrashRecoveryReport, now: number): string {
  const { recoveredAt, crashed, jobsRecovered, buildsCrashed, locksReleased, recoveryDurationMs, errors } = report;
  const back = [plural(jobsRecovered, "job")];
  if (buildsCrashed > 0) back.push(plural(buildsCrashed, "build"));
  if (locksReleased > 0) back.push(plural(locksReleased, "lock"));
  const wrong = errors.length === 0 ? "" : `, ${plural(errors.length, "error")}`;
  const who = plural(crashed.length, "process", "processes");
  return `${age(now - recoveredAt)} ago, ${who}: ${back.join(", ")} given back in ${number(recoveryDurationMs)} ms${wrong}`;
}

/** All of it; of a server nothing about logs and commits, which are its own. */
export function reportPage(report: CrashRecoveryReport, now: number, store: StoreLocation["kind"]): string {
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

/** What would be done, before it is. */
export function planPage(plan: RecoveryPlan, now: number): string {
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

/** What a crash has left, and nobody has seen to yet; empty: nothing. */
export function waitingPage(
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

export function reportTable(reports: readonly CrashRecoveryReport[], now: number): string {
  return reports.length === 0 ? paint("dim", "No process has crashed so far.") : table(columns(now), reports);
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
