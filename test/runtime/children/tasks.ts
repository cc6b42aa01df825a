import { job, type JobContext } from "../../../src/index.ts";

/** One task for each of the three ways to handle an interruption; parent and child share them. */
const task = (onInterrupt: "retry" | "fail" | "resume") =>
  job({ name: onInterrupt, onInterrupt, run: ({ checkpoint }: JobContext<unknown>) => checkpoint.load() });
export const DEFINITIONS = [task("retry"), task("fail"), task("resume")];

/** The same task, run by a process that never gets to its end. */
export function endless(def: (typeof DEFINITIONS)[0], held: () => unknown): (typeof DEFINITIONS)[0] {
  return def.handle(async ({ checkpoint }) => {
    await checkpoint.save({ done: 3 });
    held();
    return new Promise<never>(() => {});
  });
}

/** A message that leads to another, whose id is known beforehand: processed once, it is never processed again. */
export const followed = job({ name: "followed", run: () => null });
export const chained = job({
  name: "chained",
  run: (c: JobContext<string>) => c.enqueue(followed, c.input, { id: `followed-${c.input}` }).id,
});
