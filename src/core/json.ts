import { HoldfastError } from "./errors.ts";

/**
 * Text of a JSON value; anything that would not come back as it was (Date, Map, bigint, NaN, holes, class instances, cycles)
 * is refused, because a handler must get what the caller gave. A property whose value is `undefined` is absent, as in JSON;
 * `undefined` itself has no text.
 */
export function toJson(value: unknown, what: string): string | null {
  if (value === undefined) return null;
  const walk: Walk = { above: [], hasMinusZero: false };
  const bent = findBent(value, walk);
  if (bent !== null) {
    throw new HoldfastError(
      "NOT_JSON",
      `${what}${bent.path} is ${bent.is}, which JSON cannot carry as it is.`,
      "Give plain objects, arrays, strings, finite numbers, booleans and null; turn the rest into text first.",
    );
  }
  try {
    return walk.hasMinusZero ? JSON.stringify(value, keepMinusZero) : JSON.stringify(value);
  } catch (cause) {
    if (!(cause instanceof RangeError)) throw cause;
    throw new HoldfastError(
      "NOT_JSON",
      `${what} is too large: its JSON text is longer than a JavaScript string can be.`,
      "Store large data elsewhere, for example in a file, and pass its path or address.",
      { cause },
    );
  }
}

export function fromJson(text: string | null): unknown {
  return text === null ? undefined : JSON.parse(text);
}

/** One name more of a path: `.model`, or `["odd name"]`. */
export function step(name: string): string {
  return /^[A-Za-z_$][\w$]*$/.test(name) ? `.${name}` : `[${JSON.stringify(name)}]`;
}

/** JSON can say `-0`, and reads it as that; only `JSON.stringify` does not write it. */
export const MINUS_ZERO = "-0";

// Node 20 has no `rawJSON`. It must get as far as `open`, which says that it is not supported.
const raw = (JSON as unknown as { rawJSON?(text: string): unknown }).rawJSON?.(MINUS_ZERO);

function keepMinusZero(_name: string, value: unknown): unknown {
  return Object.is(value, -0) ? raw : value;
}

interface Walk {
  /** The objects that this is in. */
  above: object[];
  hasMinusZero: boolean;
}

/** Where a value would not come back from JSON as it was; the path is put together on the way out, so that good values pay nothing for it. */
interface Bent {
  path: string;
  is: string;
}

function findBent(value: unknown, walk: Walk): Bent | null {
  try {
    return visit(value, walk);
  } catch (error) {
    if (error instanceof RangeError) return { path: "", is: "nested too deeply" };
    throw error;
  }
}

function visit(value: unknown, walk: Walk): Bent | null {
  switch (typeof value) {
    case "string":
    case "boolean":
      return null;
    case "number":
      if (value === 0 && Object.is(value, -0)) walk.hasMinusZero = true;
      return Number.isFinite(value) ? null : { path: "", is: String(value) };
    case "object":
      if (value === null) return null;
      return Array.isArray(value) ? visitArray(value, walk) : visitObject(value, walk);
    default:
      return { path: "", is: value === undefined ? "undefined" : `a ${typeof value}` };
  }
}

function visitArray(array: unknown[], walk: Walk): Bent | null {
  const { above } = walk;
  if (above.includes(array)) return { path: "", is: "a cycle" };
  above.push(array);
  for (let i = 0; i < array.length; i++) {
    const bent = visit(array[i], walk);
    if (bent !== null) return { path: `[${i}]${bent.path}`, is: bent.is };
  }
  // What `match` of a text answers, say.
  if (Object.keys(array).length > array.length) return { path: "", is: "an array with properties of its own" };
  above.pop();
  return null;
}

function visitObject(object: object, walk: Walk): Bent | null {
  const { above } = walk;
  if (!isPlain(object)) return { path: "", is: `a ${object.constructor?.name || "class instance"}` };
  if (typeof (object as { toJSON?: unknown }).toJSON === "function") return { path: "", is: "an object with toJSON" };
  if (hasSymbols(object)) return { path: "", is: "an object with a symbol for a name" };
  if (above.includes(object)) return { path: "", is: "a cycle" };
  above.push(object);
  for (const key of Object.keys(object)) {
    const child = (object as Record<string, unknown>)[key];
    if (child === undefined) continue;
    const bent = visit(child, walk);
    if (bent !== null) return { path: `${step(key)}${bent.path}`, is: bent.is };
  }
  above.pop();
  return null;
}

/** Those that are to be seen: libraries mark objects of theirs with others. */
function hasSymbols(object: object): boolean {
  return Object.getOwnPropertySymbols(object).some((symbol) => Object.prototype.propertyIsEnumerable.call(object, symbol));
}

/** True for objects of another realm too (a vm context has an `Object.prototype` of its own). */
export function isPlain(object: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(object);
  return prototype === Object.prototype || prototype === null || Object.getPrototypeOf(prototype) === null;
}
