import { say } from "./violation.ts";

export interface Entry {
  step: number;
  who: string;
  what: string;
  args: readonly unknown[];
  answer: unknown;
}

/** The step after the last one. */
export const END = -1;

/** What was done, put into words only when a failure is printed. */
export class Trace {
  readonly #entries: Entry[] = [];
  #step = 0;

  step(step: number): void {
    this.#step = step;
  }

  add(who: string, what: string, args: readonly unknown[]): Entry {
    const entry: Entry = { step: this.#step, who, what, args, answer: undefined };
    this.#entries.push(entry);
    return entry;
  }

  toString(): string {
    return this.#entries.map(line).join("\n");
  }
}

function line({ step, who, what, args, answer }: Entry): string {
  const given = args.filter((arg) => arg !== undefined).map(say);
  const said = answer === undefined ? "" : ` → ${answer instanceof Error ? `${answer.name}: ${answer.message}` : say(answer)}`;
  return `  ${(step === END ? "end" : String(step)).padStart(4)}  ${who} ${what} ${given.join(", ")}${said}`;
}
