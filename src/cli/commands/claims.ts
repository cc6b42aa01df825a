import { definedOnly } from "../../core/text/options.ts";
import { hostname } from "node:os";
import { setTimeout as pause } from "node:timers/promises";
import type { Command } from "commander";
import { untilText, type Duration, toMillis } from "../../core/text/duration.ts";
import { HoldfastError, LeaseLostError } from "../../core/text/errors.ts";
import type { Job } from "../../core/jobs/job.ts";
import { renewalInterval } from "../../core/jobs/lease.ts";
import { type HeldClaim, leaseOf } from "../../engine/claim.ts";
import type { Holdfast } from "../../holdfast.ts";
import { Operator, type TokenClaim } from "../../operator/operator.ts";
import { readJson } from "../arguments.ts";
import { openExisting, sameDatabase } from "../database.ts";
import { EXIT } from "../exit.ts";
import { answer, isJson, workerLog, writeLine } from "../render/output.ts";
import { labelled, oneLine } from "../render/table.ts";
import { untilInterrupted } from "../signals.ts";
import { addCommand } from "../verb.ts";

interface ClaimOptions {
  name?: string;
  worker?: string;
  lease: string;
  wait?: string;
  exclusive?: boolean;
  shell?: boolean;
}

export function claimCommand(parent: Command): void {
  addCommand(parent, "claim", {
    description:
      "Claim a job by hand, and print the job and its claim, a string for `renew` and `settle`. No other worker gets the " +
      "job before the lease expires, even if the script that claimed it dies. A job with an expired lease is reclaimed. " +
      "Exit code 1: there is no job.",
    examples: ["holdfast claim reviews --json", "holdfast claim --name review --worker anna --lease 10m --wait 30s --shell"],
  })
    .argument("[queue]", "claim a job of this queue")
    .option("--name <name>", "claim a job of this name instead, in any queue and version")
    .option("--worker <name>", "name of the claimer (default: this host and the shell's pid)")
    .option("--lease <duration>", "how long the lease lasts if it is not renewed", "5m")
    .option("--wait <duration>", "wait this long for a job, e.g. 30s")
    .option("--exclusive", "also lock the queue: no other worker claims from it until this claim ends")
    .option("--shell", "print variables for a shell's eval: CLAIM, JOB_ID, JOB_INPUT …")
    .action(async (queue: string | undefined, options: ClaimOptions, command: Command) => {
      const from = sourceOf(queue, options.name);
      const lease = leaseOf(options.lease as Duration, "--lease");
      const wait = options.wait === undefined ? undefined : toMillis(options.wait as Duration, "--wait");
      if (options.shell && isJson(command)) throw new HoldfastError("USAGE", "Both --shell and --json were given.", "Give one.");
      using over = untilInterrupted();
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const { worker = `${hostname()}:${process.ppid}`, exclusive } = options;
      const claimed = await operator.claim(from, { worker, lease, ...definedOnly({ wait, exclusive }) }, over);
      if (claimed !== null) {
        await printClaim(operator, claimed, lease, options.shell ? "shell" : isJson(command) ? "json" : "text");
      } else if (over.aborted) {
        process.exitCode = EXIT.interrupted;
      } else {
        process.exitCode = EXIT.failed;
        if (isJson(command)) answer(command, null, () => "");
        else
          process.stderr.write(
            `Nothing to claim${(await isPaused(hf, from)) ? `: queue ${oneLine(queue as string)} is paused` : ""}.\n`,
          );
      }
    });
}

function sourceOf(queue: string | undefined, name: string | undefined): string | { anyVersionOf: string } {
  if (queue !== undefined && name === undefined) return queue;
  if (queue === undefined && name !== undefined) return { anyVersionOf: name };
  throw new HoldfastError(
    "USAGE",
    queue === undefined ? "Neither a queue nor --name was given." : "Both a queue and --name were given.",
    "Give one of them: holdfast claim QUEUE, or holdfast claim --name NAME.",
  );
}

async function isPaused(hf: Holdfast, from: string | { anyVersionOf: string }): Promise<boolean> {
  return (await hf.queues.list({ incomplete: true })).some(({ name, paused }) => paused && name === from);
}

async function printClaim(operator: Operator, claimed: TokenClaim, lease: number, as: "json" | "shell" | "text"): Promise<void> {
  const { token: claim, ...rest } = claimed;
  const texts = {
    json: () => JSON.stringify({ claim, ...rest }),
    shell: () => shellVariables(claimed),
    text: () => claimPage(claimed, lease),
  };
  // The line could not be written, so no script has the claim: release the job now instead of when its lease expires.
  if (!(await writeLine(texts[as]()))) await operator.claimOf(claim).release();
}

/** Quotes every value, so that the shell never runs a part of a job's input. */
function shellVariables({ token, job, idempotencyKey }: TokenClaim): string {
  const values = {
    CLAIM: token,
    JOB_ID: job.id,
    JOB_NAME: job.name,
    JOB_QUEUE: job.queue,
    JOB_ATTEMPT: String(job.attempt),
    JOB_INPUT: JSON.stringify(job.input) ?? "",
    IDEMPOTENCY_KEY: idempotencyKey,
  };
  return Object.entries(values)
    .map(([name, value]) => `${name}='${value.replaceAll("'", `'\\''`)}'`)
    .join("\n");
}

function claimPage({ token, job }: TokenClaim, lease: number): string {
  return labelled([
    ["claim", token],
    ["job", oneLine(job.id)],
    ["name", oneLine(job.name)],
    ["queue", oneLine(job.queue)],
    ["attempt", String(job.attempt)],
    ["lease", untilText(lease)],
    ["input", oneLine(JSON.stringify(job.input) ?? "none")],
  ]);
}

const RETRY_MS = 500;

export function renewCommand(parent: Command): void {
  addCommand(parent, "renew", {
    description:
      "Renew the lease of a claimed job. With --keep, the command renews it again and again until standard input ends. " +
      "Connect standard input to the script that works on the job (see the example): the command then ends with the " +
      "script, also when the script is killed. Exit code 1: the lease was lost (LEASE_LOST).",
    examples: ['holdfast renew "$CLAIM" --lease 10m', 'exec 9> >(holdfast renew "$CLAIM" --lease 1m --keep)   # bash'],
  })
    .argument("<claim>", "as `holdfast claim` printed it")
    .option("--lease <duration>", "how long the lease lasts from now", "5m")
    .option("--keep", "renew until standard input ends")
    .action(async (token: string, options: { lease: Duration; keep?: boolean }, command: Command) => {
      const lease = toMillis(options.lease, "--lease");
      using end = options.keep ? awaitEnd() : null;
      await using hf = await openExisting(command);
      const claim = new Operator(hf).claimOf(token);
      const onRenewed = ({ leaseExpiresAt }: { leaseExpiresAt: number }) =>
        answer(
          command,
          { id: claim.id, leaseExpiresAt },
          () => `Job ${oneLine(claim.id)} has a lease of ${untilText(lease)} from now.`,
        );
      if (end === null) return onRenewed(await explainLost(claim.renew(lease), claim, command));
      await explainLost(keepRenewing(claim, lease, end.over, onRenewed), claim, command);
      if (end.signalled.aborted) process.exitCode = EXIT.interrupted;
    });
}

/** Aborts at the end of standard input or at a signal. It listens before the database is open: a script may settle quickly. */
function awaitEnd(): { over: AbortSignal; signalled: AbortSignal } & Disposable {
  const signalled = untilInterrupted();
  const ended = new AbortController();
  for (const event of ["end", "close", "error"]) process.stdin.once(event, () => ended.abort());
  process.stdin.resume();
  const over = AbortSignal.any([ended.signal, signalled]);
  return { over, signalled, [Symbol.dispose]: () => signalled[Symbol.dispose]() };
}

async function keepRenewing(
  claim: HeldClaim,
  lease: number,
  over: AbortSignal,
  onRenewed: (renewed: { leaseExpiresAt: number }) => void,
): Promise<void> {
  let renewedAt: number | null = null;
  while (!over.aborted) {
    const asked = performance.now();
    let wait = renewalInterval(lease);
    try {
      const renewed = await claim.renew(lease);
      if (renewedAt === null) onRenewed(renewed);
      renewedAt = asked;
    } catch (error) {
      // The script has settled the job and closed the pipe.
      if (over.aborted) return;
      // A full disk or a busy file may recover while the lease lasts.
      const isLost = error instanceof HoldfastError && error.code === "LEASE_LOST";
      if (renewedAt === null || isLost || asked - renewedAt > lease) throw error;
      workerLog("warn").warn("the lease could not be renewed; it is tried again", { error: String(error) });
      wait = Math.min(RETRY_MS, wait);
    }
    await pause(wait, null, { signal: over }).catch(() => {});
  }
}

/** Gives a lost lease a hint that names a command, because the library's hint is about handlers. */
async function explainLost<T>(done: Promise<T>, { id }: HeldClaim, command: Command): Promise<T> {
  try {
    return await done;
  } catch (error) {
    if (!(error instanceof LeaseLostError)) throw error;
    const show = `holdfast jobs show ${id}${sameDatabase(command)}`;
    throw new HoldfastError("LEASE_LOST", error.message, `Stop working on the job. \`${show}\` shows which worker holds it.`, {
      cause: error,
    });
  }
}

interface SettleOptions {
  succeed?: string | true;
  fail?: string;
  release?: boolean;
  retry: boolean;
  delay?: string;
}

type Outcome = "succeeded" | "failed" | "released";

export function settleCommand(parent: Command): void {
  addCommand(parent, "settle", {
    description:
      "Record the outcome of a claimed job: it succeeded, failed, or is released. If the lease was lost, nothing is " +
      "written, and the exit code is 1 (LEASE_LOST).",
    examples: [
      `holdfast settle "$CLAIM" --succeed '{"verdict":"fine"}'`,
      'holdfast settle "$CLAIM" --fail "the site is down" --delay 10m',
      'holdfast settle "$CLAIM" --release',
    ],
  })
    .argument("<claim>", "as `holdfast claim` printed it")
    .option("--succeed [json]", "the job succeeded with this output; - reads the output from standard input")
    .option(
      "--fail <message>",
      "the attempt failed with this error; the job runs again while it has attempts left (default: 3 in all)",
    )
    .option("--no-retry", "with --fail: the job fails for good")
    .option("--delay <duration>", "with --fail: run the job again after this long, e.g. 1m")
    .option("--release", "return the job to its queue; the attempt is not counted")
    .action(async (token: string, options: SettleOptions, command: Command) => {
      const end = outcomeOf(options);
      const output =
        end === "succeeded" && options.succeed !== true
          ? await readJson(options.succeed, "The output after --succeed")
          : undefined;
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const claim = operator.claimOf(token);
      await explainLost(settle(claim, end, output, options), claim, command);
      const job = await hf.jobs.get(claim.id);
      answer(command, { id: claim.id, settled: end, ...(job === null ? {} : { state: job.state, runAt: job.runAt }) }, () => {
        return settledText(oneLine(claim.id), end, job, operator.now());
      });
    });
}

function outcomeOf({ succeed, fail, release, retry, delay }: SettleOptions): Outcome {
  const ends: Outcome[] = [
    ...(succeed === undefined ? [] : ["succeeded" as const]),
    ...(fail === undefined ? [] : ["failed" as const]),
    ...(release ? ["released" as const] : []),
  ];
  const [end] = ends;
  if (end === undefined || ends.length > 1) {
    throw new HoldfastError(
      "USAGE",
      end === undefined ? "No outcome was given." : "More than one outcome was given.",
      "Give one of --succeed, --fail and --release.",
    );
  }
  if (end !== "failed" && (!retry || delay !== undefined)) {
    throw new HoldfastError("USAGE", "--no-retry and --delay belong to --fail.", "Leave them out, or add --fail MESSAGE.");
  }
  if (!retry && delay !== undefined) {
    throw new HoldfastError("USAGE", "Both --no-retry and --delay were given.", "Leave one of them out.");
  }
  return end;
}

function settle(claim: HeldClaim, end: Outcome, output: unknown, { fail, retry, delay }: SettleOptions): Promise<void> {
  switch (end) {
    case "succeeded":
      return claim.succeed(output);
    case "failed":
      return claim.fail(fail, { ...(retry ? {} : { retry }), ...definedOnly({ delay: delay as Duration | undefined }) });
    case "released":
      return claim.release();
  }
}

function settledText(id: string, end: Outcome, job: Job | null, now: number): string {
  if (end !== "failed" || job?.state !== "pending") return `Job ${id} ${end === "released" ? "was released" : end}.`;
  const when = job.runAt > now ? ` in ${untilText(job.runAt - now)}` : "";
  return `The attempt failed. Job ${id} runs again${when}.`;
}
