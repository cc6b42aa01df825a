import { definedOnly } from "../core/text/options.ts";
import { type Command, InvalidArgumentError } from "commander";
import type { Cost } from "../core/pipelines/budget.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { BuildOptions } from "../pipelines/model.ts";

export function wholeNumber(text: string): number {
  if (/^-?\d{1,15}$/.test(text)) return Number(text);
  throw new InvalidArgumentError("Give a whole number.");
}

export function atLeast(least: number, most?: number): (text: string) => number {
  return (text) => {
    if (/^\d{1,15}$/.test(text) && Number(text) >= least && Number(text) <= (most ?? Infinity)) return Number(text);
    throw new InvalidArgumentError(
      `Give a whole number ${most === undefined ? `of at least ${least}` : `from ${least} to ${most}`}.`,
    );
  };
}

/** Parses an ISO date, or milliseconds since 1970. `new Date` alone accepts typing mistakes: it takes "-5" for a day in 2001. */
export function parseInstant(text: string): Date {
  const at = new Date(/^\d+$/.test(text) ? Number(text) : /^\d{4}-\d{2}-\d{2}/.test(text) ? text : Number.NaN);
  if (!Number.isNaN(at.getTime())) return at;
  throw new InvalidArgumentError("Give a date such as 2026-12-31T23:00:00Z, or milliseconds since 1970.");
}

export async function readJson(text: string | undefined, what: string): Promise<unknown> {
  if (text === undefined) return undefined;
  const source = text === "-" ? await readStdin() : text;
  try {
    return JSON.parse(source) as unknown;
  } catch (error) {
    throw new HoldfastError(
      "USAGE",
      `${what} is not valid JSON: ${(error as Error).message}.`,
      `Quote it for the shell, e.g. '{"url":"https://…"}', or give - and pipe it in.`,
    );
  }
}

export function idsOrAll(command: Command): void {
  const ids = command.args;
  const { all } = command.opts<{ all?: boolean }>();
  if (ids.length > 0 !== (all === true)) return;
  throw new HoldfastError(
    "USAGE",
    all ? "Both ids and --all were given." : "Neither an id nor --all was given.",
    "Give the ids of jobs, or --all for everything in quarantine.",
  );
}

async function readStdin(): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of process.stdin) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString("utf8");
}

export function parseCost(text: string): Cost {
  const cost: Cost = {};
  for (const part of text.split(",")) {
    const [, name = "usd", value = ""] = /^\s*(?:(usd|tokens)\s*=)?\s*\$?(\d+(?:\.\d+)?)\s*$/.exec(part) ?? [];
    if (value === "" || name in cost) throw new InvalidArgumentError("Give dollars, e.g. 10, or usd=10,tokens=100000.");
    cost[name as keyof Cost] = Number(value);
  }
  return cost;
}

export interface RunOptions {
  concurrency?: number;
  maxFailures?: number;
  rerun?: string[];
  only?: string[];
  budget?: Cost;
  token?: string;
  workers?: number;
  fresh?: boolean;
  watch?: boolean;
}

export function addPaceOptions(command: Command): Command {
  return command
    .option("--budget <usd>", "how much it may spend in all: 10, or usd=10,tokens=100000 (default: the pipeline's)", parseCost)
    .option("--token <token>", `the confirmation token of a paused build, with --budget; ${TOKEN_SOURCES}`)
    .option("--concurrency <number>", "how many work items run at once in a process (default: 8)", atLeast(1))
    .option("--workers <number>", "number of further worker processes (default: none)", atLeast(1));
}

export function addChoiceOptions(command: Command): Command {
  return command
    .option("--max-failures <number>", "failed targets after which nothing new starts (default: the pipeline's)", atLeast(0))
    .option("--rerun <stage>", "run this stage again; may be repeated", collect<string>)
    .option(
      "--only <target>",
      "only this target (id, glob), or up to this stage if it is the name of one; may be repeated",
      collect<string>,
    );
}

export function buildOptions({ concurrency, maxFailures, rerun, only, budget }: Partial<RunOptions>): BuildOptions {
  return definedOnly({ concurrency, maxFailures, rerun, only, budget });
}

/** Where a token comes from, for help texts: other users can read a command line, and the shell keeps it in its history. */
export const TOKEN_SOURCES = "- reads standard input; default: HOLDFAST_TOKEN";

export async function readToken(token: string | undefined): Promise<string | undefined> {
  return token === "-" ? (await readStdin()).trim() : token;
}

export function environmentToken(): string | undefined {
  return process.env["HOLDFAST_TOKEN"] || undefined;
}

export function checkToken({ token, budget }: Partial<RunOptions>): void {
  if (token === undefined || budget !== undefined) return;
  throw new HoldfastError("USAGE", "--token was given without --budget.", "Add the new total, e.g. --budget 10.");
}

export function collect<T>(one: T, all: readonly T[] = []): T[] {
  return [...all, one];
}
