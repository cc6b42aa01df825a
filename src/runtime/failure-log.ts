import { sayMillis } from "../core/duration.ts";
import type { JobError } from "../core/job.ts";
import type { Next, Outcome } from "../core/retry.ts";
import type { Claimed } from "../store/store.ts";
import type { Log } from "./log.ts";

/**
 * Logs an attempt that did not succeed, once its outcome is stored: a warning if the job is retried, an error if it has
 * failed for good. An attempt that was given back, or asked to run later, is not a failure.
 */
export function logFailure(log: Log, claimed: Claimed, outcome: Outcome, decided: Next | undefined): void {
  if (decided === undefined || decided.error === null || outcome.kind === "later") return;
  const { id: job, name, attempt, policy } = claimed;
  const hint = `hf.jobs.get("${job}") has the stack.`;
  const about = { job, name, attempt, ...describeError(decided.error) };
  const failed = decided.error.code === "TIMEOUT" ? `timed out after ${sayMillis(policy.timeout)}` : "failed";
  if (decided.state === "pending") {
    const when = decided.delay === 0 ? "now" : `in ${sayMillis(decided.delay)}`;
    return log.warn(`job "${name}" ${failed}; it is retried ${when}`, { ...about, hint });
  }
  log.error(`job "${name}" ${failed}${decided.state === "quarantined" ? ", and is quarantined" : ""}`, { ...about, hint });
}

function describeError({ name, message, stack }: JobError): { error: string; at?: string } {
  const at = stack?.split("\n").find((line) => /^\s+at /.test(line));
  return { error: `${name}: ${message}`, ...(at === undefined ? {} : { at: at.trim().slice(3) }) };
}
