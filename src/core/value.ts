import { type ValueHash, valueHash } from "./context-hash.ts";

/** A value that goes from stage to stage, as it is kept: in the row, or, where it is large or bytes, in an artifact. */
export interface KeptValue {
  hash: ValueHash;
  /** JSON, where it is in the row. */
  text: string | null;
  /** The artifact's sha-256, where it is in one. */
  artifact: string | null;
  size: number;
}

export const NO_VALUE: KeptValue = { hash: "none", text: null, artifact: null, size: 0 };

/** JSON up to here is kept in the row; what is larger goes to an artifact. In UTF-16 units. */
export const INLINE = 16_384;

/** A small JSON value. */
export function inlineValue(text: string): KeptValue {
  return { hash: valueHash(text), text, artifact: null, size: Buffer.byteLength(text) };
}
