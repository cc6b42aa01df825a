import { HoldfastError } from "../core/errors.ts";

/** What goes wrong at every try is told when it begins, and when it becomes another; an outage of an hour is not a log of it. */
export class Trouble {
  #told: string | null = null;

  /** What to log of it, with what can be done about it; null: that was told already. */
  news(error: unknown): { error: string; hint?: string } | null {
    const said = String(error);
    if (said === this.#told) return null;
    this.#told = said;
    return error instanceof HoldfastError ? { error: said, hint: error.hint } : { error: said };
  }

  /** It went well: the same again is news. */
  over(): void {
    this.#told = null;
  }
}
