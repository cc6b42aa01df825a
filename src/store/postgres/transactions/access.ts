import type { Operation } from "../../points.ts";
import type { Foreseen } from "./calls.ts";
import type { Rows } from "../connection/driver.ts";
import type { Tx } from "./transaction.ts";

/** How an area of the store reads and writes: each write is one atomic unit, which may share its commit with others. */
export interface Access {
  /** The injected clock's time for what is read; null where the database's own clock counts. */
  at(): number | null;
  readonly read: Rows;
  write<T>(operation: Operation, run: (tx: Tx) => Promise<T>, foreseen?: Pick<Foreseen<T>, "wants" | "row">): Promise<T>;
  /** Reads in its turn among the writes, also where these are refused. */
  readInTurn<T>(operation: Operation, run: (tx: Tx) => Promise<T>): Promise<T>;
}
