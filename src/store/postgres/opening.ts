import type { Value } from "./driver.ts";
import type { Session } from "./session.ts";

/** More than this is not worth the trip that is saved, in characters. */
const MOST = 32_768;

interface Statement {
  text: string;
  values: Value[];
  resolve: (rows: unknown) => void;
  reject: (error: unknown) => void;
}

/**
 * How a transaction begins. Nothing may be sent behind a `begin` before it has succeeded: where it fails, all the rest would
 * be done by itself, and stay. But the server stops at the first statement of a message that fails. So the first
 * statements go with it, in one message, and cost no trip of their own.
 */
export class Opening {
  readonly #statements: Statement[] = [];

  add<Row extends readonly unknown[]>(text: string, values: Value[]): Promise<Row[]> {
    return new Promise((resolve, reject) => {
      this.#statements.push({ text, values, resolve: resolve as (rows: unknown) => void, reject });
    });
  }

  /** Resolves when it has begun; each statement has an answer of its own. */
  async send(session: Session, begin: readonly string[]): Promise<void> {
    const statements = this.#statements;
    try {
      if (statements.length > 0 && !session.isPooled && isShort(statements)) {
        const answers = await session.together(begin, statements);
        for (const [i, { resolve }] of statements.entries()) resolve(answers[i]);
        return;
      }
      await session.command(begin.join(";"));
    } catch (error) {
      for (const { reject } of statements) reject(error);
      throw error;
    }
    for (const { text, values, resolve, reject } of statements) session.rows<unknown[]>(text, values).then(resolve, reject);
  }
}

/** A text with a NUL would end the message before its end. */
function isShort(statements: readonly Statement[]): boolean {
  const texts = statements.flatMap(({ values }) => values.filter((value) => typeof value === "string"));
  return texts.reduce((sum, { length }) => sum + length, 0) <= MOST && !texts.some((text) => text.includes("\0"));
}
