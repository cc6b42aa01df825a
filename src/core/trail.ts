import type { ValueHash } from "./context-hash.ts";
import type { ResultKey } from "./ids.ts";

/** One stage that a target has gone through in its segment. What let it pass by is not in its trail. */
export interface Step {
  stage: string;
  /** Where the output is. Null: it is written in the same commit. */
  result: ResultKey | null;
  /** Of an expand: `childrenOf` what they were made from, or `none` as soon as others are being made. */
  output: ValueHash;
  /** The target was gone: what the stage has done outside is removed, or is being removed. */
  undone?: true;
}

/** What stands in a trail for the children that an expand has made in this context. They are there once, whatever was before. */
export function childrenOf(context: string): ValueHash {
  return `members:${context}`;
}

/** The stages that a target has gone through, in their order; those of its parent come first. */
export type Trail = readonly Step[];

export function stepOf(trail: Trail, stage: string): Step | undefined {
  return trail.find((step) => step.stage === stage);
}

/** As it is stored. */
export function trailText(trail: Trail): string {
  return JSON.stringify(trail.map(({ stage, result, output, undone }) => [stage, result, output, ...(undone ? [1] : [])]));
}

export function parseTrail(text: string): Trail {
  const steps = JSON.parse(text) as [string, ResultKey | null, ValueHash, 1?][];
  return steps.map(([stage, result, output, undone]) =>
    undone === undefined ? { stage, result, output } : { stage, result, output, undone: true },
  );
}

/** With the key of what was written in the same commit. */
export function completeTrail(trail: Trail, result: ResultKey): Trail {
  return trail.map((step) => (step.result === null ? { ...step, result } : step));
}
