import type { Command } from "commander";
import { HoldfastError } from "../core/errors.ts";
import type { Job } from "../core/job.ts";
import { plural } from "../core/words.ts";
import type { Holdfast } from "../runtime/holdfast.ts";
import { EXIT } from "./exit.ts";
import { answer } from "./render/output.ts";
import { oneLine, paint } from "./render/table.ts";

/** Asked for together, they share a commit. */
const BATCH_SIZE = 500;

/** What an operator does to jobs one by one. */
interface JobAction {
  /** What those are called to which it was done: `retried`. */
  done: string;
  /** True when it was done; otherwise `refuse` says why not. */
  act: (id: string) => Promise<boolean>;
  refuse: (job: Job) => string;
}

/** Done for some, refused for others: the answer says for which, and why. Exit code 1 when something was refused. */
export async function actOnJobs(command: Command, hf: Holdfast, ids: readonly string[], operation: JobAction): Promise<void> {
  const done: string[] = [];
  const refused: { id: string; reason: string }[] = [];
  for (let at = 0; at < ids.length; at += BATCH_SIZE) {
    const some = ids.slice(at, at + BATCH_SIZE);
    const reasons = await Promise.all(some.map((id) => actOn(hf, id, operation)));
    for (const [i, id] of some.entries()) {
      const reason = reasons[i] ?? null;
      if (reason === null) done.push(id);
      else refused.push({ id, reason });
    }
  }
  const verb = operation.done;
  if (refused.length > 0) process.exitCode = EXIT.failed;
  answer(command, { [verb]: done, refused }, () => {
    const said = `${verb[0]?.toUpperCase()}${verb.slice(1)} ${plural(done.length, "job")}.`;
    const troubles = refused.map(({ id, reason }) => `${paint("yellow", `not ${verb}`)} ${oneLine(id)}: ${oneLine(reason)}`);
    return [...(done.length > 0 || refused.length === 0 ? [said] : []), ...troubles].join("\n");
  });
}

/** Why not; null when it was done. */
async function actOn(hf: Holdfast, id: string, { act, refuse }: JobAction): Promise<string | null> {
  try {
    if (await act(id)) return null;
  } catch (error) {
    // One job's trouble is not its neighbours'.
    if (error instanceof HoldfastError && error.code === "KEY_TAKEN") return error.message;
    throw error;
  }
  const job = await hf.jobs.get(id);
  return job === null ? noSuchJob(id).message : refuse(job);
}

export function noSuchJob(id: string): HoldfastError {
  return new HoldfastError("NO_SUCH_JOB", `There is no job ${id}.`, "It may have been pruned; check the id and the database.");
}

/** The end of a help text. */
export function examples(...lines: string[]): string {
  return `\nExample:\n${lines.map((line) => `  ${line}`).join("\n")}`;
}
