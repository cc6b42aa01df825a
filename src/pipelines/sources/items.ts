import { hash } from "node:crypto";
import { canonicalJson, toJson } from "../../core/text/json.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { toJobError } from "../../core/jobs/job.ts";
import type { ItemsSource } from "../../core/pipelines/source.ts";
import { checkTargetId } from "../../core/pipelines/work.ts";
import { checkStorable } from "../../core/text/text.ts";
import { isOver, turn } from "./fingerprint-file.ts";

export interface ListedItem {
  id: string;
  /** Hash of the item's version, or of the item. */
  hash: string;
  value: string;
  cursor: string | null;
}

/** Lists items. An id may come twice (pages shift), but only for the same item. Stopping early ends the source's iterator. */
export async function* listItems(source: ItemsSource, cursor?: string): AsyncGenerator<ListedItem> {
  const made: unknown = call(() => source.list(cursor), "The list");
  const seen = new Map<string, number>();
  for await (const value of guarded(checkIterable(made))) {
    if (isOver()) await turn();
    const item = toItem(source, value);
    refuseOther(seen, item, source);
    yield item;
  }
}

function refuseOther(seen: Map<string, number>, { id, hash: version }: ListedItem, source: ItemsSource): void {
  // 48 bits of the hash are enough, and save memory for millions of items.
  const mark = Number.parseInt(version.slice(0, 12), 16);
  const before = seen.get(id);
  if (before === undefined) return void seen.set(id, mark);
  if (before === mark) return;
  throw new HoldfastError(
    "TARGET_TWICE",
    `Two different items have the id ${JSON.stringify(id)}${source.version === null ? "" : ": their versions differ"}.`,
    "Give each item a unique id. If items change during the listing, list them from one snapshot.",
  );
}

function toItem(source: ItemsSource, value: unknown): ListedItem {
  const id = checkTargetId(
    call(() => source.id(value), "`id`"),
    "The result of `id` of items()",
  );
  const item = `item ${JSON.stringify(id)}`;
  const text = toJson(value, `The ${item}`);
  if (text === null) throw invalid(`The ${item} is undefined.`, "Give items that are JSON.");
  const ask = (option: (value: unknown) => string, name: string): string => {
    const given: unknown = call(() => option(value), `\`${name}\` for ${item}`);
    if (typeof given === "string" && given.isWellFormed()) return given;
    const answer = typeof given === "string" ? "half a character (a lone surrogate)" : (JSON.stringify(given) ?? String(given));
    throw invalid(`\`${name}\` of items() returned ${answer} for ${item}.`, "Return a string.");
  };
  const { version, cursor } = source;
  return {
    id,
    // Hash the parsed text, because undefined properties are not stored.
    hash: hash("sha256", version === null ? canonicalJson(JSON.parse(text), `The ${item}`) : ask(version, "version")),
    value: text,
    cursor: cursor === null ? null : checkStorable(ask(cursor, "cursor"), `The result of \`cursor\` of items() for ${item}`),
  };
}

function checkIterable(made: unknown): AsyncIterable<unknown> | Iterable<unknown> {
  if (typeof made === "object" && made !== null && (Symbol.asyncIterator in made || Symbol.iterator in made)) {
    return made as AsyncIterable<unknown>;
  }
  if (made instanceof Promise) made.catch(() => {});
  throw invalid(
    `The list of items() returned ${made instanceof Promise ? "a promise" : `a ${made === null ? "null" : typeof made}`}, which cannot be iterated.`,
    "Return an array, or write the list as a generator: `async function* list(cursor) { … }`.",
  );
}

async function* guarded(iterable: AsyncIterable<unknown> | Iterable<unknown>): AsyncGenerator<unknown> {
  try {
    yield* iterable;
  } catch (cause) {
    throw failed("The list", cause);
  }
}

function call<R>(act: () => R, what: string): R {
  try {
    return act();
  } catch (cause) {
    throw failed(what, cause);
  }
}

function failed(what: string, cause: unknown): HoldfastError {
  return new HoldfastError(
    "SOURCE_FAILED",
    `${what} of items() threw: ${toJobError(cause).message}`,
    "Correct the function and resume the build. No target was removed.",
    { cause },
  );
}

function invalid(message: string, hint: string): HoldfastError {
  return new HoldfastError("SOURCE_INVALID", message, hint);
}
