import { hash } from "node:crypto";
import { once } from "node:events";
import { PassThrough } from "node:stream";
import type { Artifacts } from "../artifacts/artifacts.ts";
import {
  MAX_INLINE_LENGTH,
  type StoredValue,
  NO_VALUE,
  type ValueHash,
  inlineValue,
  valueHash,
  type Step,
  pathText,
} from "../core/pipelines/work.ts";
import { HoldfastError, damagedRow } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import { toJson } from "../core/text/json.ts";
import type { StoredResult } from "../store/work.ts";
import type { WorkStore } from "../store/store.ts";

/** Bound of all cached values together, in UTF-16 units. */
const MAX_RECENT_CHARS = 1_000_000;
/** What a cached entry takes besides its text: the hash, and its place in the map. */
const ENTRY_CHARS = 200;

/** Values between stages: small JSON is stored in rows; bytes and large JSON are stored as artifacts. */
export class Values {
  readonly #artifacts: () => Promise<Artifacts>;
  /** Recently stored JSON by hash: the same process usually runs the next stage soon. */
  readonly #recent = new Map<ValueHash, string>();
  #recentLength = 0;

  constructor(artifacts: () => Promise<Artifacts>) {
    this.#artifacts = artifacts;
  }

  recent(hash: ValueHash): string | undefined {
    return this.#recent.get(hash);
  }

  async keep(value: unknown, what: string): Promise<StoredValue> {
    if (value instanceof Uint8Array) return this.#store(value);
    const text = toJson(value, what);
    return text === null ? NO_VALUE : this.keepText(text);
  }

  async keepText(text: string): Promise<StoredValue> {
    if (text.length > MAX_INLINE_LENGTH) return this.#store(text);
    const value = inlineValue(text);
    this.#remember(value.hash, text);
    return value;
  }

  /** Loads a value. A list of children is no value. */
  async load(value: StoredValue): Promise<unknown> {
    const { hash, text, artifact } = value;
    if (isChildList(value)) return undefined;
    if (text !== null) {
      if (hash.startsWith("json:") && valueHash(text) !== hash) throw damagedRow("What a stage is to be given");
      return JSON.parse(text);
    }
    if (artifact === null) return undefined;
    const bytes = await (await this.#artifacts()).read(artifact);
    return hash.startsWith("bytes:") ? bytes : JSON.parse(new TextDecoder().decode(bytes));
  }

  #remember(hash: ValueHash, text: string): void {
    if (this.#recent.has(hash)) return;
    this.#recent.set(hash, text);
    this.#recentLength += ENTRY_CHARS + text.length;
    for (const [oldest, { length }] of this.#recent) {
      if (this.#recentLength <= MAX_RECENT_CHARS) return;
      this.#recent.delete(oldest);
      this.#recentLength -= ENTRY_CHARS + length;
    }
  }

  async #store(data: string | Uint8Array): Promise<StoredValue> {
    const { hash: artifact, size } = await (await this.#artifacts()).put(data);
    return { hash: valueHash(data), text: null, artifact, size };
  }
}

export function outputOf(stage: string, path: string): string {
  return `The output of stage "${stage}" for target ${JSON.stringify(pathText(path))}`;
}

export interface Yielded {
  id: string;
  text: string | null;
}

type ListArtifacts = (() => Promise<Artifacts>) | null;

/** Stores the children of an expand as its output, one per line. It streams them, because the list may exceed memory. */
export class ChildListWriter {
  readonly #artifacts: ListArtifacts;
  #text = "";
  #stream: PassThrough | null = null;
  #stored: ReturnType<Artifacts["put"]> | null = null;

  constructor(artifacts: ListArtifacts) {
    this.#artifacts = artifacts;
  }

  async add({ id, text }: Yielded): Promise<void> {
    // JSON escapes tabs and line breaks in ids and values.
    this.#text += `${JSON.stringify(id)}\t${text ?? ""}\n`;
    if (this.#text.length > MAX_INLINE_LENGTH && this.#artifacts !== null) await this.#flush(this.#artifacts);
  }

  async end(): Promise<StoredValue> {
    if (this.#stream === null) {
      const text = this.#text;
      return { hash: listHash(text), text, artifact: null, size: Buffer.byteLength(text) };
    }
    this.#stream.end(this.#text);
    const stored = await (this.#stored as ReturnType<Artifacts["put"]>);
    return { hash: `members:${stored.hash}`, text: null, artifact: stored.hash, size: stored.size };
  }

  drop(): void {
    this.#stream?.destroy(new Error("the expand has not ended well"));
  }

  async #flush(artifacts: () => Promise<Artifacts>): Promise<void> {
    if (this.#stream === null) {
      const stream = (this.#stream = new PassThrough());
      this.#stored = (await artifacts()).put(stream);
      // `end` rethrows the error of the failed write.
      this.#stored.catch((error: unknown) => stream.destroy(error as Error));
    }
    const text = this.#text;
    this.#text = "";
    if (!this.#stream.write(text)) await once(this.#stream, "drain");
  }
}

function listHash(text: string): ValueHash {
  return `members:${hash("sha256", text)}`;
}

export function isChildList({ hash: of }: StoredValue): boolean {
  return of.startsWith("members:");
}

export async function* readChildList(list: StoredValue, artifacts: () => Promise<Artifacts>): AsyncIterable<Yielded> {
  let rest = "";
  for await (const piece of piecesOf(list, artifacts)) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop() as string;
    for (const line of lines) {
      const tab = line.indexOf("\t");
      yield { id: JSON.parse(line.slice(0, tab)) as string, text: line.slice(tab + 1) || null };
    }
  }
}

async function* piecesOf(list: StoredValue, artifacts: () => Promise<Artifacts>): AsyncIterable<string> {
  const { text, artifact } = list;
  if (text !== null && list.hash !== listHash(text)) throw damagedRow("What an expand has yielded");
  if (text !== null) return yield text;
  if (artifact === null) return;
  const decoder = new TextDecoder();
  for await (const bytes of (await artifacts()).stream(artifact)) yield decoder.decode(bytes as Uint8Array, { stream: true });
  yield decoder.decode();
}

const RESULT_BATCH_SIZE = 200;

export interface Reader {
  value(value: StoredValue): Promise<unknown>;
  /** Reads an output. The key is null for a result that is written with this attempt. */
  output(step: OutputRef): Promise<unknown>;
}

export type OutputRef = Pick<Step, "result" | "output">;

export class ResultReader implements Reader {
  readonly #values: Values;
  readonly #results: Batcher<ResultKey, StoredResult | null>;

  constructor(store: WorkStore, values: Values) {
    this.#values = values;
    this.#results = new Batcher(RESULT_BATCH_SIZE, async (keys) => {
      const byKey = new Map((await store.results({ keys: [...new Set(keys)] })).map((result) => [result.key, result]));
      return keys.map((key) => byKey.get(key) ?? null);
    });
  }

  value(value: StoredValue): Promise<unknown> {
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
      `The result ${key} of an earlier stage was removed from the database.`,
      "Start a new build, which makes the missing results again.",
    );
  }
}

interface Waiting<K, V> {
  key: K;
  resolve: (value: V) => void;
  reject: (error: unknown) => void;
}

/** Fetches all keys that were asked for in one turn of the event loop with one call. */
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
      if (this.#waiting.push({ key, resolve, reject }) === 1) process.nextTick(() => this.#flush());
    });
  }

  #flush(): void {
    const waiting = this.#waiting.splice(0);
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
