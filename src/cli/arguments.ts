import { InvalidArgumentError, Option } from "commander";
import { HoldfastError } from "../core/errors.ts";
import { JOB_STATES } from "../core/job.ts";

export function wholeNumber(text: string): number {
  if (/^-?\d{1,15}$/.test(text)) return Number(text);
  throw new InvalidArgumentError("Give a whole number.");
}

export function atLeastZero(text: string): number {
  return atLeast(0, text);
}

export function atLeastOne(text: string): number {
  return atLeast(1, text);
}

function atLeast(least: number, text: string): number {
  if (/^\d{1,15}$/.test(text) && Number(text) >= least) return Number(text);
  throw new InvalidArgumentError(`Give a whole number of at least ${least}.`);
}

/** An ISO date, or milliseconds since 1970. Of other texts JavaScript makes dates that nobody has meant: "-5" is in 2001. */
export function instantGiven(text: string): Date {
  const at = new Date(/^\d+$/.test(text) ? Number(text) : /^\d{4}-\d{2}-\d{2}/.test(text) ? text : Number.NaN);
  if (!Number.isNaN(at.getTime())) return at;
  throw new InvalidArgumentError("Give a date such as 2026-12-31T23:00:00Z, or milliseconds since 1970.");
}

export function stateOption(): Option {
  return new Option("--state <state>", "only jobs in this state").choices(JOB_STATES);
}

/** JSON as an argument, or from standard input for `-`; undefined when nothing was given. `what` it is, for the error. */
export async function jsonGiven(text: string | undefined, what: string): Promise<unknown> {
  if (text === undefined) return undefined;
  const source = text === "-" ? await standardInput() : text;
  try {
    return JSON.parse(source) as unknown;
  } catch (error) {
    throw new HoldfastError(
      "USAGE",
      `${what} is no JSON: ${(error as Error).message}.`,
      `Quote it for the shell, e.g. '{"url":"https://…"}', or give - and pipe it in.`,
    );
  }
}

/** Ids, or --all, and not both. */
export function idsOrAll(ids: readonly string[], all: boolean | undefined): void {
  if (ids.length > 0 !== (all === true)) return;
  throw new HoldfastError(
    "USAGE",
    all ? "Both ids and --all were given." : "Neither an id nor --all was given.",
    "Give the ids of jobs, or --all for everything in quarantine.",
  );
}

export async function standardInput(): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of process.stdin) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString("utf8");
}
