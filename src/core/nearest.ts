/** The few texts that are most like one that nobody knows: what was meant, if that was a slip. */
export class Nearest {
  readonly #text: string;
  readonly #folded: string;
  readonly #most: number;
  /** The nearest first. */
  #best: { text: string; distance: number }[] = [];

  constructor(text: string, most = 3) {
    this.#text = text;
    this.#folded = text.toLowerCase();
    this.#most = most;
  }

  get found(): string[] {
    return this.#best.map(({ text }) => text);
  }

  look(text: string): void {
    const worst = this.#best.length < this.#most ? Number.POSITIVE_INFINITY : (this.#best.at(-1)?.distance as number);
    const distance = this.#distance(text, Math.min(worst - 1, Math.max(2, Math.floor(this.#text.length / 3))));
    if (distance === null || distance >= worst) return;
    this.#best.push({ text, distance });
    this.#best.sort((a, b) => a.distance - b.distance);
    this.#best.splice(this.#most);
  }

  /** Null: they are not alike. */
  #distance(text: string, limit: number): number | null {
    const folded = text.toLowerCase();
    if (folded === this.#folded) return 0;
    // The same name in another folder, or without its folder.
    if (folded.endsWith(`/${this.#folded}`) || this.#folded.endsWith(`/${folded}`)) return 0.5;
    return edits(this.#folded, folded, limit);
  }
}

/** How many letters have to be put in, taken out or changed to make one of the other; null: more than `limit`. */
function edits(one: string, other: string, limit: number): number | null {
  if (limit < 1 || Math.abs(one.length - other.length) > limit) return null;
  // Most names in a folder begin alike, and end alike.
  let [from, end, otherEnd] = [0, one.length, other.length];
  while (from < end && from < otherEnd && one[from] === other[from]) from++;
  while (end > from && otherEnd > from && one[end - 1] === other[otherEnd - 1]) [end, otherEnd] = [end - 1, otherEnd - 1];
  const [a, b] = [one.slice(from, end), other.slice(from, otherEnd)];
  let above = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const changed = (above[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1);
      row.push(Math.min(changed, (above[j] as number) + 1, (row[j - 1] as number) + 1));
    }
    if (Math.min(...row) > limit) return null;
    above = row;
  }
  const distance = above[b.length] as number;
  return distance <= limit ? distance : null;
}
