import type { Event, JobEventType } from "../../src/core/jobs/event.ts";
import type { ModelJob } from "./model-job.ts";
import { must, mustEqual } from "./violation.ts";

interface Told {
  type: string;
  at: number;
  /** The job's id, or what else it is about. */
  subject: string;
  attempt?: number;
}

/** What has happened and must be told: each once, in its order, and nothing else. */
export class ModelEvents {
  /** Since the last look. */
  #expected: Told[] = [];
  readonly #keys = new Set<string>();
  /** How far it was read. */
  seq = 0;

  tell(at: number, type: string, subject = ""): void {
    this.#expected.push({ type, at, subject });
  }

  /** After the change. */
  tellOf(at: number, type: JobEventType, { id, attempt }: ModelJob): void {
    this.#expected.push({ type, at, subject: id, attempt });
  }

  check(events: readonly Event[]): void {
    for (const { seq, dedupeKey } of events) {
      must(seq > this.seq, () => `event ${seq} comes after ${this.seq}`);
      this.seq = seq;
      must(!this.#keys.has(dedupeKey), () => `event ${seq} has a dedupe key of its own`);
      this.#keys.add(dedupeKey);
    }
    const expected = bySubject(this.#expected);
    const told = bySubject(events.map(toTold));
    this.#expected = [];
    // Order is promised for each job; what an operation tells of several has none.
    for (const subject of new Set([...expected.keys(), ...told.keys()])) {
      mustEqual(told.get(subject), expected.get(subject), `the events of ${subject === "" ? "the whole" : subject}`);
    }
  }
}

function bySubject(told: readonly Told[]): Map<string, Told[]> {
  return Map.groupBy(told, ({ subject }) => subject);
}

function toTold({ type, at, job, data }: Event): Told {
  const { queue, lock, schedule, attempt } = data as { queue?: string; lock?: string; schedule?: string; attempt?: number };
  if (job !== undefined) return { type, at, subject: job, attempt: attempt as number };
  const subject = type.startsWith("queue.") ? queue : type.startsWith("lock.") ? lock : schedule;
  return { type, at, subject: subject ?? "" };
}
