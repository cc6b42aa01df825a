import { hostname } from "node:os";
import type { Command } from "commander";
import { ahead } from "../core/age.ts";
import { type Duration, toMillis } from "../core/duration.ts";
import { HoldfastError } from "../core/errors.ts";
import { type Claim, leaseOf } from "../runtime/claim.ts";
import type { Holdfast } from "../runtime/holdfast.ts";
import { Operator } from "../runtime/operator.ts";
import { openExisting } from "./database.ts";
import { EXIT } from "./exit.ts";
import { answer, isJson, writeLine } from "./render/output.ts";
import { oneLine, paint } from "./render/table.ts";
import { untilInterrupted } from "./signals.ts";
import { examples } from "./verb.ts";

interface Options {
  name?: string;
  worker?: string;
  lease: string;
  wait?: string;
  exclusive?: boolean;
  shell?: boolean;
}

/** What is printed: all that a script needs to do the job and to settle it. */
interface Handed {
  claim: string;
  job: Claim["job"];
  idempotencyKey: string;
  expiresAt: number;
}

export function claimCommand(parent: Command): void {
  parent
    .command("claim")
    .summary("take a job by hand, to settle it later")
    .description(
      "Take a job by hand and print it, with a claim that `renew` and `settle` take. Nobody else gets the job until its lease " +
        "ends, whether the script that holds it lives or not; then it is taken back and handed out again. Exit code 1 when " +
        "there is no job.",
    )
    .argument("[queue]", "the queue to take from")
    .option("--name <name>", "jobs of this name, in any queue and version, instead of a queue")
    .option("--worker <name>", "who takes it, for people to read (default: this host and the shell's pid)")
    .option("--lease <duration>", "how long the job is held unless it is renewed", "5m")
    .option("--wait <duration>", "wait this long for a job, e.g. 30s")
    .option("--exclusive", "lock the queue as well: nobody else takes from it until this claim is over")
    .option("--shell", "print variables for a shell's eval: CLAIM, JOB_ID, JOB_INPUT …")
    .addHelpText(
      "after",
      examples("holdfast claim reviews --json", "holdfast claim --name review --worker anna --lease 10m --wait 30s --shell"),
    )
    .action(async (queue: string | undefined, options: Options, command: Command) => {
      const from = sourceOf(queue, options.name);
      const lease = leaseOf(options.lease as Duration);
      const wait = options.wait === undefined ? undefined : toMillis(options.wait as Duration, "--wait");
      if (options.shell && isJson(command)) throw new HoldfastError("USAGE", "Both --shell and --json were given.", "Give one.");
      using over = untilInterrupted();
      await using hf = await openExisting(command);
      const claim = await take(hf, from, { ...options, wait }, over);
      if (claim === "interrupted") {
        process.exitCode = EXIT.interrupted;
      } else if (claim === null) {
        process.exitCode = EXIT.failed;
        if (isJson(command)) answer(command, null, () => "");
        else process.stderr.write("Nothing to claim.\n");
      } else {
        await hand(hf, claim, lease, options.shell ? "shell" : isJson(command) ? "json" : "text");
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

/** A signal while it waits: what was claimed at that very moment is given back. */
async function take(
  hf: Holdfast,
  from: string | { anyVersionOf: string },
  { worker = `${hostname()}:${process.ppid}`, lease, wait, exclusive }: Omit<Options, "wait"> & { wait: number | undefined },
  over: AbortSignal,
): Promise<Claim | null | "interrupted"> {
  if (over.aborted) return "interrupted";
  over.addEventListener("abort", () => void hf.close().catch(() => {}));
  try {
    return await hf.claim(from, {
      worker,
      lease: lease as Duration,
      ...(wait === undefined ? {} : { wait }),
      ...(exclusive === undefined ? {} : { exclusive }),
    });
  } catch (error) {
    if (over.aborted) return "interrupted";
    throw error;
  }
}

async function hand(hf: Holdfast, claim: Claim, lease: number, as: "json" | "shell" | "text"): Promise<void> {
  const operator = new Operator(hf);
  const handed: Handed = {
    claim: operator.tokenOf(claim),
    job: claim.job,
    idempotencyKey: `${operator.databaseId}:${claim.job.id}`,
    expiresAt: operator.now() + lease,
  };
  const text = as === "json" ? JSON.stringify(handed) : as === "shell" ? variables(handed) : page(handed, lease);
  // Nobody knows of the claim then: better back at once than when its lease ends.
  if (!(await writeLine(text))) await claim.release();
}

/** Quoted, so that nothing in a job's input is ever run. */
function variables({ claim, job, idempotencyKey }: Handed): string {
  const values = {
    CLAIM: claim,
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

function page({ claim, job }: Handed, lease: number): string {
  const facts: [string, string][] = [
    ["claim", claim],
    ["job", job.id],
    ["name", job.name],
    ["queue", job.queue],
    ["attempt", String(job.attempt)],
    ["held", `for ${ahead(lease)}`],
    ["input", JSON.stringify(job.input) ?? "none"],
  ];
  return facts.map(([label, value]) => `${paint("dim", label.padEnd(10))}${oneLine(value)}`).join("\n");
}
