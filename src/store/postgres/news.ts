import type { Change } from "../store.ts";

/** Who wants to know what was committed, and what is about to be. */
export class News {
  readonly #listeners = new Set<(change: Change) => void>();
  readonly #incoming = new Set<() => void>();

  onChange(call: (change: Change) => void, _ownOnly: boolean): () => void {
    const listener = (change: Change) => call(change);
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  onIncoming(call: () => void): () => void {
    const listener = () => call();
    this.#incoming.add(listener);
    return () => this.#incoming.delete(listener);
  }

  tell(change: Change): void {
    for (const listener of this.#listeners) listener(change);
  }

  announce(): void {
    for (const listener of this.#incoming) listener();
  }

  close(): void {
    this.#listeners.clear();
    this.#incoming.clear();
  }
}
