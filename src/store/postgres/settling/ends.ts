import type { Writer } from "../connection/writer.ts";
import { cut, type Lone } from "../transactions/calls.ts";
import { Group, type GroupOptions } from "../transactions/group.ts";
import type { Tx } from "../transactions/transaction.ts";

/** Fewer do not keep a claim waiting long enough to be worth a commit of their own. */
const MANY = 128;
/** So long it keeps its connection when nothing comes, and goes without one that it could not have, in milliseconds. */
const LINGER = 10_000;

/**
 * A second connection that writes, for the ends of many quick jobs: while claims are under way on the first one, the server
 * can work at both. Neither has to do with the other: what is claimed was pending, and what ends was running. Made when it
 * is needed, which is while a worker runs through a backlog.
 */
export class Ends {
  readonly #writer: Writer;
  readonly #group: Group;
  #leaving: NodeJS.Timeout | null = null;
  #opening: Promise<boolean> | null = null;
  #refusedAt = Number.NEGATIVE_INFINITY;
  #closed = false;

  constructor(writer: Writer, options: GroupOptions) {
    this.#writer = writer;
    this.#group = new Group(writer, options);
  }

  /** Whether so many are worth it; `first`: where they would go otherwise, as they do where there is no other connection. */
  takes(ends: number, first: Group): boolean | Promise<boolean> {
    if (ends < MANY || !first.isFree || this.#closed || performance.now() < this.#refusedAt + LINGER) return false;
    // What is under way there makes its connection itself.
    if (this.#writer.current !== null || !this.#group.isIdle) return true;
    this.#opening ??= this.#opens().finally(() => (this.#opening = null));
    return this.#opening;
  }

  async #opens(): Promise<boolean> {
    try {
      await this.#writer.session();
      return true;
    } catch {
      // Others have them all, or the server is gone: that is for the first connection to say.
      this.#refusedAt = performance.now();
      return false;
    }
  }

  submit<Input, T>(
    ends: readonly Input[],
    run: (tx: Tx, ends: readonly Input[]) => Promise<T[]>,
    { lone, owed }: { lone: Lone<readonly Input[], T[]>; owed: boolean },
  ): Promise<T[]> {
    this.#leaving ??= setTimeout(() => void this.#leave(), LINGER).unref();
    this.#leaving.refresh();
    const all = async (tx: Tx, batches: (readonly Input[])[]) => cut(await run(tx, batches.flat()), batches);
    return this.#group.submitQuick("settle", ends, all, { rows: ends.length, lone, owed });
  }

  async close(): Promise<void> {
    this.#closed = true;
    // Whoever waits for it hands in his ends first.
    await this.#opening;
    if (this.#leaving !== null) clearTimeout(this.#leaving);
    await this.#group.close();
    await this.#writer.close();
  }

  async #leave(): Promise<void> {
    if (this.#group.isIdle) await this.#writer.close().catch(() => {});
    else this.#leaving?.refresh();
  }
}
