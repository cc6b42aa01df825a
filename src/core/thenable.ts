/** Whether a value is a promise, or a foreign object that behaves like one. */
export function isThenable(value: unknown): value is PromiseLike<unknown> {
  if (value === null || (typeof value !== "object" && typeof value !== "function")) return false;
  return typeof (value as { then?: unknown }).then === "function";
}

/** Whether a call of this function certainly returns a promise: an `async` function that no build step has rewritten. */
export function isAsyncFunction(run: unknown): boolean {
  return Object.prototype.toString.call(run) === "[object AsyncFunction]";
}
