import { describeValue, invalidOption } from "./options.ts";
import { isAsyncFunction } from "./text.ts";

type MethodName<T> = { [K in keyof T]: T[K] extends (...args: never[]) => unknown ? K : never }[keyof T] & string;

/** How many arguments each method takes. The type requires every method, and its right number. */
type ArgumentCounts<T> = {
  [K in MethodName<T>]: T[K] extends (...args: infer A) => unknown ? Required<A>["length"] : never;
};

/** Makes the methods reject surplus arguments, which JavaScript ignores silently. `where` stands before their names in errors. */
export function limitArguments<T extends object>(methods: T, where: string, counts: ArgumentCounts<T>): T {
  for (const [name, count] of Object.entries(counts) as [string, number][]) {
    const method = (methods as Record<string, (...args: unknown[]) => unknown>)[name] as (...args: unknown[]) => unknown;
    const limited = isAsyncFunction(method)
      ? async function (this: unknown, ...args: unknown[]) {
          rejectSurplus(args, count, `${where}.${name}`);
          return method.apply(this, args);
        }
      : function (this: unknown, ...args: unknown[]) {
          rejectSurplus(args, count, `${where}.${name}`);
          return method.apply(this, args);
        };
    Object.defineProperty(methods, name, { ...Object.getOwnPropertyDescriptor(methods, name), value: limited });
  }
  return methods;
}

export function rejectSurplus(args: ArrayLike<unknown>, count: number, call: string): void {
  if (args.length <= count || args[count] === undefined) return;
  const takes = count === 0 ? "no arguments" : count === 1 ? "1 argument" : `${count} arguments`;
  throw invalidOption(`${call} takes ${takes}, but argument ${count + 1} is ${describeArgument(args[count])}.`, "Leave it out.");
}

function describeArgument(value: unknown): string {
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  const keys = isObject ? Object.keys(value).slice(0, 5) : [];
  return keys.length === 0 ? describeValue(value) : `{ ${keys.join(", ")} }`;
}
