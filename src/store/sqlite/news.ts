import type { Change } from "../store.ts";
import { CommitSignal } from "./commit-signal.ts";
import type { Connection } from "./driver.ts";
import { Watch } from "./watch.ts";

/** Who wants to hear of commits, this handle's own and, by watching the file, those of others. */
export class News {
  readonly #db: Connection;
  readonly #path: string;
  readonly #listeners = new Set<{ call: (change: Change) => void; ownOnly: boolean }>();
  readonly #expectant = new Set<() => void>();
  readonly #signal: CommitSignal | null;
  #watch: Watch | null = null;
  #closed = false;

  constructor(db: Connection, path: string) {
    this.#db = db;
    this.#path = path;
    this.#signal = path === ":memory:" ? null : new CommitSignal(path);
  }

  onChange(call: (change: Change) => void, ownOnly: boolean): () => void {
    const listener = { call, ownOnly };
    this.#listeners.add(listener);
    this.#watchIfNeeded();
    return () => {
      this.#listeners.delete(listener);
      this.#watchIfNeeded();
    };
  }

  onIncoming(call: () => void): () => void {
    this.#expectant.add(call);
    return () => this.#expectant.delete(call);
  }

  /** This handle has committed. Other processes hear of it first: they need longer to react. */
  committed(ready: ReadonlySet<string>, ended: Change["ended"]): void {
    this.#signal?.send();
    this.#tell({ own: true, ready, ended });
  }

  #tell(change: Change): void {
    for (const { call, ownOnly } of this.#listeners) if (change.own || !ownOnly) call(change);
  }

  /** Jobs were handed in, and are not committed yet. */
  announce(): void {
    for (const call of this.#expectant) call();
  }

  close(): void {
    this.#closed = true;
    this.#signal?.close();
    this.#watchIfNeeded();
  }

  /** Every commit touches the watched file, so nobody is to watch it who does not need to. */
  #watchIfNeeded(): void {
    const needed = !this.#closed && this.#path !== ":memory:" && [...this.#listeners].some(({ ownOnly }) => !ownOnly);
    if (needed) this.#watch ??= new Watch(this.#db, this.#path, () => this.#tell({ own: false, ready: null, ended: [] }));
    else {
      this.#watch?.close();
      this.#watch = null;
    }
  }
}
