import { HoldfastError } from "../core/errors.ts";

/** What a line of the log says of an error. */
export interface Said {
  error: string;
  hint?: string;
}

/** With what can be done about it, where that is known. */
export function said(error: unknown): Said {
  return error instanceof HoldfastError ? { error: String(error), hint: error.hint } : { error: String(error) };
}

/** What to do about a database that is damaged. */
export const MEND =
  "`holdfast doctor --recheck` looks again, and clears what is well; `holdfast salvage`, or `holdfast restore BACKUP`, makes a whole one.";

/** What to do after damage that a second read has not found. */
export const READ_ERRORS = "Look in the system's log for read errors of the disk.";

/** What goes wrong at every try is told when it begins, and when it becomes another; an outage of an hour is not a log of it. */
export class Trouble {
  #told: string | null = null;

  /** What to log of it, with what can be done about it; null: that was told already. */
  news(error: unknown): Said | null {
    const news = said(error);
    if (news.error === this.#told) return null;
    this.#told = news.error;
    return news;
  }

  /** It went well: the same again is news. */
  over(): void {
    this.#told = null;
  }
}
