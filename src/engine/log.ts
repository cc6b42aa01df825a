import type { JobError } from "../core/jobs/job.ts";
import type { Next, Outcome } from "../core/jobs/retry.ts";
import { durationText } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { Log } from "../core/text/text.ts";
import type { Claimed } from "../store/store.ts";

export type { Log };

export const silentLog: Log = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

export const quietLog: Log = {
  debug: () => {},
  info: () => {},
  warn: (message, data) => process.stderr.write(line("warn", message, data)),
  error: (message, data) => process.stderr.write(line("error", message, data)),
};

export function jobLog(log: Log, { id: job, name, attempt }: { id: string; name: string; attempt: number }): Log {
  const at = (level: keyof Log) => (message: string, data?: object) => log[level](message, { job, name, attempt, ...data });
  return { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
}

function line(level: string, message: string, data?: object): string {
  return `holdfast ${level}: ${message}${data === undefined ? "" : ` ${JSON.stringify(data)}`}\n`;
}

/** Logs a retried attempt as a warning and a failed job as an error. Released and postponed attempts are no failures. */
export function logFailure(log: Log, claimed: Claimed, outcome: Outcome, decided: Next | undefined): void {
  if (decided === undefined || decided.error === null || outcome.kind === "later") return;
  const { id: job, name, attempt, policy } = claimed;
  const hint = `hf.jobs.get("${job}") or \`holdfast jobs show "${job}"\` shows the stack.`;
  const about = { job, name, attempt, ...summarizeError(decided.error) };
  const failed = decided.error.code === "TIMEOUT" ? `timed out after ${durationText(policy.timeout)}` : "failed";
  if (decided.state === "pending") {
    const when = decided.delay === 0 ? "now" : `in ${durationText(decided.delay)}`;
    return log.warn(`job "${name}" ${failed}; the next attempt starts ${when}`, { ...about, hint });
  }
  log.error(`job "${name}" ${failed}${decided.state === "quarantined" ? ", and is quarantined" : ""}`, { ...about, hint });
}

function summarizeError({ name, message, stack }: JobError): { error: string; at?: string } {
  const at = stack?.split("\n").find((line) => /^\s+at /.test(line));
  return { error: `${name}: ${message}`, ...(at === undefined ? {} : { at: at.trim().slice(3) }) };
}

export interface DescribedError {
  error: string;
  hint?: string;
}

export function describeError(error: unknown): DescribedError {
  return error instanceof HoldfastError ? { error: String(error), hint: error.hint } : { error: String(error) };
}

export const DAMAGE_HINT =
  "`holdfast doctor --recheck` looks again, and clears what is well; `holdfast salvage`, or `holdfast restore BACKUP`, makes a whole one.";

export const READ_ERROR_HINT = "Look in the system's log for read errors of the disk.";

/** Reports an error that repeats at every try only when it begins or changes: an outage of an hour must not fill the log. */
export class RepeatedFailure {
  #reported: string | null = null;

  log(log: Log, level: "warn" | "error", message: string, error: unknown): void {
    const described = describeError(error);
    if (described.error !== this.#reported) log[level](message, described);
    this.#reported = described.error;
  }

  reset(): void {
    this.#reported = null;
  }
}
