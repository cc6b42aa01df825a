import { PartlySettled } from "../../partly-settled.ts";
import type { Operation } from "../../points.ts";
import type { Fate, Settlement } from "../../store.ts";
import type { Ends } from "./ends.ts";
import { cut, type Foreseen, type Lone } from "../transactions/calls.ts";
import type { Group } from "../transactions/group.ts";
import type { Tx } from "../transactions/transaction.ts";
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
