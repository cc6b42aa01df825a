import { toJobError } from "../core/job.ts";
import { fromJson, toJson } from "../core/json.ts";
import type { Outcome } from "../core/retry.ts";
import { parse } from "../core/schema.ts";
import { isThenable } from "../core/thenable.ts";
import { type Attempt, contextFor, Ending } from "./attempt.ts";
import type { Definition } from "./definition.ts";
import type { Engine } from "./engine.ts";
import { failForGood, outcomeOf, unreadable } from "./outcome.ts";
import type { ProgressWriter } from "./progress.ts";

/**
 * Runs handlers: the stored input through the schema, the handler, its output through the schema. Whatever goes wrong
 * becomes an outcome. Where nothing is asynchronous, it is over when `run` returns: a promise a job would be dear.
 */
export class Executor {
  readonly #engine: Engine;
  readonly #progress: ProgressWriter;
  readonly #finish: (attempt: Attempt, outcome: Outcome) => void;

  constructor(engine: Engine, progress: ProgressWriter, finish: (attempt: Attempt, outcome: Outcome) => void) {
    this.#engine = engine;
    this.#progress = progress;
    this.#finish = finish;
  }

  run(attempt: Attempt): void {
    let input: unknown;
    try {
      input = inputOf(attempt);
    } catch (error) {
      return this.#finish(attempt, unreadable(error));
    }
    if (input instanceof Promise) {
      input.then(
        (parsed) => this.#call(attempt, parsed),
        (error: unknown) => this.#finish(attempt, unreadable(error)),
      );
    } else this.#call(attempt, input);
  }

  #call(attempt: Attempt, input: unknown): void {
    const { run, perform } = attempt.runnable.def;
    let result: unknown;
    let later: boolean;
    try {
      const context = contextFor(this.#engine, this.#progress, attempt, input);
      result = perform === undefined ? (run as NonNullable<Definition["run"]>)(context) : perform(attempt, context);
      later = isThenable(result);
    } catch (error) {
      return this.#threw(attempt, error);
    }
    if (!later) return this.#returned(attempt, result);
    // A foreign thenable may throw, or call back twice; a promise around it does not.
    const promise = result instanceof Promise ? result : Promise.resolve(result);
    promise.then(
      (output) => this.#returned(attempt, output),
      (error: unknown) => this.#threw(attempt, error),
    );
  }

  #returned(attempt: Attempt, output: unknown): void {
    try {
      const { def } = attempt.runnable;
      const checked = def.output === undefined ? output : parse(def.output, output, `The output of job "${def.name}"`);
      if (checked instanceof Promise) {
        checked.then(
          (late) => this.#succeeded(attempt, late),
          (error: unknown) => this.#finish(attempt, failForGood(toJobError(error))),
        );
      } else this.#succeeded(attempt, checked);
    } catch (error) {
      // Running it again would give the same.
      this.#finish(attempt, failForGood(toJobError(error)));
    }
  }

  #succeeded(attempt: Attempt, output: unknown): void {
    let text: string | null;
    try {
      text = toJson(output, "The output");
    } catch (error) {
      return this.#finish(attempt, failForGood(toJobError(error)));
    }
    this.#finish(attempt, { kind: "succeeded", output: text });
  }

  #threw(attempt: Attempt, error: unknown): void {
    if (error instanceof Ending) this.#finish(attempt, error.outcome);
    else if (attempt.gaveUp(error)) this.#finish(attempt, { kind: "interrupted" });
    else this.#finish(attempt, outcomeOf(error, this.#engine.clock));
  }
}

function inputOf({ claimed, runnable: { def } }: Attempt): unknown {
  const input = fromJson(claimed.input);
  return def.input === undefined ? input : parse(def.input, input, `The stored input of job ${claimed.id}`);
}
