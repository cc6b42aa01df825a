import type { Command } from "commander";
import { HoldfastError } from "../core/text/errors.ts";
import type { Job } from "../core/jobs/job.ts";
import { plural } from "../core/text/text.ts";
import { noSuchJob } from "../engine/client.ts";
import type { Holdfast } from "../holdfast.ts";
import { Operator } from "../operator/operator.ts";
import { atLeast } from "./arguments.ts";
import { openExisting } from "./database.ts";
import { EXIT } from "./exit.ts";
import { answer } from "./render/output.ts";
import { oneLine, paint } from "./render/table.ts";

interface Help {
  /** Set for commands in a group; `program.ts` has the summaries of the others. */
  summary?: string;
  description?: string;
  examples: readonly string[];
  isDefault?: boolean;
}

export function addCommand(
  parent: Command,
  name: string,
  { summary = "", description, examples, isDefault = false }: Help,
): Command {
  return parent
    .command(name, { isDefault })
    .summary(summary)
    .description(description ?? `${summary[0]?.toUpperCase()}${summary.slice(1)}.`)
    .addHelpText("after", `\nExample:\n${examples.map((line) => `  ${line}`).join("\n")}`);
}

export function addPageOptions(command: Command): Command {
  return command
    .option("--limit <number>", "at most this many", atLeast(1), 50)
    .option("--after <cursor>", "continue after this cursor, which the previous page printed");
}

export type Answer = [value: object | null, text: () => string];

export interface OpenDatabase {
  hf: Holdfast;
  operator: Operator;
  command: Command;
}

/** Opens the existing database for one command and prints the answer. A `preAction` hook checks the arguments before that. */
export function onDatabase<Given extends unknown[]>(
  run: (database: OpenDatabase, ...given: Given) => Promise<Answer | void>,
): (...given: [...Given, Command]) => Promise<void> {
  return async (...all) => {
    const command = all.at(-1) as Command;
    await using hf = await openExisting(command);
    const answered = await run({ hf, operator: new Operator(hf), command }, ...(all.slice(0, -1) as Given));
    if (answered) answer(command, ...answered);
  };
}

/** Jobs are changed in batches of this size. The jobs of a batch share a commit. */
const BATCH_SIZE = 500;

interface JobAction {
  done: string;
  /** Resolves to false if the job's state does not allow the action; `refuse` then gives the reason. */
  act: (id: string) => Promise<boolean>;
  refuse: (job: Job) => string;
}

export async function actOnJobs(hf: Holdfast, ids: readonly string[], action: JobAction): Promise<Answer> {
  const done: string[] = [];
  const refused: { id: string; reason: string }[] = [];
  for (let at = 0; at < ids.length; at += BATCH_SIZE) {
    const batch = ids.slice(at, at + BATCH_SIZE);
    const reasons = await Promise.all(batch.map((id) => actOn(hf, id, action)));
    for (const [i, id] of batch.entries()) {
      const reason = reasons[i] ?? null;
      if (reason === null) done.push(id);
      else refused.push({ id, reason });
    }
  }
  const verb = action.done;
  if (refused.length > 0) process.exitCode = EXIT.failed;
  const text = () => {
    const counted = `${verb[0]?.toUpperCase()}${verb.slice(1)} ${plural(done.length, "job")}.`;
    const reasons = refused.map(({ id, reason }) => `${paint("yellow", `not ${verb}`)} ${oneLine(id)}: ${oneLine(reason)}`);
    return [...(done.length > 0 || refused.length === 0 ? [counted] : []), ...reasons].join("\n");
  };
  return [{ [verb]: done, refused }, text];
}

async function actOn(hf: Holdfast, id: string, { act, refuse }: JobAction): Promise<string | null> {
  try {
    if (await act(id)) return null;
  } catch (error) {
    // A conflict of one job must not stop the action on the others.
    if (error instanceof HoldfastError && error.code === "KEY_TAKEN") return error.message;
    throw error;
  }
  const job = await hf.jobs.get(id);
  return job === null ? noSuchJob(id).message : refuse(job);
}
