import type { Command } from "commander";
import type { Cost } from "../../core/cost.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { BuildOptions } from "../../runtime/builds/settings.ts";
import { atLeastOne, atLeastZero, standardInput } from "../arguments.ts";
import { costGiven } from "../terminal/cost.ts";

export interface RunOptions {
  concurrency?: number;
  maxFailures?: number;
  rerun?: string[];
  only?: string[];
  budget?: Cost;
  token?: string;
  /** Further processes; none, if it was not said. */
  workers?: number;
  fresh?: boolean;
  watch?: boolean;
}

/** What starting and resuming take alike. */
export function withPace(command: Command): Command {
  return command
    .option("--budget <usd>", "how much it may spend in all: 10, or usd=10,tokens=100000 (default: the pipeline's)", costGiven)
    .option("--token <token>", `the confirmation token of a paused build, with --budget; ${TOKEN_SOURCES}`)
    .option("--concurrency <number>", "how many pieces of work run at once in a process (default: 8)", atLeastOne)
    .option("--workers <number>", "so many further processes that work on it (default: none)", atLeastOne);
}

export function withChoice(command: Command): Command {
  return command
    .option(
      "--max-failures <number>",
      "past so many failed targets nothing new is started (default: the pipeline's)",
      atLeastZero,
    )
    .option("--rerun <stage>", "make what this stage has made anew; may be repeated", collect)
    .option("--only <target>", "only this target, or glob of them; or nothing behind this stage; may be repeated", collect);
}

export function buildOptions({ concurrency, maxFailures, rerun, only, budget }: Partial<RunOptions>): BuildOptions {
  return {
    ...(concurrency === undefined ? {} : { concurrency }),
    ...(maxFailures === undefined ? {} : { maxFailures }),
    ...(rerun === undefined ? {} : { rerun }),
    ...(only === undefined ? {} : { only }),
    ...(budget === undefined ? {} : { budget }),
  };
}

/** For help texts: a command line can be read by other users of the host, and is kept in the shell's history. */
export const TOKEN_SOURCES = "- reads standard input; default: HOLDFAST_TOKEN";

/** The token that --token gives, or standard input. */
export async function readToken(token: string | undefined): Promise<string | undefined> {
  return token === "-" ? (await standardInput()).trim() : token;
}

/** The token of a paused build, where --token gives none. */
export function environmentToken(): string | undefined {
  return process.env["HOLDFAST_TOKEN"] || undefined;
}

export function checkToken({ token, budget }: Partial<RunOptions>): void {
  if (token === undefined || budget !== undefined) return;
  throw new HoldfastError("USAGE", "--token was given without --budget.", "Say what it may spend in all, e.g. --budget 10.");
}

function collect(text: string, all: string[] = []): string[] {
  return [...all, text];
}
