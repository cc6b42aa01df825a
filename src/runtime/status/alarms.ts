import { age } from "../../core/age.ts";
import { saySpent } from "../../core/cost.ts";
import { isLong, sayReaders, VERY_LONG_WAL, type WalView } from "../../core/wal.ts";
import { bytes, number, plural } from "../../core/words.ts";
import { isLeft, type OpenBuild } from "./open-builds.ts";
import { isThere, type Overview, type Unworked, workersIn } from "./overview.ts";

export const ALARM_CODES = [
  "DAMAGED",
  "COMMITS_MISSING",
  "BUILD_PAUSED",
  "BUILD_CRASHED",
  "NOBODY_WORKS",
  "NAME_NOT_WORKED",
  "LEFT_BEHIND",
  "RECOVERY_FAILED",
  "RECOVERY_PENDING",
  "RECOVERY_STUCK",
  "QUARANTINED",
  "FAILED",
  "WAITING_LONG",
  "SINK_BEHIND",
  "WAL_LONG",
] as const;
export type AlarmCode = (typeof ALARM_CODES)[number];

/** Something an operator should know. Only a `grave` one makes `health` say "not ok". */
export interface Alarm {
  code: AlarmCode;
  grave: boolean;
  message: string;
  hint: string;
}

/** More names than this that nobody works on are summed up. */
const NAMES = 4;
/** A recovery that takes longer than this is stuck. */
const STUCK = 60_000;
/** A sink that is further behind is worth a word. */
const LAG = 60_000;

export function alarmsOf(overview: Overview, limits: { oldest?: number } = {}): Alarm[] {
  const { counts, processes, ready, byHand } = overview;
  const alarms: Alarm[] = [];
  if (overview.damaged !== null) {
    const message = `the database is damaged, and is only read: ${overview.damaged}`;
    alarms.push({ code: "DAMAGED", grave: true, message, hint: "holdfast doctor --recheck" });
  }
  for (const what of overview.lost) {
    alarms.push({ code: "COMMITS_MISSING", grave: true, message: what, hint: "holdfast recover && holdfast recover --last" });
  }
  const gone = processes.filter((process) => !isThere(process));
  const open = overview.queues.filter(({ paused }) => !paused);
  const noWorker = workersIn(overview).length === 0;
  // Whoever claims by hand is somebody who works, though nobody knows on what.
  if (ready && noWorker && byHand === 0) {
    const pending = open.reduce((total, queue) => total + queue.counts.pending, 0);
    const message = `${plural(pending, "job is", "jobs are")} pending and nobody works`;
    alarms.push({ code: "NOBODY_WORKS", grave: true, message, hint: "holdfast work FILES…" });
  } else {
    alarms.push(...notWorked(overview.unworked));
  }
  const left = gone.reduce((total, { running }) => total + running, 0);
  if (left > 0) {
    const message = `${plural(left, "job was", "jobs were")} left running by a process that died`;
    // Any worker takes them back within a second, so this stands only while there is none.
    alarms.push({ code: "LEFT_BEHIND", grave: noWorker, message, hint: "holdfast recover" });
  }
  alarms.push(...ofRecoveries(overview));
  if (counts.quarantined > 0) {
    const message = `${plural(counts.quarantined, "job is", "jobs are")} quarantined`;
    alarms.push({ code: "QUARANTINED", grave: true, message, hint: "holdfast quarantine list" });
  }
  const waited = overview.at - Math.min(...open.map(({ oldestAt }) => oldestAt ?? Number.POSITIVE_INFINITY));
  if (limits.oldest !== undefined && waited > limits.oldest) {
    const message = `the oldest job has waited for ${age(waited)}`;
    alarms.push({ code: "WAITING_LONG", grave: true, message, hint: "holdfast jobs list --state pending" });
  }
  for (const { name, behind, oldestAt, failures } of overview.sinks) {
    const lag = oldestAt === null ? 0 : overview.at - oldestAt;
    if (failures === 0 && lag < LAG) continue;
    const message = `sink ${name} ${failures > 0 ? "fails" : "lags"}: ${plural(behind, "event")} behind, ${age(lag)}`;
    // It holds up only itself.
    alarms.push({ code: "SINK_BEHIND", grave: false, message, hint: "holdfast events sinks" });
  }
  if (overview.wal !== null && isLong(overview.wal)) alarms.push(ofWal(overview.wal));
  alarms.push(...ofBuilds(overview.builds));
  if (counts.failed > 0) {
    const message = `${plural(counts.failed, "job")} failed`;
    alarms.push({ code: "FAILED", grave: false, message, hint: "holdfast jobs list --state failed" });
  }
  return alarms;
}

function ofRecoveries({ at, crashes, pending }: Overview): Alarm[] {
  const alarms: Alarm[] = [];
  if (pending !== null) {
    const message = `what a crash has left waits for your word: ${plural(pending.jobs, "job")}, ${plural(pending.builds.length, "build")}`;
    alarms.push({ code: "RECOVERY_PENDING", grave: true, message, hint: "holdfast recover && holdfast recover --apply" });
  }
  for (const { state, errors, begunAt } of crashes.open) {
    if (state === "failed") {
      const more = errors.length === 1 ? "" : ` and ${errors.length - 1} more`;
      const message = `after a crash something was found to be wrong: ${errors[0] ?? ""}${more}`;
      alarms.push({
        code: "RECOVERY_FAILED",
        grave: true,
        message,
        hint: "holdfast recover --last && holdfast recover --acknowledge",
      });
    } else if (at - begunAt > STUCK) {
      const message = `a recovery is under way for ${age(at - begunAt)}`;
      alarms.push({ code: "RECOVERY_STUCK", grave: true, message, hint: "holdfast recover" });
    }
  }
  return alarms;
}

/** It grows for as long as somebody reads what was; and where nobody does, nobody copies it into the database. */
function ofWal({ bytes: size, readers }: WalView): Alarm {
  const who = sayReaders(readers);
  const message = `the write-ahead log has ${bytes(size)}${who === null ? "" : `: ${who} reads an earlier state`}`;
  const hint = who === null ? "holdfast doctor" : "end that transaction, or that program";
  return { code: "WAL_LONG", grave: size >= VERY_LONG_WAL, message, hint };
}

/** Not grave: a process that is started again would not help one that waits for money, and is what helps the other. */
function ofBuilds(builds: readonly OpenBuild[]): Alarm[] {
  return builds.flatMap((build): Alarm[] => {
    const { id, pipeline, state, approved, spent, budget } = build;
    if (state === "CRASHED" || isLeft(build) || (state === "BUDGET_PAUSE" && approved)) {
      const message = `a build of ${pipeline} ${approved ? "was approved" : "was interrupted"} and waits for its next run`;
      return [{ code: "BUILD_CRASHED", grave: false, message, hint: `holdfast builds resume ${id}` }];
    }
    if (state !== "BUDGET_PAUSE") return [];
    const message = `a build of ${pipeline} is paused for its budget: ${saySpent(spent, budget)} spent`;
    return [{ code: "BUILD_PAUSED", grave: false, message, hint: `holdfast builds show ${id}` }];
  });
}

/**
 * Not grave: the workers that are there do what they can, and such jobs may be claimed by hand, or wait for a new version
 * that is being rolled out. Those that wait for too long are what `--oldest` finds.
 */
function notWorked(unworked: readonly Unworked[]): Alarm[] {
  // One more than fits is as long as the line that would sum it up.
  const shown = unworked.length > NAMES + 1 ? unworked.slice(0, NAMES) : unworked;
  const others = unworked.slice(shown.length);
  const messages = shown.map(({ name, version, pending }) => {
    return `nobody works on ${name}${version === 1 ? "" : ` v${version}`} (${number(pending)} pending)`;
  });
  if (others.length > 0) {
    const pending = others.reduce((total, one) => total + one.pending, 0);
    messages.push(`nobody works on ${others.length} other names (${number(pending)} pending)`);
  }
  const hint = "holdfast work FILES…";
  return messages.map((message) => ({ code: "NAME_NOT_WORKED", grave: false, message, hint }));
}
