import { HoldfastError } from "./errors.ts";

/**
 * Text of a JSON value; anything that JSON would bend (Date, Map, bigint, NaN, class instances, cycles) is refused,
 * because a handler must get what the caller gave. A property whose value is `undefined` is absent, as in JSON;
 * `undefined` itself has no text.
 */
export function toJson(value: unknown, what: string): string | null {
  if (value === undefined) return null;
  const bent = findBent(value);
  if (bent !== null) {
    throw new HoldfastError(
      "NOT_JSON",
      `${what}${bent.path} is ${bent.is}, which JSON cannot carry as it is.`,
      "Give plain objects, arrays, strings, finite numbers, booleans and null; turn the rest into text first.",
    );
  }
  return JSON.stringify(value);
}

export function fromJson(text: string | null): unknown {
  return text === null ? undefined : JSON.parse(text);
}

/** Where a value would not come back from JSON as it was; the path is put together on the way out, so that good values pay nothing for it. */
interface Bent {
  path: string;
  is: string;
}

function findBent(value: unknown): Bent | null {
  try {
    return walk(value, []);
  } catch (error) {
    if (error instanceof RangeError) return { path: "", is: "nested too deeply" };
    throw error;
  }
}

function walk(value: unknown, above: object[]): Bent | null {
  switch (typeof value) {
    case "string":
    case "boolean":
      return null;
    case "number":
      return Number.isFinite(value) ? null : { path: "", is: String(value) };
    case "object":
      if (value === null) return null;
      return Array.isArray(value) ? walkArray(value, above) : walkObject(value, above);
    default:
      return { path: "", is: value === undefined ? "undefined" : `a ${typeof value}` };
  }
}

function walkArray(array: unknown[], above: object[]): Bent | null {
  if (above.includes(array)) return { path: "", is: "a cycle" };
  above.push(array);
  for (let i = 0; i < array.length; i++) {
    const bent = walk(array[i], above);
    if (bent !== null) return { path: `[${i}]${bent.path}`, is: bent.is };
  }
  above.pop();
  return null;
}

function walkObject(object: object, above: object[]): Bent | null {
  if (!isPlain(object)) return { path: "", is: `a ${object.constructor?.name || "class instance"}` };
  if (typeof (object as { toJSON?: unknown }).toJSON === "function") return { path: "", is: "an object with toJSON" };
  if (above.includes(object)) return { path: "", is: "a cycle" };
  above.push(object);
  for (const key of Object.keys(object)) {
    const child = (object as Record<string, unknown>)[key];
    if (child === undefined) continue;
    const bent = walk(child, above);
    if (bent !== null) return { path: `.${key}${bent.path}`, is: bent.is };
  }
  above.pop();
  return null;
}

/** True for objects of another realm too (a vm context has an `Object.prototype` of its own). */
export function isPlain(object: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(object);
  return prototype === Object.prototype || prototype === null || Object.getPrototypeOf(prototype) === null;
}
