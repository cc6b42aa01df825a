import type { Operation } from "../../points.ts";
import type { LeaseState, Settlement } from "../../store.ts";
import type { Writer } from "../connection/connections.ts";
import { GroupCommit, type GroupCommitOptions } from "../transactions/group-commit.ts";
import type { Tx } from "../transactions/transaction.ts";
import { type CallHints, splitAnswers } from "../transactions/write-queue.ts";
import { MoreFollows, type Settle } from "./settle.ts";

/** Fewer settlements do not delay a claim long enough to be worth a commit of their own. */
const MIN_SETTLEMENTS = 128;
/** How long the second connection stays open without use, and how long after a failed connect the next one is tried. */
const SECOND_IDLE_MS = 10_000;

interface Parts {
  settle: Settle;
  first: GroupCommit;
  writer: Writer;
  /** Writes over the first connection; rejects where the store is read-only. */
  write<T>(operation: Operation, run: (tx: Tx) => Promise<T>, hints: CallHints<T>): Promise<T>;
}

/**
 * Chooses the connection for settlements. A worker that drains a backlog settles over a second connection while the first one
 * claims: a drain is a third faster. A settle and a claim never touch the same job.
 */
export class SettleQueue {
  readonly #parts: Parts;
  readonly #second: GroupCommit;
  readonly #underWay = new Set<Promise<LeaseState[]>>();
  #idleTimer: NodeJS.Timeout | null = null;
  #opening: Promise<void> | null = null;
  #refusedAt = Number.NEGATIVE_INFINITY;
  #closed = false;

  constructor(parts: Parts, options: GroupCommitOptions) {
    this.#parts = parts;
    this.#second = new GroupCommit(parts.writer, options);
  }

  async run(settlements: readonly Settlement[]): Promise<LeaseState[]> {
    const { settle, first } = this.#parts;
    if (!settle.isPlain(settlements)) return this.#write(settlements);
    const rows = settlements.length;
    if (this.#usesSecond(rows)) return this.#settleOverSecond(settlements);
    const run = async (tx: Tx, batches: (readonly Settlement[])[]) => splitAnswers(await settle.run(tx, batches.flat()), batches);
    return first.submitQuick("settle", settlements, run, { rows, single: settle.single });
  }

  async #settleOverSecond(settlements: readonly Settlement[]): Promise<LeaseState[]> {
    const { settle } = this.#parts;
    this.#idleTimer ??= setTimeout(() => void this.#closeIdle(), SECOND_IDLE_MS).unref();
    this.#idleTimer.refresh();
    const run = async (tx: Tx, batches: (readonly Settlement[])[]) =>
      splitAnswers(await settle.plain(tx, batches.flat()), batches);
    const settled = this.#second
      .submitQuick("settle", settlements, run, { rows: settlements.length, single: settle.single })
      .catch((error: unknown) => {
        if (error instanceof MoreFollows) return this.#write(settlements, { owed: true });
        throw error;
      });
    this.#underWay.add(settled);
    try {
      return await settled;
    } finally {
      this.#underWay.delete(settled);
    }
  }

  #write(settlements: readonly Settlement[], { owed = false } = {}): Promise<LeaseState[]> {
    const { settle, write } = this.#parts;
    return write("settle", (tx) => settle.run(tx, settlements), { wants: () => settle.wants(settlements), owed });
  }

  #usesSecond(settlements: number): boolean {
    const { first, writer } = this.#parts;
    if (settlements < MIN_SETTLEMENTS || !first.onlyClaimsAndSettles || this.#closed) return false;
    if (writer.current !== null) return true;
    if (performance.now() >= this.#refusedAt + SECOND_IDLE_MS)
      this.#opening ??= this.#open().finally(() => (this.#opening = null));
    return false;
  }

  async #open(): Promise<void> {
    try {
      await this.#parts.writer.session();
    } catch {
      // All connections are in use, or the server is down: the first connection reports errors.
      this.#refusedAt = performance.now();
    }
  }

  async close(): Promise<void> {
    this.#closed = true;
    if (this.#idleTimer !== null) clearTimeout(this.#idleTimer);
    await Promise.all([this.#opening, this.#second.close()]);
    await Promise.allSettled(this.#underWay);
    await this.#parts.writer.close();
  }

  async #closeIdle(): Promise<void> {
    if (this.#second.isIdle) await this.#parts.writer.close().catch(() => {});
    else this.#idleTimer?.refresh();
  }
}
