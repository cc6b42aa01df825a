import { hash } from "node:crypto";
import { type Duration, toMillis } from "../text/duration.ts";
import type { Fence, JobKey } from "../text/ids.ts";
import { didYouMean, invalidOption } from "../text/options.ts";
import type { Lane } from "./claiming.ts";
import { EVENT_TYPES, type EventType } from "./event-types.ts";
import type { FinishedState, JobError } from "./job.ts";
import type { Next } from "./retry.ts";

/** What happened, as sinks and subscribers get it. */
export interface Event {
  /** Rises with each event of a database. */
  seq: number;
  /** `job.succeeded`, `queue.paused`, … */
  type: string;
  at: number;
  /** The same for every delivery of this event, and for no other event. */
  dedupeKey: string;
  job?: string;
  build?: string;
  data: unknown;
}

export { EVENT_TYPES, type EventType };

/** Rejects types that no event has, because a subscriber would wait for ever, and "jobs.*", whose author means "job.*". */
export function checkEventTypes(types: readonly string[]): void {
  for (const type of types) {
    if (type !== "jobs.*" && EVENT_TYPES.some((known) => matchesEventType(known, [type]))) continue;
    const groups = new Set(EVENT_TYPES.map((known) => `${known.slice(0, known.indexOf("."))}.*`));
    groups.delete("jobs.*");
    throw invalidOption(
      `There is no event type "${type}".`,
      `${didYouMean(type, [...groups, ...EVENT_TYPES])}Give a type such as "job.failed", or "job.*" for all that begin so.`,
    );
  }
}

/** Events of jobs. `job.returned`: the job will run again. `job.retried`: an operator retries it. */
export type JobEventType = Extract<EventType, `job.${string}`>;

export const EVENT_OF: Record<Next["state"], JobEventType> = {
  succeeded: "job.succeeded",
  pending: "job.returned",
  failed: "job.failed",
  quarantined: "job.quarantined",
};

export interface NewEvent {
  type: string;
  /** Unique in this database. The dedupe key is its hash. */
  transition: string;
  job?: string;
  build?: string;
  data: object;
}

interface EventJob {
  key: JobKey;
  fence: Fence | 0;
  attempt: number;
  id: string;
  error: string | null;
}

/** Returns an event of a job, without input and output, which may be large or secret. */
export function jobEvent(type: JobEventType, job: EventJob, { name, queue, version }: Lane): NewEvent {
  const { key, fence, attempt, id, error } = job;
  const data: Record<string, unknown> = { id, name, queue, version, attempt };
  if (error !== null && !TYPES_WITHOUT_ERROR.has(type)) data["error"] = withoutStack(JSON.parse(error) as JobError);
  return { type, transition: `${type}|${key}:${fence}`, job: id, data };
}

/** Events without the job's error, which belongs to an earlier attempt. */
const TYPES_WITHOUT_ERROR: ReadonlySet<JobEventType> = new Set(["job.enqueued", "job.started", "job.retried"]);

function withoutStack({ name, message, code }: JobError): JobError {
  return code === undefined ? { name, message } : { name, message, code };
}

export function commitTransition(type: string, subject: string, commit: Fence, number: number): string {
  return `${type}|${subject}|${commit}:${number}`;
}

export function subjectData(type: string, subject: string): object {
  return { [type.slice(0, type.indexOf("."))]: subject };
}

export function removedJobsData(jobs: number, { state, queue }: { state: FinishedState; queue?: string }): object {
  return { state, jobs, ...(queue === undefined ? {} : { queue }) };
}

export function matchesEventType(type: string, types: readonly string[] | undefined): boolean {
  if (types === undefined) return true;
  return types.some((asked) => (asked.endsWith("*") ? type.startsWith(asked.slice(0, -1)) : type === asked));
}

const FIRST_SINK_PAUSE_MS = 1_000;
const FIRST_RETRY_MS = 100;
const MAX_SINK_PAUSE_MS = 300_000;

/** Returns the delay before a redelivery. It has jitter, or all sinks of a host would come back at once. */
export function redeliverAfter(failures: number, random: number): number {
  return backOff(FIRST_SINK_PAUSE_MS, failures, random);
}

function backOff(first: number, failures: number, random: number): number {
  const full = Math.min(MAX_SINK_PAUSE_MS, first * 2 ** Math.min(failures - 1, 40));
  return Math.round(full / 2 + (full / 2) * random);
}

/** Hashes the database's id, too, because several databases may deliver to one place and count from one each. */
export function dedupeKey(databaseId: string, transition: string): string {
  return hash("sha256", `${databaseId}|${transition}`);
}

/** Names a transition. Only the target's hash may contain a bar, so no two transitions have the same text. */
export function buildTransition(type: string, build: string, seq: number, target = ""): string {
  return `${type}|${build}|${seq}|${target}`;
}

/** How many events are held back in memory. Beyond that, none is read until some are delivered. */
const MAX_HELD_EVENTS = 1_000;
/** At most this many events are delivered again after a crash: those after the oldest held one. */
const MAX_EVENTS_AHEAD = 10_000;

interface HeldSubject {
  /** The sink refused the first event. The others wait behind it, in order. */
  events: Event[];
  refusals: number;
  retryAt: number;
}

/** Events that a sink refused, and later ones about the same job or build. Other events pass by. Times are monotonic. */
export class HeldEvents {
  readonly #subjects = new Map<string, HeldSubject>();
  #size = 0;
  #readTo: number;

  constructor(cursor: number) {
    this.#readTo = cursor;
  }

  get isEmpty(): boolean {
    return this.#size === 0;
  }

  get readTo(): number {
    return this.#readTo;
  }

  get deliveredTo(): number {
    let oldest = this.#readTo + 1;
    for (const { events } of this.#subjects.values()) oldest = Math.min(oldest, (events[0] as Event).seq);
    return oldest - 1;
  }

  get hasRoom(): boolean {
    return this.#size < MAX_HELD_EVENTS && this.#readTo - this.deliveredTo < MAX_EVENTS_AHEAD;
  }

  /** Returns true if the event now waits behind a held one. Otherwise the caller offers it to the sink, or skips it. */
  holdsBack(event: Event): boolean {
    const subject = this.#subjects.get(subjectOf(event));
    if (subject === undefined) return false;
    subject.events.push(event);
    this.#size++;
    this.advance(event);
    return true;
  }

  /** Marks the event as delivered, held back, or filtered out. Until then it is read again. */
  advance({ seq }: Event): void {
    this.#readTo = Math.max(this.#readTo, seq);
  }

  due(now: number): Event[] {
    const due = [...this.#subjects.values()].filter(({ retryAt }) => retryAt <= now);
    return due.map(({ events }) => events[0] as Event).toSorted((a, b) => a.seq - b.seq);
  }

  nextIn(now: number): number | undefined {
    if (this.isEmpty) return undefined;
    return Math.max(0, Math.min(...[...this.#subjects.values()].map(({ retryAt }) => retryAt)) - now);
  }

  /** Holds back a refused event, and returns its number of refusals. `atLeast`: the pause before a third or later delivery. */
  refuse(event: Event, now: number, random: number, atLeast = 0): number {
    this.advance(event);
    const name = subjectOf(event);
    const known = this.#subjects.get(name);
    const subject = known ?? { events: [event], refusals: 0, retryAt: 0 };
    if (known === undefined) {
      this.#subjects.set(name, subject);
      this.#size++;
    }
    const pause = backOff(FIRST_RETRY_MS, ++subject.refusals, random);
    subject.retryAt = now + (subject.refusals === 1 ? pause : Math.max(pause, atLeast));
    return subject.refusals;
  }

  /** Removes an accepted event. Events held back behind it are due at once. */
  accept(event: Event): void {
    this.advance(event);
    const name = subjectOf(event);
    const subject = this.#subjects.get(name);
    if (subject === undefined || subject.events[0] !== event) return;
    subject.events.shift();
    this.#size--;
    subject.refusals = 0;
    subject.retryAt = Number.NEGATIVE_INFINITY;
    if (subject.events.length === 0) this.#subjects.delete(name);
  }
}

function subjectOf({ job, build }: Event): string {
  return job === undefined ? (build === undefined ? "" : `build ${build}`) : `job ${job}`;
}

/**
 * Thrown by a handler to run the job again later, without charging an attempt.
 *
 * ```ts
 * if (response.status === 429) throw new RetryAfterError("30s", "the API is busy");
 * ```
 */
export class RetryAfterError extends Error {
  readonly after: number | Date;

  constructor(after: Duration | Date, message = "again later") {
    super(message);
    this.name = "RetryAfterError";
    // An invalid date is rejected as a duration.
    const isTime = after instanceof Date && !Number.isNaN(after.getTime());
    this.after = isTime ? after : toMillis(after as Duration, "RetryAfterError's delay");
  }
}
