import type { Operation } from "../../points.ts";
import type { Rows } from "../driver.ts";
import type { Tx } from "../transaction.ts";

/** How an area of the store reads and writes: each write is one atomic unit, which may share its commit with others. */
export interface Access {
  /** The injected clock's time for what is read; null where the database's own clock counts. */
  at(): number | null;
  readonly read: Rows;
  /** `wants`: queues whose limits it will decide about, as far as that is known before. */
  write<T>(operation: Operation, run: (tx: Tx) => Promise<T>, wants?: () => readonly string[]): Promise<T>;
}
