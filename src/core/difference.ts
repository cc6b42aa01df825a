import { step } from "./json.ts";

/** What differs between two JSON values; `undefined` where one of them has nothing there. */
export interface Difference {
  part: string;
  before: unknown;
  after: unknown;
}

/** Every innermost part that differs, by its path from `part` on: `key.prompt`, `key.models[1]`. */
export function difference(before: unknown, after: unknown, part: string): Difference[] {
  if (Array.isArray(before) && Array.isArray(after)) {
    const longer = before.length > after.length ? before : after;
    return longer.flatMap((_, i) => difference(before[i], after[i], `${part}[${i}]`));
  }
  if (isRecord(before) && isRecord(after)) {
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
    return names.flatMap((name) => difference(own(before, name), own(after, name), `${part}${step(name)}`));
  }
  return Object.is(before, after) ? [] : [{ part, before, after }];
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function own(object: Record<string, unknown>, name: string): unknown {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}
