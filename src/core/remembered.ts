import type { Fetched } from "./facts.ts";
import { type Counter, type Heads, headsOf, type Share, type Stored } from "./share.ts";
import type { Changes } from "./turnstile.ts";

/** Beyond this many counters, what is known of them is forgotten. */
const MOST = 20_000;

/** What one lane has of a counter; null: none of what is parked there is known. */
export interface KnownShare {
  share: Stored;
  heads: Heads | null;
}

/**
 * What was known of counters when changes were last stored, for whoever decides about them next: right for as long as
 * nobody else has changed anything. Facts that are asked for once are not in it.
 */
export class Remembered {
  /** Somebody else decides about them, too: what is known now will not be for long. */
  isShared = false;
  readonly #counters = new Map<string, readonly KnownShare[]>();

  /** Undefined: nothing is known of it. */
  counter(rule: number, key: string): readonly KnownShare[] | undefined {
    return this.#counters.get(`${rule}:${key}`);
  }

  /** As a turnstile has left them, with these changes, which were all stored; `facts`: what it knew before. */
  keep(counters: Iterable<Counter>, changes: Changes, facts: Fetched): void {
    if (this.#counters.size > MOST) this.#counters.clear();
    const moved = new Set([...changes.parked, ...changes.unparked].map(({ share }) => share));
    for (const counter of counters) this.#keep(counter, moved, facts);
  }

  forget(): void {
    this.#counters.clear();
  }

  #keep({ rule, key, shares }: Counter, moved: ReadonlySet<Share>, facts: Fetched): void {
    const known: KnownShare[] = [];
    for (const share of shares) {
      const { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt } = share;
      // Only the store knows what it is called.
      if (id === null) return void this.#counters.delete(`${rule}:${key}`);
      // Those that it did not need to look at are as they were, if none came or went.
      const heads = headsOf(share) ?? (moved.has(share) ? null : facts.heads(id));
      known.push({ share: { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt }, heads });
    }
    this.#counters.set(`${rule}:${key}`, known);
  }
}
