import { createHash, hash } from "node:crypto";
import type { ValueHash } from "./context-hash.ts";

/**
 * All that a gather can see of one member: its target, its output, and the earlier outputs by name. Those are in it too:
 * a stage that comes out the same from other inputs would else hide from the gather that they are others.
 */
export function memberHash(member: {
  target: string;
  output: ValueHash;
  outputs: Readonly<Record<string, ValueHash | null>>;
}): string {
  const outputs = Object.keys(member.outputs)
    .sort()
    .map((name) => [name, member.outputs[name]]);
  return hash("sha256", JSON.stringify(["holdfast.member.1", member.target, member.output, outputs]));
}

/** The input of a gather: its members in the order of their ids, one after the other, however many there are. */
export class MembersHash {
  readonly #hash = createHash("sha256").update("holdfast.members.1\n");
  #last: Buffer | null = null;

  /** In the order of the ids' UTF-8 bytes, which is that of both databases. */
  add(id: string, member: string): void {
    const bytes = Buffer.from(id);
    if (this.#last !== null && Buffer.compare(this.#last, bytes) >= 0) {
      throw new Error(`member ${JSON.stringify(id)} came after ${JSON.stringify(this.#last.toString())}`);
    }
    this.#last = bytes;
    // JSON has no line break inside, so each member is a line.
    this.#hash.update(`${JSON.stringify([id, member])}\n`);
  }

  /** `failed`: how many are missing, which a gather with `partial` is told. */
  end(failed: number): ValueHash {
    return `members:${this.#hash.update(String(failed)).digest("hex")}`;
  }
}
