import { Cron } from "croner";
import { HoldfastError } from "../text/errors.ts";
import { describeValue } from "../text/options.ts";

/** A job that is enqueued at each tick of a cron pattern. */
export interface Schedule {
  key: string;
  job: string;
  cron: string;
  timezone: string;
  paused: boolean;
  /** The tick that last made a job, or the time of the last trigger. */
  lastAt?: number;
  nextAt: number;
}

export type Missed = "skip" | "once" | "all";

export interface ScheduleRule {
  cron: string;
  timezone: string;
  missed: Missed;
  /** How late a missed tick may still run: null for no bound, or a day for "all". */
  within: number | null;
  nextAt: number;
}

export interface Due {
  fire: number[];
  nextAt: number;
}

/** How long a tick counts as on time, so that a busy process or a restart of a worker misses nothing. */
export const ON_TIME_MS = 10_000;
/** Each tick costs some dozen microseconds on the main thread. */
export const MAX_TICKS = 250;
const DAY_MS = 86_400_000;
const SECOND_MS = 1_000;
const NEVER = 8.64e15;

/** Returns what is due, or null. Ticks on time always run; for "once", a tick on time stands in for those missed before it. */
export function dueTicks(rule: ScheduleRule, now: number): Due | null {
  if (rule.nextAt > now) return null;
  const next = pattern(rule.cron, rule.timezone);
  const reach = rule.missed === "all" ? Math.max(ON_TIME_MS, rule.within ?? DAY_MS) : ON_TIME_MS;
  let tick = rule.nextAt >= now - reach ? rule.nextAt : Math.max(rule.nextAt, atOrAfter(next, now - reach));
  const fire: number[] = [];
  while (tick <= now && fire.length < MAX_TICKS) {
    fire.push(tick);
    tick = next(tick);
  }
  if (fire.length === 0 && rule.missed === "once") {
    const newest = newestDue(next, rule.nextAt, now);
    if (now - newest <= (rule.within ?? Number.POSITIVE_INFINITY)) fire.push(newest);
  }
  return { fire, nextAt: tick };
}

/** Returns the ticks that become jobs. Without `overlap`, at most one does, and none while the last job is unfinished. */
export function ticksToFire(fire: readonly number[], overlap: boolean, isUnfinished: () => boolean): readonly number[] {
  if (overlap) return fire;
  return isUnfinished() ? [] : fire.slice(0, 1);
}

export function nextTick(cron: string, timezone: string, after: number): number {
  const tick = pattern(checkCron(cron), checkTimezone(timezone))(after);
  if (tick < NEVER) return tick;
  throw new HoldfastError("CRON_INVALID", `The pattern "${cron}" matches no date.`, "Give a pattern with a day that exists.");
}

export function nextTicks(
  { cron, timezone, nextAt }: Pick<ScheduleRule, "cron" | "timezone" | "nextAt">,
  count: number,
): number[] {
  const next = pattern(cron, timezone);
  const ticks = [nextAt];
  while (ticks.length < count) ticks.push(next(ticks.at(-1) as number));
  return ticks.filter((tick) => tick < NEVER);
}

type Next = (after: number) => number;

function checkCron(cron: unknown): string {
  const fields = typeof cron === "string" ? cron.trim().split(/\s+/) : [];
  if (typeof cron !== "string" || cron.length > 1_000) throw notCron(cron, "A pattern is a text of at most 1,000 characters.");
  // A seventh field would be the year: use `runAt` of a job for something that happens once.
  if (!cron.startsWith("@") && fields.length !== 5 && fields.length !== 6) throw notCron(cron, `It has ${fields.length} fields.`);
  try {
    pattern(cron, "UTC");
  } catch (error) {
    throw notCron(cron, error instanceof Error ? error.message.replace(/^\w+: /, "") : String(error));
  }
  return cron;
}

function notCron(cron: unknown, why: string): HoldfastError {
  return new HoldfastError(
    "CRON_INVALID",
    `${describeValue(cron)} is not a cron pattern: ${why}`,
    'Give minute, hour, day, month and weekday ("30 2 * * *"), optionally a second in front, or a name such as "@daily".',
  );
}

function checkTimezone(timezone: unknown): string {
  if (typeof timezone === "string" && isZone(timezone)) return timezone;
  throw new HoldfastError(
    "TIMEZONE_INVALID",
    `Unknown time zone ${describeValue(timezone)}.`,
    'Give an IANA name such as "Europe/Berlin"; the default is "UTC".',
  );
}

function isZone(name: string): boolean {
  try {
    return Intl.DateTimeFormat("en", { timeZone: name }) !== null;
  } catch {
    return false;
  }
}

/** Uses one pattern per listed time ("0 2,14 * * *"): croner would count elapsed hours, so that 2:00 came twice in autumn. */
function pattern(cron: string, timezone: string): Next {
  const crons = timesOfDay(cron).map((one) => new Cron(one, { timezone }));
  return (after) => {
    const from = new Date(after);
    let soonest = NEVER;
    for (const one of crons) soonest = Math.min(soonest, one.nextRun(from)?.getTime() ?? NEVER);
    return soonest;
  };
}

function timesOfDay(cron: string): string[] {
  const fields = cron.trim().split(/\s+/);
  const times = fields.length === 6 ? 3 : 2;
  const lists = fields.slice(0, times).map((field) => field.split(","));
  const count = lists.reduce((product, list) => product * list.length, 1);
  if (fields.length < 5 || count > 100 || !lists.flat().every((one) => /^\d+$/.test(one))) return [cron];
  let heads = [""];
  for (const list of lists) heads = heads.flatMap((head) => list.map((one) => `${head}${one} `));
  return heads.map((head) => head + fields.slice(times).join(" "));
}

function atOrAfter(next: Next, instant: number): number {
  return next(Math.ceil(instant / SECOND_MS) * SECOND_MS - SECOND_MS);
}

/** Bisects, because a schedule of every second has thirty million ticks in a year without a worker. */
function newestDue(next: Next, first: number, now: number): number {
  if (next(first) > now) return first;
  let step = SECOND_MS;
  while (now - step > first && next(now - step) > now) step *= 2;
  // There is a tick after `low` that is due, and none after `high`.
  let low = Math.max(first, now - step);
  let high = now;
  while (high - low > SECOND_MS) {
    const middle = Math.floor((low + high) / 2);
    if (next(middle) > now) high = middle;
    else low = middle;
  }
  return next(low);
}
