import { age } from "./terminal/age.ts";
import { plural } from "./terminal/text.ts";
import type { Overview } from "./overview.ts";

/** Something an operator should know. Only a `grave` one makes `health` say "not ok". */
export interface Alarm {
  code: "NOBODY_WORKS" | "LEFT_BEHIND" | "QUARANTINED" | "FAILED" | "WAITING_LONG";
  grave: boolean;
  message: string;
  hint: string;
}

export function alarmsOf(overview: Overview, limits: { oldest?: number } = {}): Alarm[] {
  const { counts, processes, ready } = overview;
  const alarms: Alarm[] = [];
  const gone = processes.filter(({ life }) => life === "dead" || life === "rebooted");
  if (ready && processes.length === gone.length) {
    const message = `${plural(counts.pending, "job is", "jobs are")} pending and nobody works`;
    alarms.push({ code: "NOBODY_WORKS", grave: true, message, hint: "holdfast work FILES…" });
  }
  const left = gone.reduce((total, { running }) => total + running, 0);
  if (left > 0) {
    const message = `${plural(left, "job was", "jobs were")} left running by a process that died`;
    // Any worker takes them back within a second, so this stands only while there is none.
    alarms.push({ code: "LEFT_BEHIND", grave: processes.length === gone.length, message, hint: "holdfast recover" });
  }
  if (counts.quarantined > 0) {
    const message = `${plural(counts.quarantined, "job is", "jobs are")} quarantined`;
    alarms.push({ code: "QUARANTINED", grave: true, message, hint: "holdfast quarantine list" });
  }
  const waited = overview.at - Math.min(...overview.queues.map(({ oldestAt }) => oldestAt ?? Number.POSITIVE_INFINITY));
  if (limits.oldest !== undefined && waited > limits.oldest) {
    const message = `the oldest job has waited for ${age(waited)}`;
    alarms.push({ code: "WAITING_LONG", grave: true, message, hint: "holdfast jobs list --state pending" });
  }
  if (counts.failed > 0) {
    const message = `${plural(counts.failed, "job")} failed`;
    alarms.push({ code: "FAILED", grave: false, message, hint: "holdfast jobs list --state failed" });
  }
  return alarms;
}
