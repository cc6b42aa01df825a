import type { Clock } from "../core/clock.ts";
import { ticksOf } from "../core/schedule.ts";
import type { StoredSchedule } from "../store/schedules.ts";
import type { Store } from "../store/store.ts";
import type { Log } from "./log.ts";
import { said, Trouble } from "./trouble.ts";

/** However far away the next tick is, look again by then: clocks are set, and other processes change schedules. */
const LOOK_AGAIN = 5_000;
/** After trouble: soon enough for the tick to be on time. */
const TRY_AGAIN = 1_000;
/** Schedules whose ticks share a commit. */
const TOGETHER = 100;

/**
 * Makes jobs of ticks. Every process with a worker has one, and all of them see the same tick: the store lets one of them
 * have it. Whoever dies before that commit has done nothing, and the others are still there for it.
 */
export class Scheduler {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: Log;
  #state: "idle" | "running" | "stopped" = "idle";
  #cancel: (() => void) | null = null;
  #looking: Promise<void> | null = null;
  /** Somebody asked while it was looking: what it has read may be older than that. */
  #again = false;
  readonly #trouble = new Trouble();
  /** What was said in the log already: it is tried again every second. */
  readonly #troubles = new Map<string, string>();

  constructor(parts: { store: Store; clock: Clock; log: Log }) {
    this.#store = parts.store;
    this.#clock = parts.clock;
    this.#log = parts.log;
  }

  /** From now on it keeps an eye on the schedules by itself. */
  start(): void {
    if (this.#state !== "idle") return;
    this.#state = "running";
    void this.look();
  }

  /** A schedule was changed here: the next tick may be another. */
  changed(): void {
    if (this.#state === "running") void this.look();
  }

  async stop(): Promise<void> {
    this.#state = "stopped";
    this.#cancel?.();
    await this.#looking;
  }

  /** Everything that is due becomes jobs, now. Never throws: a worker or a claim goes on without it. */
  look(): Promise<void> {
    this.#again = true;
    this.#looking ??= this.#look()
      .then(
        (wait) => {
          this.#trouble.over();
          return wait;
        },
        (error: unknown) => {
          const news = this.#trouble.news(error);
          if (news !== null) this.#log.warn("looking for ticks of schedules failed; it is tried again", news);
          return TRY_AGAIN;
        },
      )
      .then((wait) => {
        this.#looking = null;
        this.#alarm(wait);
      });
    return this.#looking;
  }

  #alarm(wait: number): void {
    this.#cancel?.();
    if (this.#state !== "running") return;
    this.#cancel = this.#clock.after(Math.max(1, Math.min(LOOK_AGAIN, wait)), () => void this.look());
  }

  /** How long until it is to look again. What is due is for the store's clock to say: this process's may be wrong. */
  async #look(): Promise<number> {
    for (;;) {
      this.#again = false;
      if (this.#store.damage.damaged !== null) return LOOK_AGAIN;
      const { due, nextAt, now } = await this.#store.schedules.due();
      if (this.#state === "stopped" || (due.length === 0 && !this.#again)) return nextAt === null ? LOOK_AGAIN : nextAt - now;
      let troubles = 0;
      for (let at = 0; at < due.length; at += TOGETHER) {
        const ticked = await Promise.all(due.slice(at, at + TOGETHER).map((schedule) => this.#tick(schedule, now)));
        troubles += ticked.filter((done) => !done).length;
      }
      // They are still due: to look again at once would be to look for ever.
      if (troubles > 0 && troubles === due.length) return TRY_AGAIN;
    }
  }

  /** False when it could not be done. One schedule's trouble (a time zone that is unknown here, say) is not the others'. */
  async #tick(schedule: StoredSchedule, now: number): Promise<boolean> {
    const { key, revision, nextAt: from } = schedule;
    try {
      const due = ticksOf(schedule, now);
      // When it is refused, another process was quicker.
      if (due !== null) await this.#store.schedules.tick({ key, revision, from, ...due });
      this.#troubles.delete(key);
      return true;
    } catch (error) {
      if (this.#troubles.get(key) !== String(error)) {
        this.#log.warn("a schedule could not tick; it is tried again", { schedule: key, ...said(error) });
      }
      this.#troubles.set(key, String(error));
      return false;
    }
  }
}
