import type { ResultKey } from "../../core/ids.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { KeptValue } from "../../core/value.ts";
import type { StoredResult, WorkStore } from "../../store/work.ts";
import { Batcher } from "./batcher.ts";
import type { Reader } from "./travel.ts";
import type { Values } from "./values.ts";

/** Read in one statement. */
const TOGETHER = 200;

/** Reads the outputs that trails lead to. */
export class ResultReader implements Reader {
  readonly #values: Values;
  readonly #results: Batcher<ResultKey, StoredResult | null>;

  constructor(store: WorkStore, values: Values) {
    this.#values = values;
    this.#results = new Batcher(TOGETHER, async (keys) => {
      const byKey = new Map((await store.results([...new Set(keys)])).map((result) => [result.key, result]));
      return keys.map((key) => byKey.get(key) ?? null);
    });
  }

  value(value: KeptValue): Promise<unknown> {
    return this.#values.load(value);
  }

  async output(key: ResultKey | null): Promise<unknown> {
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
