interface Waiting<K, V> {
  key: K;
  resolve: (value: V) => void;
  reject: (error: unknown) => void;
}

/** Makes one call of many: what is asked for in one turn of the event loop is fetched together. */
export class Batcher<K, V> {
  readonly #fetch: (keys: K[]) => Promise<readonly V[]>;
  readonly #most: number;
  #waiting: Waiting<K, V>[] = [];

  constructor(most: number, fetch: (keys: K[]) => Promise<readonly V[]>) {
    this.#most = most;
    this.#fetch = fetch;
  }

  get(key: K): Promise<V> {
    return new Promise((resolve, reject) => {
      if (this.#waiting.push({ key, resolve, reject }) === 1) setImmediate(() => this.#flush());
    });
  }

  #flush(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (let at = 0; at < waiting.length; at += this.#most) void this.#answer(waiting.slice(at, at + this.#most));
  }

  async #answer(batch: readonly Waiting<K, V>[]): Promise<void> {
    try {
      const values = await this.#fetch(batch.map(({ key }) => key));
      for (const [i, { resolve }] of batch.entries()) resolve(values[i] as V);
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  }
}
