import { contextHash, type ContextParts, type ValueHash } from "../../core/context-hash.ts";
import { stageKey } from "../../core/stage.ts";
import { type Step, stepOf, type Trail } from "../../core/trail.ts";
import type { KeptValue } from "../../core/value.ts";
import type { ResultKey } from "../../core/ids.ts";
import type { Target } from "../../core/source.ts";
import type { Place } from "./model.ts";

/** A target on its way through its segment. */
export interface Traveller {
  /** The segment's index. */
  readonly segment: number;
  readonly path: string;
  readonly id: string;
  readonly parent: string | null;
  /** Of its content. */
  readonly hash: string;
  readonly fingerprint: string | null;
  /** What the first stage gets. */
  readonly value: KeptValue;
  /** What its parent has gone through. */
  readonly inherited: Trail;
  /** What functions of the pipeline are shown of it. */
  readonly target: Target;
}

/** Where values are read. */
export interface Reader {
  value(value: KeptValue): Promise<unknown>;
  /** Null: of what is about to be written with this attempt. */
  output(result: ResultKey | null): Promise<unknown>;
}

/** What a stage gets, and what its result depends on. */
export interface Context {
  hash: string;
  parts: ContextParts;
  input: unknown;
}

/** What the next stage gets: the last output of this segment, or what the target came with. */
export function inputHash({ value, inherited }: Traveller, trail: Trail): ValueHash {
  return lastStep(trail, inherited)?.output ?? value.hash;
}

export async function loadInput(traveller: Traveller, trail: Trail, reader: Reader): Promise<unknown> {
  const step = lastStep(trail, traveller.inherited);
  if (step === undefined) return reader.value(traveller.value);
  return step.output === "none" ? undefined : reader.output(step.result);
}

function contextParts({ stage }: Place, traveller: Traveller, trail: Trail, input: unknown): ContextParts {
  return {
    stage: stage.name,
    version: stage.version,
    key: stageKey(stage, { target: traveller.target, input }),
    input: inputHash(traveller, trail),
    uses: Object.fromEntries(stage.uses.map((name) => [name, stepOf(trail, name)?.output ?? null])),
    target: { id: traveller.path, hash: traveller.hash },
    reuse: stage.reuse,
  };
}

export function contextOf(place: Place, traveller: Traveller, trail: Trail, input: unknown): Context {
  const parts = contextParts(place, traveller, trail, input);
  return { parts, hash: contextHash(parts), input };
}

/** The last step of the segment itself. */
function lastStep(trail: Trail, inherited: Trail): Step | undefined {
  return trail.length > inherited.length ? trail.at(-1) : undefined;
}
