import { hash } from "node:crypto";
import type { StageDefinition } from "./stage.ts";
import type { Trail } from "./trail.ts";

/**
 * The stages that the same targets go through: what lies between the source, the expands and the gathers. An expand is the
 * last of its segment, and makes the targets of the next; a gather is the first of its own, and works on groups.
 */
export interface Segment {
  index: number;
  from: "source" | "expand" | "gather";
  stages: readonly StageDefinition[];
  /** What comes behind it. */
  ends: "expand" | "gather" | "nothing";
  /** The gather that comes behind it. */
  gather: StageDefinition | null;
  /** 0 for what comes of the source, then one more behind each gather. */
  round: number;
}

export function segmentsOf(stages: readonly StageDefinition[]): Segment[] {
  const segments: { from: Segment["from"]; stages: StageDefinition[] }[] = [{ from: "source", stages: [] }];
  for (const stage of stages) {
    if (stage.kind === "gather") segments.push({ from: "gather", stages: [] });
    segments.at(-1)?.stages.push(stage);
    if (stage.kind === "expand") segments.push({ from: "expand", stages: [] });
  }
  let round = 0;
  return segments.map(({ from, stages: own }, index) => {
    if (from === "gather") round++;
    const next = segments[index + 1];
    const ends = next === undefined ? "nothing" : (next.from as "expand" | "gather");
    return { index, from, stages: own, ends, gather: ends === "gather" ? (next?.stages[0] as StageDefinition) : null, round };
  });
}

/** The segment that a gather of this round works on; undefined: there is no such round. */
export function gatherSegment(segments: readonly Segment[], round: number): Segment | undefined {
  return segments.find((segment) => segment.from === "gather" && segment.round === round);
}

/** Stands for that mark where a target is gone, and is kept until what was made of it is removed. */
export const GONE = "gone";

/**
 * Names all that a target's way through its segment depends on, besides its own content: the definitions, and what its
 * parent brought along. Null where that cannot be told without asking a function.
 */
export function doneMark({ stages, gather }: Segment, inherited: Trail): string | null {
  const asks = stages.some(({ key, match }) => typeof key === "function" || typeof match === "function");
  if (asks || (gather !== null && gather.by !== null)) return null;
  const parts = stages.map(({ name, kind, version, key, uses, match, reuse }) => [name, kind, version, key, uses, match, reuse]);
  const before = inherited.map(({ stage, output }) => [stage, output]);
  return hash("sha256", JSON.stringify(["holdfast.done.1", parts, gather?.name ?? null, before]));
}
