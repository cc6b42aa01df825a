import { countFree, freeTokens, type LimitRule, opensAt, type Rate, type Usage } from "../limits/limit.ts";
import type { BuildState } from "../pipelines/build.ts";
import { durationText } from "../text/duration.ts";
import { numberText, plural } from "../text/text.ts";
import { isFinished, type Job, type JobState } from "./job.ts";

export const WAIT_REASONS = [
  "running",
  "finished",
  "delayed",
  "waiting-for-job",
  "limit",
  "queue-paused",
  "locked",
  "no-worker",
  "behind",
  "backoff",
  "build-paused",
] as const;

/** Why a job does not run. Of several reasons, it is the one that an operator can do most about. */
export interface Explanation {
  state: JobState;
  reason: (typeof WAIT_REASONS)[number];
  message: string;
  /** When the reason ends by itself, if that is known. */
  until?: number;
  /** How many jobs of its queue are claimed before it, counted up to 10,000. */
  ahead?: number;
  limit?: { key: string; used: number; max: number };
  /** Ids of the jobs that it waits for, up to 100. */
  jobs?: string[];
}

export const MAX_AHEAD = 10_000;

export interface LimitFacts extends Usage {
  key: string;
  rule: LimitRule;
  isHere: boolean;
}

export interface JobFacts {
  job: Job;
  version: number;
  now: number;
  gate: "time" | "limit" | null;
  isPaused: boolean;
  /** The queue's lock. `expiresAt` is null for the lock of an exclusive claim, which ends with its claim. */
  lock: { holder: string; expiresAt: number | null } | null;
  upstream: readonly string[];
  limits: readonly LimitFacts[];
  ahead: number;
  build: { id: string; pipeline: string; state: BuildState; approved: boolean } | null;
}

/** Explains why a job does not run. `worked` has the versions of the job that live processes announce. */
export function explain(facts: JobFacts, worked: readonly number[]): Explanation {
  const { job } = facts;
  if (isFinished(job.state)) return finished(job, facts.now);
  if (job.state === "running") return running(job, facts.now);
  const { state } = job;
  const held =
    ofBuild(facts) ??
    ofUpstream(facts) ??
    (facts.isPaused ? { reason: "queue-paused" as const, message: `Queue "${job.queue}" is paused.` } : null) ??
    ofDelay(facts) ??
    ofLock(facts) ??
    ofLimit(facts) ??
    ofWorkers(facts, worked) ??
    ofPosition(facts);
  return { state, ...held };
}

type Held = Omit<Explanation, "state"> | null;

function finished(job: Job, now: number): Explanation {
  const { state, finishedAt, attempt } = job;
  const ago = finishedAt === undefined ? "" : ` ${timeText(now - finishedAt)} ago`;
  const after = state === "succeeded" ? "" : `, after ${plural(attempt, "attempt")}`;
  return { state, reason: "finished", message: `The job ${STATE_WORDS[state] ?? state}${ago}${after}.` };
}

const STATE_WORDS: Partial<Record<JobState, string>> = {
  cancelled: "was cancelled",
  quarantined: "was quarantined",
};

function running({ state, startedAt, attempt, worker, leaseExpiresAt }: Job, now: number): Explanation {
  const since = startedAt === undefined ? "runs" : `has run for ${timeText(now - startedAt)}`;
  const expired =
    leaseExpiresAt !== undefined && leaseExpiresAt < now
      ? " Its lease has expired; the next worker or claim reclaims the job."
      : "";
  const message = `Attempt ${attempt} ${since}${worker === undefined ? "" : ` on worker ${worker}`}.${expired}`;
  return { state, reason: "running", message, ...(leaseExpiresAt === undefined ? {} : { until: leaseExpiresAt }) };
}

function ofBuild({ build, isPaused }: JobFacts): Held {
  if (build === null || (build.state === "ACTIVE" && !isPaused)) return null;
  const words: Record<BuildState, string> = {
    PENDING: "has not started",
    ACTIVE: "is about to pause",
    CRASHED: "was interrupted and waits for its next run",
    BUDGET_PAUSE: build.approved
      ? "has a new budget, and waits for its next run"
      : "is paused at its budget and waits for approval",
    SUCCESS: "has ended, and this job is about to be cancelled",
    FAILED: "has failed, and this job is about to be cancelled",
    ABANDONED: "was abandoned, and this job is about to be cancelled",
  };
  return { reason: "build-paused", message: `Build ${build.id} of pipeline "${build.pipeline}" ${words[build.state]}.` };
}

const MAX_NAMED = 3;

function ofUpstream({ job, upstream }: JobFacts): Held {
  if (job.state !== "waiting") return null;
  const jobs = [...upstream];
  const more = jobs.length - MAX_NAMED;
  const names = jobs.slice(0, MAX_NAMED).join(", ") + (more > 0 ? ` and ${more} more` : "");
  return { reason: "waiting-for-job", message: `Waits for ${plural(jobs.length, "job")}: ${names}.`, jobs };
}

function ofDelay({ job, gate, now }: JobFacts): Held {
  const { runAt: until, startedAt, attempt } = job;
  if (gate !== "time" || until <= now) return null;
  const left = leftText(until - now);
  if (startedAt === undefined) return { reason: "delayed", message: `The job can start in ${left}.`, until };
  // An attempt that threw RetryAfterError or was released is not counted.
  const last = attempt === 0 ? "Waits for its next attempt, which" : `Waits after attempt ${attempt}; the next one`;
  return { reason: "backoff", message: `${last} can start in ${left}.`, until };
}

function ofLock({ job, lock, now }: JobFacts): Held {
  if (lock === null) return null;
  const { holder, expiresAt } = lock;
  const held = `Waits for the lock of queue "${job.queue}", held by "${holder}"`;
  if (expiresAt === null) return { reason: "locked", message: `${held} until its exclusive claim ends.` };
  const left = leftText(expiresAt - now);
  return { reason: "locked", message: `${held} for another ${left}.`, until: expiresAt };
}

/** Also explains a ready job if the starts before it use up its limit, because the next claim parks it. */
function ofLimit({ job, gate, limits, now }: JobFacts): Held {
  const full = limits.find((limit) => countFree(limit.rule, limit, now) < 1);
  const limit = gate === "limit" ? (limits.find(({ isHere }) => isHere) ?? full) : full;
  if (limit === undefined) return null;
  const { rule, key, running: started, bucket } = limit;
  const tokens = rule.rate === null ? 0 : Math.max(0, freeTokens(rule.rate, bucket, now));
  const isOfRate = rule.rate !== null && (rule.concurrency === null || tokens < 1);
  const name = rule.keyed
    ? `the limit of key "${key}"`
    : `the limit of ${rule.of} "${rule.of === "queue" ? job.queue : job.name}"`;
  if (isOfRate) {
    const rate = rule.rate as Rate;
    const used = { key, used: rate.starts - Math.min(tokens, rate.starts), max: rate.starts };
    const until = opensAt(rule, limit, now);
    if (until !== null) {
      const left = leftText(until - now);
      const message = `Waits for ${name} (${rateText(rate)}); the next slot is free in ${left}.`;
      return { reason: "limit", message, until, limit: used };
    }
    return { reason: "limit", message: `Waits for ${name} (${rateText(rate)}); other jobs come first.`, limit: used };
  }
  const max = rule.concurrency ?? 0;
  const why = started >= max ? `${plural(started, "job runs", "jobs run")}` : "other jobs come first";
  return { reason: "limit", message: `Waits for ${name} (${max} at once); ${why}.`, limit: { key, used: started, max } };
}

function ofWorkers({ job, version }: JobFacts, worked: readonly number[]): Held {
  if (worked.includes(version)) return null;
  const others = [...new Set(worked)].sort((a, b) => a - b).join(", ");
  const other = others === "" ? "" : `; processes run version ${others}`;
  return { reason: "no-worker", message: `No live process runs version ${version} of job "${job.name}"${other}.` };
}

function ofPosition({ job, ahead }: JobFacts): Exclude<Held, null> {
  const many = ahead >= MAX_AHEAD ? `At least ${numberText(MAX_AHEAD)} jobs` : plural(ahead, "job");
  const message =
    ahead === 0
      ? `The job is the next of queue "${job.queue}"; a worker claims it when it has a free slot.`
      : `${many} of queue "${job.queue}" ${ahead === 1 ? "comes" : "come"} first.`;
  return { reason: "behind", message, ahead };
}

const PERIODS: readonly (readonly [millis: number, unit: string])[] = [
  [1_000, "s"],
  [60_000, "m"],
  [3_600_000, "h"],
  [86_400_000, "d"],
];

function rateText({ starts, per }: Rate): string {
  const unit = PERIODS.find(([millis]) => millis === per)?.[1];
  return unit === undefined ? `${starts} per ${durationText(per)}` : `${starts}/${unit}`;
}

function leftText(millis: number): string {
  return timeText(Math.max(1_000, millis));
}

const UNITS = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
] as const;

/** Formats a time in one unit, or in two while the first is below ten: `1 min 30 s`, `12 h`. */
function timeText(millis: number): string {
  const exact = Math.max(0, Math.round(millis / 1_000));
  const step = UNITS.find(([size]) => exact >= 10 * size)?.[0] ?? 1;
  let rest = Math.round(exact / step) * step;
  const parts: string[] = [];
  for (const [size, unit] of UNITS) {
    if (rest >= size) parts.push(`${Math.floor(rest / size)} ${unit}`);
    rest %= size;
  }
  return parts.join(" ") || "0 s";
}
