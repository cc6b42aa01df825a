import { HoldfastError } from "./errors.ts";
import { isPlain, MINUS_ZERO, step } from "./json.ts";
import { Secret } from "./secret.ts";

/** Stands for a secret in canonical text, with its hash; nothing else may have a property of this name. */
export const SECRET = "$secret";

/**
 * The one text of a JSON value, for hashing: keys sorted, no spaces. Equal values have the same text, others another. What
 * JSON would drop or bend is refused, also a property that is `undefined`: a key with a part that is silently not in it
 * would reuse results of other settings. `what` names the value in the error: `key.model.temperature`.
 */
export function canonical(value: unknown, what: string): string {
  try {
    return write(value, { path: what, above: [] });
  } catch (error) {
    if (error instanceof RangeError) throw refused(what, "nested too deeply");
    throw error;
  }
}

interface Place {
  path: string;
  above: object[];
}

function write(value: unknown, place: Place): string {
  switch (typeof value) {
    case "string":
    case "boolean":
      return JSON.stringify(value);
    case "number":
      if (!Number.isFinite(value)) throw refused(place.path, String(value));
      return Object.is(value, -0) ? MINUS_ZERO : JSON.stringify(value);
    case "object":
      if (value === null) return "null";
      if (value instanceof Secret) return `{"${SECRET}":"${value.hash}"}`;
      return Array.isArray(value) ? writeArray(value, place) : writeObject(value, place);
    default:
      throw refused(place.path, value === undefined ? "undefined" : `a ${typeof value}`);
  }
}

function writeArray(array: unknown[], { path, above }: Place): string {
  if (above.includes(array)) throw refused(path, "a cycle");
  if (Reflect.ownKeys(array).length > array.length + 1) throw refused(path, "an array with properties of its own");
  above.push(array);
  const parts: string[] = [];
  for (let i = 0; i < array.length; i++) parts.push(write(array[i], { path: `${path}[${i}]`, above }));
  above.pop();
  return `[${parts.join(",")}]`;
}

function writeObject(object: object, { path, above }: Place): string {
  if (!isPlain(object)) throw refused(path, `a ${object.constructor?.name || "class instance"}`);
  if (typeof (object as { toJSON?: unknown }).toJSON === "function") throw refused(path, "an object with toJSON");
  if (Object.getOwnPropertySymbols(object).length > 0) throw refused(path, "an object with a symbol for a name");
  if (Object.hasOwn(object, SECRET)) throw refused(path, `an object with the name "${SECRET}", which stands for secrets`);
  if (above.includes(object)) throw refused(path, "a cycle");
  above.push(object);
  // By code units, which no locale changes.
  const parts = Object.keys(object)
    .sort()
    .map((name) => {
      const child = (object as Record<string, unknown>)[name];
      return `${JSON.stringify(name)}:${write(child, { path: `${path}${step(name)}`, above })}`;
    });
  above.pop();
  return `{${parts.join(",")}}`;
}

function refused(path: string, is: string): HoldfastError {
  return new HoldfastError(
    "KEY_INVALID",
    `${path} is ${is}, which cannot be part of a key.`,
    "Give plain objects, arrays, strings, finite numbers, booleans and null; leave out what is undefined, and turn the rest into text.",
  );
}
