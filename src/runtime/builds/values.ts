import type { Artifacts } from "../../artifacts/artifacts.ts";
import { valueHash } from "../../core/context-hash.ts";
import { damagedRow } from "../../core/errors.ts";
import { toJson } from "../../core/json.ts";
import { sayPath } from "../../core/target-id.ts";
import { INLINE, inlineValue, type KeptValue, NO_VALUE } from "../../core/value.ts";
import { isChildList } from "./child-list.ts";

/** Values that go from stage to stage: small JSON in rows, bytes and what is large in artifacts, by themselves. */
export class Values {
  readonly #artifacts: () => Promise<Artifacts>;

  constructor(artifacts: () => Promise<Artifacts>) {
    this.#artifacts = artifacts;
  }

  /** A handler's output, durable where it is in an artifact. `what` names it in errors. */
  async keep(value: unknown, what: string): Promise<KeptValue> {
    if (value instanceof Uint8Array) return this.#store(value);
    const text = toJson(value, what);
    return text === null ? NO_VALUE : this.keepText(text);
  }

  /** JSON text. */
  async keepText(text: string): Promise<KeptValue> {
    return text.length <= INLINE ? inlineValue(text) : this.#store(text);
  }

  /** What an expand has yielded is no value of its own. */
  async load(value: KeptValue): Promise<unknown> {
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

  async #store(data: string | Uint8Array): Promise<KeptValue> {
    const { hash: artifact, size } = await (await this.#artifacts()).put(data);
    return { hash: valueHash(data), text: null, artifact, size };
  }
}

/** What names a stage's output in errors. */
export function outputOf(stage: string, path: string): string {
  return `For target ${JSON.stringify(sayPath(path))} the output of stage "${stage}"`;
}
