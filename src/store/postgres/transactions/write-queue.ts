import { type Operation, passPoint } from "../../points.ts";
import type { Rows, Value } from "../connection/driver.ts";
import type { Session } from "../connection/session.ts";
import type { Outcome } from "./receipts.ts";
import type { SingleCall, Transaction, Tx } from "./transaction.ts";

/** What is called, by one or several. */
export interface Item {
  operation: Operation;
  /** All its statements are sent at once, for all its calls: the next item need not wait, and more calls may join. */
  quick: boolean;
  /** How many rows it is about, where that may be many. */
  rows: number;
  /** What may make one statement of its calls; null: it is always several. */
  single: SingleRoute<unknown, unknown> | null;
  calls: Call[];
  /** Queues whose lock it will need, as far as that is known. */
  wants: () => readonly string[];
  /** What it changes is one row of a name that a user chose; null: it is not. */
  row: string | null;
  /** An answer for each call. */
  run: (tx: Tx, inputs: unknown[]) => Promise<unknown[]>;
}

/** What is known of a call before it runs. */
export interface CallHints<T> {
  wants?: Item["wants"] | undefined;
  row?: string;
  single?: SingleRoute<undefined, T>;
  /** The rest of a call that was made before: it is taken also when nothing else is any more. */
  owed?: boolean;
}

/** Calls that may be one statement. Its answer can be lost with its commit, and is found by what was made. */
export interface SingleRoute<Input, T> {
  /** An answer for each call. Null: not this time. `rows`: for what it reads first, outside of the transaction. */
  call: (tx: Tx, inputs: Input[], rows: Rows) => SingleCall<T[]> | null | Promise<SingleCall<T[]> | null>;
  recall: (rows: Rows, outcome: Outcome, inputs: Input[]) => Promise<T[]>;
}

export interface Call {
  input: unknown;
  resolve: (value: unknown) => void;
  reject: (reason: unknown) => void;
  since: number;
}

/**
 * About so many rows one transaction is about, unless a single call is about more. With more of them a commit costs no less
 * for each; and while the server is at them, their callers can prepare the next.
 */
const MOST_ROWS = 1_000;

/** Calls that have not begun, in the order in which they were made. */
export class WriteQueue {
  #items: Item[] = [];

  get isEmpty(): boolean {
    return this.#items.length === 0;
  }

  get areClaimsOrSettles(): boolean {
    return this.#items.every(isClaimOrSettle);
  }

  /** `run` may run more than once, after everything it did was undone. */
  add<T>(operation: Operation, run: (tx: Tx) => Promise<T>, { wants = FREE.wants, row, single }: CallHints<T>): Item {
    const item: Item = {
      operation,
      quick: false,
      rows: 1,
      single: (single ?? null) as Item["single"],
      calls: [],
      wants,
      row: row ?? null,
      run: async (tx) => [await run(tx)],
    };
    this.#items.push(item);
    return item;
  }

  /** `run` sends everything at once, and for all calls together that are made one after the other: the last one may be joined. */
  addQuick<Input, T>(
    operation: Operation,
    run: (tx: Tx, inputs: Input[]) => Promise<T[]>,
    { rows, single }: { rows: number; single: SingleRoute<Input, T> | null },
  ): Item {
    const last = this.#items.at(-1);
    if (last !== undefined && last.quick && last.operation === operation && last.rows + rows <= MOST_ROWS) {
      last.rows += rows;
      return last;
    }
    const item = { operation, quick: true, rows, single, calls: [], ...FREE, run } as unknown as Item;
    this.#items.push(item);
    return item;
  }

  /** As many as one transaction should be about. */
  take(): Item[] {
    let rows = 0;
    const end = this.#items.findIndex((item, i) => (rows += item.rows) > MOST_ROWS && i > 0);
    return this.#items.splice(0, end === -1 ? this.#items.length : end);
  }

  /** Some of them may have their answer already. */
  keep(among: (items: Item[]) => Item[]): void {
    this.#items = among(this.#items);
  }
}

const FREE: Pick<Item, "wants" | "row"> = { wants: () => [], row: null };

/**
 * The queues whose lock they need; and, where they are about several rows of users' names, those rows like queues, named so
 * that they come before all of them. Calls come in any order, and two transactions that take such rows one by one would
 * wait for each other. A transaction with a single one waits for nothing while it has it.
 */
export function wantedBy(items: readonly Item[]): string[] {
  const rows = new Set(items.flatMap(({ row }) => (row === null ? [] : ` ${row}`)));
  const names = [...(rows.size > 1 ? rows : []), ...items.flatMap(({ wants }) => wants())];
  // Under such a name nothing can be stored: that call is refused, and the others are not.
  return names.filter((name) => !name.includes("\0"));
}

export function isClaimOrSettle({ operation, quick }: Item): boolean {
  return quick && (operation === "claim" || operation === "settle");
}

export async function together(items: Item[], state: Transaction): Promise<(() => void)[]> {
  const values: Promise<unknown[]>[] = [];
  for (const item of items) {
    passPoint(item.operation, "begun");
    const value = item.run(state, inputsOf(item));
    values.push(value);
    if (item.quick) value.catch(() => {});
    else if (!(await succeeds(value))) break;
  }
  // If one fails, the others come to their end, too, before anything is undone.
  await Promise.allSettled(values);
  const results = await Promise.all(values);
  return items.flatMap(({ calls }, i) => calls.map((call, n) => () => call.resolve(results[i]?.[n])));
}

function succeeds(value: Promise<unknown>): Promise<boolean> {
  return value.then(
    () => true,
    () => false,
  );
}

export function inputsOf({ calls }: Item): unknown[] {
  return calls.map(({ input }) => input);
}

export function callsOf(items: readonly Item[]): number {
  return items.reduce((sum, { calls }) => sum + calls.length, 0);
}

/** The answers to calls that were made as one: each has as many as it asked for. */
export function splitAnswers<T>(answers: T[], batches: readonly (readonly unknown[])[]): T[][] {
  if (batches.length === 1) return [answers];
  let from = 0;
  return batches.map(({ length }) => answers.slice(from, (from += length)));
}

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
export class PipelinedBegin {
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
