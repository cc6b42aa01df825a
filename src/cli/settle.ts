import type { Command } from "commander";
import { ahead } from "../core/age.ts";
import type { Duration } from "../core/duration.ts";
import { HoldfastError } from "../core/errors.ts";
import type { Job } from "../core/job.ts";
import type { HeldClaim } from "../runtime/claim-token.ts";
import { Operator } from "../runtime/operator.ts";
import { readJson } from "./arguments.ts";
import { openExisting } from "./database.ts";
import { answer } from "./render/output.ts";
import { oneLine } from "./render/table.ts";
import { examples } from "./verb.ts";

interface Options {
  succeed?: string | true;
  fail?: string;
  release?: boolean;
  retry: boolean;
  delay?: string;
}

type End = "succeeded" | "failed" | "released";

export function settleCommand(parent: Command): void {
  parent
    .command("settle")
    .summary("end a claimed job: succeeded, failed or given back")
    .description(
      "End a claimed job: it succeeded, it failed, or it is given back. Once: when the lease was lost meanwhile, the job is " +
        "somebody else's, nothing is written, and the exit code is 1 (LEASE_LOST).",
    )
    .argument("<claim>", "as `holdfast claim` printed it")
    .option("--succeed [json]", "it succeeded, with this output; - reads it from standard input")
    .option("--fail <message>", "it failed with this error, and is tried again as its definition says")
    .option("--no-retry", "with --fail: do not try again")
    .option("--delay <duration>", "with --fail: try again after this long, e.g. 1m")
    .option("--release", "give it back untouched; nothing is charged")
    .addHelpText(
      "after",
      examples(
        `holdfast settle "$CLAIM" --succeed '{"verdict":"fine"}'`,
        'holdfast settle "$CLAIM" --fail "the site is down" --delay 10m',
        'holdfast settle "$CLAIM" --release',
      ),
    )
    .action(async (token: string, options: Options, command: Command) => {
      const end = endOf(options);
      const output =
        end === "succeeded" && options.succeed !== true
          ? await readJson(options.succeed, "The output after --succeed")
          : undefined;
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const claim = operator.claimOf(token);
      await settle(claim, end, output, options);
      const job = await hf.jobs.get(claim.id);
      answer(command, { id: claim.id, settled: end, ...(job === null ? {} : { state: job.state, runAt: job.runAt }) }, () => {
        return `Job ${oneLine(claim.id)} ${end === "released" ? "was given back" : end}.${next(end, job, operator.now())}`;
      });
    });
}

function endOf({ succeed, fail, release, retry, delay }: Options): End {
  const ends: End[] = [
    ...(succeed === undefined ? [] : ["succeeded" as const]),
    ...(fail === undefined ? [] : ["failed" as const]),
    ...(release ? ["released" as const] : []),
  ];
  const [end] = ends;
  if (end === undefined || ends.length > 1) {
    throw new HoldfastError(
      "USAGE",
      end === undefined ? "It was not said how the job ended." : "It was said more than once how the job ended.",
      "Give one of --succeed, --fail and --release.",
    );
  }
  if (end !== "failed" && (!retry || delay !== undefined)) {
    throw new HoldfastError("USAGE", "--no-retry and --delay belong to --fail.", "Leave them out, or say --fail MESSAGE.");
  }
  if (!retry && delay !== undefined) {
    throw new HoldfastError("USAGE", "Both --no-retry and --delay were given.", "Leave one of them out.");
  }
  return end;
}

function settle(claim: HeldClaim, end: End, output: unknown, { fail, retry, delay }: Options): Promise<void> {
  switch (end) {
    case "succeeded":
      return claim.succeed(output);
    case "failed":
      return claim.fail(fail, {
        ...(retry ? {} : { retry }),
        ...(delay === undefined ? {} : { delay: delay as Duration }),
      });
    case "released":
      return claim.release();
  }
}

/** What becomes of it, as far as it can be told a moment later. */
function next(end: End, job: Job | null, now: number): string {
  if (end !== "failed" || job?.state !== "pending") return "";
  return job.runAt > now ? ` It is tried again in ${ahead(job.runAt - now)}.` : " It is tried again.";
}
