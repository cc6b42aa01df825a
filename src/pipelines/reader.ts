import { HoldfastError } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import type { KeptValue } from "../core/pipelines/context-hash.ts";
import type { Values } from "./values.ts";
import type { StoredResult, WorkStore } from "../store/work.ts";
import type { OutputRef, Reader } from "./live-targets.ts";

/** Read in one statement. */
const TOGETHER = 200;

/** Reads the outputs that trails lead to. */
export class ResultReader implements Reader {
  readonly #values: Values;
  readonly #results: Batcher<ResultKey, StoredResult | null>;

  constructor(store: WorkStore, values: Values) {
    this.#values = values;
    this.#results = new Batcher(TOGETHER, async (keys) => {
      const byKey = new Map((await store.results({ keys: [...new Set(keys)] })).map((result) => [result.key, result]));
      return keys.map((key) => byKey.get(key) ?? null);
    });
  }

  value(value: KeptValue): Promise<unknown> {
    return this.#values.load(value);
  }

  async output({ result: key, output }: OutputRef): Promise<unknown> {
    const recent = this.#values.recent(output);
    if (recent !== undefined) return JSON.parse(recent);
    if (key === null) throw new Error("the output of an attempt is read before it is written");
    const result = await this.#results.get(key);
    if (result !== null) return this.#values.load(result.output);
    throw new HoldfastError(
      "RESULT_MISSING",
      `The result ${key} of an earlier stage is not in the database any more.`,
      "Start a new build: what is missing is made again.",
    );
  }
}

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
