import type { Operation } from "../points.ts";
import type { Tx } from "./group-commit.ts";

/** How an area of the store reads and writes: each write is one atomic unit, which may share its commit with others. */
export interface Access {
  now(): number;
  read<T>(run: () => T): Promise<T>;
  write<T>(operation: Operation, run: (tx: Tx) => T): Promise<T>;
}
