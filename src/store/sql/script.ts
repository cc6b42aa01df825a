/**
 * The steps of one transaction, written once for both databases. A script stops at every answer it has to wait for.
 * SQLite answers at once, so there a script runs from beginning to end without stopping; on PostgreSQL whoever runs it
 * awaits each answer. Scripts call each other with `yield*`, as asynchronous functions do with `await`.
 */
export type Script<T> = Generator<Promise<unknown>, T, unknown>;

/** An answer that may already be here. */
export type Answer<T> = T | Promise<T>;

/** The way from a script to code that is written separately for each database. */
export function* wait<T>(answer: Answer<T>): Script<T> {
  return answer instanceof Promise ? ((yield answer) as T) : answer;
}

/**
 * Runs several scripts side by side. On PostgreSQL their first statements are sent together, in this order, and cost one
 * round trip; SQLite runs one script after the other. A call that runs its statement at once (`tx.all`, `tx.run`, `wait`)
 * runs before all scripts here, wherever it stands: put it into a generator where the order matters.
 */
export function* together<T extends readonly Script<unknown>[]>(...scripts: T): Script<Results<T>> {
  const answers = scripts.map(run);
  return (answers.some((answer) => answer instanceof Promise) ? yield Promise.all(answers) : answers) as Results<T>;
}

type Results<T extends readonly Script<unknown>[]> = { -readonly [K in keyof T]: T[K] extends Script<infer R> ? R : never };

/** For a database that answers at once. */
export function runSync<T>(script: Script<T>): T {
  const step = script.next();
  if (step.done) return step.value;
  step.value.catch(() => {});
  throw new Error("A synchronous transaction cannot wait for an answer.");
}

/** For a database that answers later. */
export async function runAsync<T>(script: Script<T>): Promise<T> {
  return run(script);
}

function run<T>(script: Script<T>): Answer<T> {
  const step = script.next();
  return step.done ? step.value : resume(script, step);
}

async function resume<T>(script: Script<T>, step: IteratorResult<Promise<unknown>, T>): Promise<T> {
  while (!step.done) {
    step = await step.value.then(
      (answer) => script.next(answer),
      // The script may catch it, as it would catch what it had thrown itself.
      (error: unknown) => script.throw(error),
    );
  }
  return step.value;
}
