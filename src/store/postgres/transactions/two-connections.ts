import type { Operation } from "../../points.ts";
import type { Claimed, ClaimRequest, LeaseState, Settlement } from "../../store.ts";
import type { Claim } from "../claims/claim.ts";
import type { Writer } from "../connection/session.ts";
import type { Settle } from "../settle/settle.ts";
import { GroupCommit, type GroupCommitOptions } from "./group-commit.ts";
import type { Tx } from "./transaction.ts";
import { type CallHints, NotSingle, splitAnswers } from "./write-queue.ts";

/** Fewer settlements do not delay a claim long enough to be worth a commit of their own. */
const MIN_SETTLEMENTS = 128;
/** How long the second connection stays open without use, and how long after a failed connect the next one is tried. */
const SECOND_IDLE_MS = 10_000;

interface Parts {
  claim: Claim;
  settle: Settle;
  first: GroupCommit;
  writer: Writer;
  write<T>(operation: Operation, run: (tx: Tx) => Promise<T>, hints: CallHints<T>): Promise<T>;
}

// Claims and settles over two connections, which never share a job. The second settles backlogs of plain jobs while the first
// claims: a drain is a third faster. The second claims while the first settles work of pipelines, so that handlers run meanwhile.
export class TwoConnections {
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

  async claim(request: ClaimRequest): Promise<Claimed[]> {
    const { claim, first } = this.#parts;
    const quick = claim.isQuick(request);
    const how = { single: claim.route, quick };
    // Behind a pooler, a claim is a transaction of several steps.
    if (quick && !this.#parts.writer.pooled && first.claimsAndSettles === "long" && this.#isOpen()) {
      try {
        // A transaction of several steps could wait for what the first connection has locked.
        return await this.#second.submitJoined("claim", request, () => Promise.reject(new NotSingle()), how);
      } catch (error) {
        if (!(error instanceof NotSingle)) throw error;
      }
    }
    return first.submitJoined("claim", request, (tx, requests: ClaimRequest[]) => claim.runEach(tx, requests), how);
  }

  async settle(settlements: readonly Settlement[]): Promise<LeaseState[]> {
    const { settle, first } = this.#parts;
    const rows = settlements.length;
    const quick = settle.isPlain(settlements);
    if (quick && this.#usesSecond(rows)) return this.#settleOverSecond(settlements);
    const run = async (tx: Tx, batches: (readonly Settlement[])[]) => splitAnswers(await settle.run(tx, batches.flat()), batches);
    return first.submitJoined("settle", settlements, run, { rows, quick, single: quick ? settle.single : null });
  }

  async #settleOverSecond(settlements: readonly Settlement[]): Promise<LeaseState[]> {
    const { settle } = this.#parts;
    const run = async (tx: Tx, batches: (readonly Settlement[])[]) =>
      splitAnswers(await settle.plain(tx, batches.flat()), batches);
    const settled = this.#second
      .submitJoined("settle", settlements, run, { rows: settlements.length, single: settle.single })
      .catch((error: unknown) => {
        if (!(error instanceof NotSingle)) throw error;
        return this.#parts.write("settle", (tx) => settle.run(tx, settlements), { owed: true });
      });
    this.#underWay.add(settled);
    try {
      return await settled;
    } finally {
      this.#underWay.delete(settled);
    }
  }

  #usesSecond(settlements: number): boolean {
    return settlements >= MIN_SETTLEMENTS && this.#parts.first.claimsAndSettles === "quick" && this.#isOpen();
  }

  /** Opens the second connection for later calls if it is closed, and keeps it open for a while. */
  #isOpen(): boolean {
    if (this.#closed) return false;
    this.#idleTimer ??= setTimeout(() => void this.#closeIdle(), SECOND_IDLE_MS).unref();
    this.#idleTimer.refresh();
    if (this.#parts.writer.current !== null) return true;
    if (performance.now() >= this.#refusedAt + SECOND_IDLE_MS)
      this.#opening ??= this.#open().finally(() => (this.#opening = null));
    return false;
  }

  async #open(): Promise<void> {
    try {
      await this.#parts.writer.session();
    } catch {
      // All connections are in use, or the server is down. The first connection reports errors.
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
