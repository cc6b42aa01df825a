import { PartlySettled } from "../../partly-settled.ts";
import type { Operation } from "../../points.ts";
import type { Fate, Settlement } from "../../store.ts";
import type { Writer } from "../connection/connections.ts";
import { Group, type GroupOptions } from "../transactions/group-commit.ts";
import type { Tx } from "../transactions/transaction.ts";
import { cut, type Foreseen, type Lone } from "../transactions/write-queue.ts";
import type { Settle } from "./settle.ts";

type LoneEnds = Lone<readonly Settlement[], (Fate | null)[]>;

interface Parts {
  group: Group;
  ends: Ends;
  settle: Settle;
  /** Refuses where nothing may be written any more. */
  write<T>(operation: Operation, run: (tx: Tx) => Promise<T>, foreseen: Foreseen<T>): Promise<T>;
}

/** The way that ends of attempts take: with all that is written, over the other connection, or the longer way. */
export class Settling {
  readonly #parts: Parts;
  readonly #together: LoneEnds;
  readonly #apart: LoneEnds;
  /** Ends that may be two transactions. */
  readonly #underWay = new Set<Promise<Fate[]>>();

  constructor(parts: Parts) {
    this.#parts = parts;
    this.#together = parts.settle.lone(false);
    this.#apart = parts.settle.lone(true);
  }

  async run(settlements: readonly Settlement[]): Promise<Fate[]> {
    if (!this.#parts.settle.isQuick(settlements)) return this.#slowly(settlements);
    const settled = this.#quickly(settlements);
    this.#underWay.add(settled);
    try {
      return await settled;
    } finally {
      this.#underWay.delete(settled);
    }
  }

  /** Resolves when none is under way any more. */
  async rest(): Promise<void> {
    await Promise.allSettled(this.#underWay);
  }

  /** What that leaves over goes the longer way. */
  async #quickly(settlements: readonly Settlement[]): Promise<Fate[]> {
    const { group, ends, settle } = this.#parts;
    const takes = ends.takes(settlements.length, group);
    // Without a pause where it is known: they leave with what else is handed in now. After one, somebody may have closed.
    const owed = typeof takes !== "boolean";
    const fates = await ((owed ? await takes : takes)
      ? // Those from whose end nothing follows.
        ends.submit(settlements, (tx, some) => settle.quiet(tx, some), { lone: this.#apart, owed })
      : group.submitQuick(
          "settle",
          settlements,
          async (tx, batches) => cut<Fate | null>(await settle.run(tx, batches.flat()), batches),
          { rows: settlements.length, lone: this.#together, owed },
        ));
    const rest = settlements.filter((_, i) => fates[i] === null);
    if (rest.length === 0) return fates as Fate[];
    try {
      const others = await this.#slowly(rest, { owed: true });
      return fates.map((fate) => fate ?? (others.shift() as Fate));
    } catch (error) {
      // Whoever asks again for those that have ended would be told that their leases are gone.
      throw rest.length < settlements.length ? new PartlySettled(fates, error) : error;
    }
  }

  #slowly(settlements: readonly Settlement[], { owed = false } = {}): Promise<Fate[]> {
    const { settle, write } = this.#parts;
    return write("settle", (tx) => settle.run(tx, settlements), { wants: () => settle.wants(settlements), owed });
  }
}

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
