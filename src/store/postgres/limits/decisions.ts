import { randomUUID } from "node:crypto";
import { Remembered } from "../../../core/limits/share.ts";
import { listOf } from "../connection/driver.ts";
import type { Tx } from "../transactions/transaction.ts";

/** What is known of the counters of a queue, since the decision of that name. */
interface Known {
  since: string | null;
  remembered: Remembered;
}

/**
 * Whether somebody else has decided about the limits of a queue since this handle last did. If not, its counters are as
 * they were left then, and nothing has to be read again. Each decision has a name of its own, so one that was undone is
 * never taken for another.
 */
export class Decisions {
  readonly #sql: Record<"last" | "made", string>;
  readonly #handle = randomUUID();
  readonly #queues = new Map<string, Known>();
  #made = 0;

  constructor(s: string) {
    this.#sql = {
      last: `select queue, last from ${s}.decisions where queue = any($1::text[])`,
      made: `
        insert into ${s}.decisions (queue, last) select queue, $2 from unnest($1::text[]) as queue
        on conflict (queue) do update set last = excluded.last`,
    };
  }

  /** Behind the lock of these queues: what others have changed is forgotten. */
  async read(tx: Tx, queues: readonly string[]): Promise<void> {
    const last = new Map(await tx.rows<[string, string]>(this.#sql.last, listOf(queues)));
    for (const queue of queues) {
      const known = this.#queues.get(queue);
      if (known === undefined) continue;
      const isOurs = known.since !== null && known.since === last.get(queue);
      if (!isOurs) this.#forget(queue);
      known.remembered.isShared = !isOurs;
    }
  }

  /** Under the lock of its queue. */
  remembered(queue: string): Remembered {
    let known = this.#queues.get(queue);
    if (known === undefined) this.#queues.set(queue, (known = { since: null, remembered: new Remembered() }));
    return known.remembered;
  }

  /** One was made about these queues, and all that it changes is stored. */
  made(tx: Tx, queues: readonly string[]): Promise<unknown> {
    const since = `${this.#handle} ${++this.#made}`;
    for (const queue of queues) {
      const known = this.#queues.get(queue);
      if (known !== undefined) known.since = since;
      tx.onUndo(() => this.#forget(queue));
    }
    return tx.rows(this.#sql.made, listOf(queues), since);
  }

  /** Counters of this queue are changed otherwise, under its lock. */
  changed(tx: Tx, queue: string): Promise<unknown> {
    this.#forget(queue);
    return this.made(tx, [queue]);
  }

  /** Nothing of what is known is sure. */
  forget(): void {
    this.#queues.clear();
  }

  #forget(queue: string): void {
    const known = this.#queues.get(queue);
    if (known === undefined) return;
    known.since = null;
    known.remembered.forget();
  }
}
