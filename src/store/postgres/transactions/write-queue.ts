import { type Operation, passPoint } from "../../points.ts";
import type { Rows, Value } from "../connection/driver.ts";
import type { Session } from "../connection/session.ts";
import type { Outcome, SingleCall, Transaction, Tx } from "./transaction.ts";

export interface Item {
  operation: Operation;
  /** True if it sends all its statements at once, so that the next item need not wait. */
  quick: boolean;
  joins: boolean;
  rows: number;
  single: SingleRoute<unknown, unknown> | null;
  calls: Call[];
  row: string | null;
  run: (tx: Tx, inputs: unknown[]) => Promise<unknown[]>;
}

export interface CallHints<T> {
  row?: string;
  single?: SingleRoute<undefined, T>;
  owed?: boolean;
}

/** Calls that may be one statement. If its answer is lost with its commit, `recall` finds the answer by the receipt. */
export interface SingleRoute<Input, T> {
  call: (tx: Tx, inputs: Input[], rows: Rows) => SingleCall<T[]> | null | Promise<SingleCall<T[]> | null>;
  recall: (rows: Rows, outcome: Outcome, inputs: Input[]) => Promise<T[]>;
}

/** Thrown if a call needs more than one statement. Nothing is written. */
export class NotSingle extends Error {}

interface Call {
  input: unknown;
  resolve: (value: unknown) => void;
  reject: (reason: unknown) => void;
  since: number;
}

/** Most rows of a transaction, unless one call has more. Larger ones cost no less for each row, and delay their callers. */
const MAX_ROWS = 1_000;

export class WriteQueue {
  #items: Item[] = [];

  get isEmpty(): boolean {
    return this.#items.length === 0;
  }

  get items(): readonly Item[] {
    return this.#items;
  }

  add<T>(operation: Operation, run: (tx: Tx) => Promise<T>, { row, single }: CallHints<T>): Item {
    const item: Item = {
      operation,
      quick: false,
      joins: false,
      rows: 1,
      single: (single ?? null) as Item["single"],
      calls: [],
      row: row ?? null,
      run: async (tx) => [await run(tx)],
    };
    this.#items.push(item);
    return item;
  }

  join<Input, T>(
    operation: Operation,
    run: (tx: Tx, inputs: Input[]) => Promise<T[]>,
    { rows, single, quick }: { rows: number; single: SingleRoute<Input, T> | null; quick: boolean },
  ): Item {
    const last = this.#items.at(-1);
    if (last?.joins === true && last.quick === quick && last.operation === operation && last.rows + rows <= MAX_ROWS) {
      last.rows += rows;
      return last;
    }
    const item = { operation, quick, joins: true, rows, single, calls: [], row: null, run } as unknown as Item;
    this.#items.push(item);
    return item;
  }

  take(): Item[] {
    let rows = 0;
    const end = this.#items.findIndex((item, i) => (rows += item.rows) > MAX_ROWS && i > 0);
    return this.#items.splice(0, end === -1 ? this.#items.length : end);
  }

  keep(among: (items: Item[]) => Item[]): void {
    this.#items = among(this.#items);
  }
}

/** Returns rows with users' names. Beside other calls they are locked like queues, first: else two transactions could deadlock. */
export function namedRows(items: readonly Item[]): string[] {
  if (items.length === 1) return [];
  const rows = new Set(items.flatMap(({ row }) => (row === null ? [] : ` ${row}`)));
  // A name with a NUL cannot be stored, and only that call is rejected.
  return [...rows].filter((name) => !name.includes("\0"));
}

export function isClaimOrSettle({ operation }: Item): boolean {
  return operation === "claim" || operation === "settle";
}

export async function together(items: Item[], state: Transaction): Promise<() => void> {
  const values: Promise<unknown[]>[] = [];
  for (const item of items) {
    passPoint(item.operation, "begun");
    const value = item.run(state, inputsOf(item));
    values.push(value);
    if (item.quick) value.catch(() => {});
    else if ((await Promise.allSettled([value]))[0].status === "rejected") break;
  }
  // If one fails, the others must finish before anything is undone.
  await Promise.allSettled(values);
  const results = await Promise.all(values);
  return () => items.forEach(({ calls }, i) => calls.forEach((call, n) => call.resolve(results[i]?.[n])));
}

function inputsOf({ calls }: Item): unknown[] {
  return calls.map(({ input }) => input);
}

export function callsOf(items: readonly Item[]): number {
  return items.reduce((sum, { calls }) => sum + calls.length, 0);
}

export function halvesOf(items: readonly Item[]): Item[][] {
  const singles = singlesOf(items).flat();
  const half = Math.ceil(singles.length / 2);
  return [singles.slice(0, half), singles.slice(half)];
}

export function singlesOf(items: readonly Item[]): Item[][] {
  return items.flatMap((item) => item.calls.map((call): Item[] => [{ ...item, calls: [call] }]));
}

export function splitAnswers<T>(answers: T[], batches: readonly (readonly unknown[])[]): T[][] {
  if (batches.length === 1) return [answers];
  let from = 0;
  return batches.map(({ length }) => answers.slice(from, (from += length)));
}

/** Longer statements, in characters, are not worth the saved round trip. */
const MAX_BEGIN_CHARS = 32_768;

interface Statement {
  text: string;
  values: Value[];
  resolve: (rows: unknown) => void;
  reject: (error: unknown) => void;
}

/** Sends the first statements with the begin: a message ends at its first error, so none stays behind a failed `begin`. */
export class PipelinedBegin {
  readonly #statements: Statement[] = [];

  add<Row extends readonly unknown[]>(text: string, values: Value[]): Promise<Row[]> {
    return new Promise((resolve, reject) => {
      this.#statements.push({ text, values, resolve: resolve as (rows: unknown) => void, reject });
    });
  }

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

function isShort(statements: readonly Statement[]): boolean {
  const texts = statements.flatMap(({ values }) => values.filter((value) => typeof value === "string"));
  return texts.reduce((sum, { length }) => sum + length, 0) <= MAX_BEGIN_CHARS && !texts.some((text) => text.includes("\0"));
}
