import { HoldfastError } from "./errors.ts";

/** Returns JSON text, or null for `undefined`. Rejects what would not come back unchanged, so handlers get what callers gave. */
export function toJson(value: unknown, what: string): string | null {
  if (value === undefined) return null;
  const walk: Traversal = { above: [], hasMinusZero: false, isKey: false };
  const bent = findUnrepresentable(value, walk);
  if (bent !== null) {
    throw new HoldfastError(
      "NOT_JSON",
      `${placeText(what, bent.path)} is ${bent.is}, which JSON cannot represent exactly.`,
      "Give plain objects, arrays, strings, finite numbers, booleans and null; convert others to strings first.",
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

/** Names a place: "The input" and ".a" give `input.a`; "The output of stage "x"" and ".a" give `a` in the output of stage "x". */
function placeText(what: string, path: string): string {
  if (path === "") return what;
  const name = /^The (\w+)$/.exec(what)?.[1];
  return name === undefined ? `\`${path.replace(/^\./, "")}\` in ${what.replace(/^The /, "the ")}` : `\`${name}${path}\``;
}

export function fromJson(text: string | null): unknown {
  return text === null ? undefined : JSON.parse(text);
}

export function pathStep(name: string): string {
  return /^[A-Za-z_$][\w$]*$/.test(name) ? `.${name}` : `[${JSON.stringify(name)}]`;
}

/** JSON has `-0` and parses it, but `JSON.stringify` does not write it. */
const MINUS_ZERO = "-0";

// Node 20 has no `rawJSON`. It must still load this module, so that `open` can say that it is not supported.
const raw = (JSON as unknown as { rawJSON?(text: string): unknown }).rawJSON?.(MINUS_ZERO);

function keepMinusZero(_name: string, value: unknown): unknown {
  return Object.is(value, -0) ? raw : value;
}

interface Traversal {
  above: object[];
  hasMinusZero: boolean;
  /** True for a key, which also rejects properties that are undefined or hidden, and accepts secrets. */
  isKey: boolean;
}

/** A value that JSON would change. Its path is built on the way out, so that good values pay nothing for it. */
interface Unrepresentable {
  path: string;
  is: string;
}

function findUnrepresentable(value: unknown, walk: Traversal): Unrepresentable | null {
  try {
    return visit(value, walk);
  } catch (error) {
    if (error instanceof RangeError) return { path: "", is: "nested too deeply" };
    throw error;
  }
}

function visit(value: unknown, walk: Traversal): Unrepresentable | null {
  switch (typeof value) {
    case "string":
    case "boolean":
      return null;
    case "number":
      if (value === 0 && Object.is(value, -0)) walk.hasMinusZero = true;
      return Number.isFinite(value) ? null : { path: "", is: String(value) };
    case "object":
      if (value === null || (walk.isKey && value instanceof Secret)) return null;
      return Array.isArray(value) ? visitArray(value, walk) : visitObject(value, walk);
    default:
      return { path: "", is: value === undefined ? "undefined" : `a ${typeof value}` };
  }
}

function visitArray(array: unknown[], walk: Traversal): Unrepresentable | null {
  const { above, isKey } = walk;
  if (above.includes(array)) return { path: "", is: "a cycle" };
  above.push(array);
  for (let i = 0; i < array.length; i++) {
    const bent = visit(array[i], walk);
    if (bent !== null) return { path: `[${i}]${bent.path}`, is: bent.is };
  }
  // An array may have properties of its own, such as the result of `"text".match(pattern)`.
  const own = isKey ? Reflect.ownKeys(array).length - 1 : Object.keys(array).length;
  if (own > array.length) return { path: "", is: "an array with properties of its own" };
  above.pop();
  return null;
}

function visitObject(object: object, walk: Traversal): Unrepresentable | null {
  const { above, isKey } = walk;
  // Objects of another realm are plain, too: a vm context has its own `Object.prototype`.
  const prototype: unknown = Object.getPrototypeOf(object);
  const isPlain = prototype === Object.prototype || prototype === null || Object.getPrototypeOf(prototype) === null;
  if (!isPlain) return { path: "", is: `a ${object.constructor?.name || "class instance"}` };
  if (typeof (object as { toJSON?: unknown }).toJSON === "function") return { path: "", is: "an object with toJSON" };
  // Hidden symbols are allowed except in keys, because libraries mark their objects with them.
  for (const symbol of Object.getOwnPropertySymbols(object))
    if (isKey || Object.prototype.propertyIsEnumerable.call(object, symbol))
      return { path: "", is: "an object with a symbol for a name" };
  if (isKey && Object.hasOwn(object, SECRET))
    return { path: "", is: `an object with the name "${SECRET}", which stands for secrets` };
  if (above.includes(object)) return { path: "", is: "a cycle" };
  above.push(object);
  for (const key of Object.keys(object)) {
    const child = (object as Record<string, unknown>)[key];
    if (child === undefined && !isKey) continue;
    const bent = visit(child, walk);
    if (bent !== null) return { path: `${pathStep(key)}${bent.path}`, is: bent.is };
  }
  above.pop();
  return null;
}

/** Property that stands for a secret in canonical text, with its hash. No other object may have this property. */
export const SECRET = "$secret";

/** Stands for a value of which only the hash is known, so that no log, error or database can show the value. */
export class Secret {
  readonly hash: string;

  constructor(hash: string) {
    this.hash = hash;
  }

  toString(): string {
    return "[secret]";
  }

  toJSON(): string {
    return "[secret]";
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return "[secret]";
  }
}

/** Returns canonical text for hashing. Rejects `undefined`, too: a key without a part would reuse results of other settings. */
export function canonicalJson(value: unknown, what: string): string {
  const bent = findUnrepresentable(value, { above: [], hasMinusZero: false, isKey: true });
  if (bent !== null) {
    throw new HoldfastError(
      "KEY_INVALID",
      `${what}${bent.path} is ${bent.is}, which cannot be part of a key.`,
      "Give plain objects, arrays, strings, finite numbers, booleans and null; leave out undefined values, and convert others to strings.",
    );
  }
  return canonicalText(value);
}

function canonicalText(value: unknown): string {
  if (typeof value !== "object" || value === null) return Object.is(value, -0) ? MINUS_ZERO : JSON.stringify(value);
  if (value instanceof Secret) return `{"${SECRET}":"${value.hash}"}`;
  if (Array.isArray(value)) return `[${value.map(canonicalText).join(",")}]`;
  // Sort by code units, whose order no locale changes.
  const names = Object.keys(value).sort();
  const parts = names.map((name) => `${JSON.stringify(name)}:${canonicalText((value as Record<string, unknown>)[name])}`);
  return `{${parts.join(",")}}`;
}
