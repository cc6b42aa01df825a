import { hash } from "node:crypto";

/**
 * The hash of a value that goes from stage to stage: `json:` and `bytes:` with a sha-256, so that a text is never taken for
 * the bytes that spell it; `none` for `undefined`; `members:` for all that a gather reads, or an
 * expand yields; `item:` for an item of a source, with the hash of its version, or of what is in it however it is written.
 */
export type ValueHash = `${"json" | "bytes" | "members" | "item"}:${string}` | "none";

/** Of a value as it is stored: JSON text, bytes, or null for `undefined`. It is that of the artifact, if it is kept in one. */
export function valueHash(stored: string | Uint8Array | null): ValueHash {
  if (stored === null) return "none";
  return `${typeof stored === "string" ? "json" : "bytes"}:${hash("sha256", stored)}`;
}

/** Everything that a stage's result depends on, and nothing else. */
export interface ContextParts {
  stage: string;
  version: number;
  /** Canonical text; null: no key. */
  key: string | null;
  input: ValueHash;
  /** By stage; null: that stage let the target pass, so there is no output of it. */
  uses: Readonly<Record<string, ValueHash | null>>;
  target: { id: string; hash: string };
  /** `"bytes"`: the target's id is no part of it, so a renamed or copied file is free. */
  reuse: "target" | "bytes";
}

/**
 * The content key of a checkpoint. Each part is an element of one JSON array, so that no two sets of parts spell the same
 * text, and the first one says what is hashed, so that it is the hash of nothing else.
 */
export function contextHash({ stage, version, key, input, uses, target, reuse }: ContextParts): string {
  const used = Object.keys(uses)
    .sort()
    .map((name) => [name, uses[name]]);
  const id = reuse === "bytes" ? null : target.id;
  return hash("sha256", JSON.stringify(["holdfast.context.1", stage, version, key, input, used, id, target.hash]));
}
