import type { ValueHash } from "./context-hash.ts";
import type { Difference } from "./difference.ts";
import { compareIds } from "./id-order.ts";
import { sayPath } from "./target-id.ts";

/** What a gather was made of, as far as it takes to say later what has changed: short hashes, by the members' paths. */
export interface Members {
  /** How many were missing, which a gather with `partial` is told. */
  failed: number;
  members: Member[];
}

/** `output`: what the gather gets of it. `all`: that, and its earlier outputs. */
export type Member = readonly [path: string, output: string, all: string];

/** Enough of a hash to see that it is another. */
const TELLING = 12;

export function toMember(path: string, output: ValueHash, all: string): Member {
  const [kind = "", hash] = output.split(":");
  return [path, hash === undefined ? kind : `${kind}:${hash.slice(0, TELLING)}`, all.slice(0, TELLING)];
}

/** Which members came, went, or are others, in the order of their paths. */
export function changedMembers(before: Members, after: Members): Difference[] {
  const changes: (Difference & { path: string })[] = [];
  const were = new Map(before.members.map((member) => [member[0], member]));
  for (const [path, output, all] of after.members) {
    const was = were.get(path);
    were.delete(path);
    const part = `members[${JSON.stringify(sayPath(path))}]`;
    if (was === undefined) changes.push({ path, part, before: undefined, after: output });
    else if (was[1] !== output) changes.push({ path, part, before: was[1], after: output });
    else if (was[2] !== all) changes.push({ path, part: `${part}.outputs`, before: was[2], after: all });
  }
  for (const [path, output] of were.values())
    changes.push({ path, part: `members[${JSON.stringify(sayPath(path))}]`, before: output, after: undefined });
  changes.sort((a, b) => compareIds(a.path, b.path));
  const failed = before.failed === after.failed ? [] : [{ part: "members.failed", before: before.failed, after: after.failed }];
  return [...changes.map(({ part, before: was, after: is }) => ({ part, before: was, after: is })), ...failed];
}
