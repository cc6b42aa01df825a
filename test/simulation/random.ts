/** A small seeded generator (sfc32): the same seed makes the same choices, on every machine. */
export class Random {
  #a = 0;
  #b = 0;
  #c = 0;
  #counter = 1;

  /** `stream` tells apart generators of one seed, e.g. one for each step of a schedule. */
  constructor(seed: number, stream = 0) {
    this.#a = seed | 0;
    this.#b = Math.imul(stream + 1, 0x9e3779b9);
    this.#c = Math.imul(seed ^ (stream << 16), 0x85ebca6b);
    for (let i = 0; i < 12; i++) this.next();
  }

  /** In [0, 1). */
  next(): number {
    const t = (((this.#a + this.#b) | 0) + this.#counter) | 0;
    this.#counter = (this.#counter + 1) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = (((this.#c << 21) | (this.#c >>> 11)) + t) | 0;
    return (t >>> 0) / 2 ** 32;
  }

  /** A whole number, both ends included. */
  int(from: number, to: number): number {
    return from + Math.floor(this.next() * (to - from + 1));
  }

  chance(probability: number): boolean {
    return this.next() < probability;
  }

  pick<T>(items: readonly T[]): T {
    if (items.length === 0) throw new Error("Nothing to pick from.");
    return items[Math.floor(this.next() * items.length)] as T;
  }

  /** Some of the items, in their order; at least one of a list that has any. */
  some<T>(items: readonly T[]): T[] {
    const some = items.filter(() => this.chance(0.5));
    return some.length > 0 || items.length === 0 ? some : [this.pick(items)];
  }

  weighted<T>(items: readonly { weight: number; value: T }[]): T {
    let left = this.next() * items.reduce((sum, { weight }) => sum + weight, 0);
    for (const { weight, value } of items) if ((left -= weight) < 0) return value;
    return (items.at(-1) as { value: T }).value;
  }
}
