import type { Keep, QueueSettings } from "../../core/queue.ts";
import type { FinishedState } from "../../core/job.ts";
import type { NewJob } from "../store.ts";
import type { Rows } from "./driver.ts";
import type { Tx } from "./group.ts";

interface Queue {
  paused: boolean;
  events: boolean;
  keep: QueueSettings["keep"];
}

const NOTHING: Queue = { paused: false, events: false, keep: {} };

/**
 * What is set for queues, and which limits there are. Read again only when the database's count of such changes has
 * moved, which every transaction looks at before it commits.
 */
export class Settings {
  readonly #sql: Record<"counted" | "queues" | "rules", string>;
  #seen = -1;
  #queues = new Map<string, Queue>();
  #limited = new Set<string>();

  constructor(s: string) {
    this.#sql = {
      counted: `select settings from ${s}.counter where id = 1`,
      queues: `select name, paused, events, keep from ${s}.queues`,
      rules: `select id, queue, job, position, keyed, concurrency, starts, per from ${s}.limits`,
    };
  }

  /** After an undone transaction, or when others have changed something. */
  forget(): void {
    this.#seen = -1;
  }

  /** False: nothing can be told before they are read. */
  get isKnown(): boolean {
    return this.#seen !== -1;
  }

  /** Called first by whoever relies on it; everything that it then says holds for this transaction. */
  async at(tx: Tx): Promise<this> {
    if (!this.isKnown) await this.load(tx.rows);
    tx.assume("settings", this.#seen);
    return this;
  }

  /** What is known, for a transaction that does not wait. */
  assumed(tx: Tx): this {
    tx.assume("settings", this.#seen);
    return this;
  }

  async load(rows: Rows): Promise<void> {
    const [counted] = await rows<[number]>(this.#sql.counted);
    const queues = await rows<[string, boolean, boolean, string | null]>(this.#sql.queues);
    const rules = await rows<[number, string]>(this.#sql.rules);
    this.#queues = new Map(
      queues.map(([name, paused, events, keep]) => [
        name,
        { paused, events, keep: keep === null ? {} : (JSON.parse(keep) as QueueSettings["keep"]) },
      ]),
    );
    this.#limited = new Set(rules.map(([, queue]) => queue));
    this.#seen = (counted as [number])[0];
  }

  isPaused(queue: string): boolean {
    return (this.#queues.get(queue) ?? NOTHING).paused;
  }

  tells(queue: string): boolean {
    return (this.#queues.get(queue) ?? NOTHING).events;
  }

  keep(queue: string, state: FinishedState): Keep | undefined {
    return (this.#queues.get(queue) ?? NOTHING).keep[state];
  }

  /** Whether there are any limits at all. */
  get limited(): boolean {
    return this.#limited.size > 0;
  }

  /** Whether what the job's definition declares was said already, for good. */
  isSaid(job: NewJob): boolean {
    return job.declares === undefined;
  }

  /** What stands in the rows of these jobs about their limits; null when none has any. First words are written down. */
  async declareAll(_tx: Tx, _jobs: readonly NewJob[]): Promise<(string | null)[] | null> {
    return null;
  }

  /** Whether jobs of this queue may have limits. */
  limits(queue: string): boolean {
    return this.#limited.has(queue);
  }
}
