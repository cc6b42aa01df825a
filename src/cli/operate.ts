import type { Command } from "commander";
import { HoldfastError } from "../core/errors.ts";
import type { Job } from "../core/job.ts";
import { plural } from "../core/words.ts";
import type { Holdfast } from "../runtime/holdfast.ts";
import { EXIT } from "./exit.ts";
import { paint } from "./terminal/colours.ts";
import { answer } from "./terminal/output.ts";
import { oneLine } from "./terminal/text.ts";

/** Asked for together, they share a commit. */
const TOGETHER = 500;

/** What an operator does to jobs one by one: done for some, refused for others, and why. */
export interface Operated {
  done: string[];
  refused: { id: string; reason: string }[];
}

/** `act` answers true when it was done; otherwise `refuse` says why not. */
export async function operate(
  hf: Holdfast,
  ids: readonly string[],
  act: (id: string) => Promise<boolean>,
  refuse: (job: Job) => string,
): Promise<Operated> {
  const operated: Operated = { done: [], refused: [] };
  for (let at = 0; at < ids.length; at += TOGETHER) {
    const some = ids.slice(at, at + TOGETHER);
    const reasons = await Promise.all(some.map((id) => attempt(hf, id, act, refuse)));
    for (const [i, id] of some.entries()) {
      const reason = reasons[i] ?? null;
      if (reason === null) operated.done.push(id);
      else operated.refused.push({ id, reason });
    }
  }
  return operated;
}

async function attempt(
  hf: Holdfast,
  id: string,
  act: (id: string) => Promise<boolean>,
  refuse: (job: Job) => string,
): Promise<string | null> {
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

/** Names what was done (`retried`) in the answer; exit code 1 when something was refused. */
export function answerOperated(command: Command, verb: string, { done, refused }: Operated): void {
  if (refused.length > 0) process.exitCode = EXIT.failed;
  answer(command, { [verb]: done, refused }, () => {
    const said = `${verb[0]?.toUpperCase()}${verb.slice(1)} ${plural(done.length, "job")}.`;
    const troubles = refused.map(({ id, reason }) => `${paint("yellow", `not ${verb}`)} ${oneLine(id)}: ${oneLine(reason)}`);
    return [...(done.length > 0 || refused.length === 0 ? [said] : []), ...troubles].join("\n");
  });
}

export function noSuchJob(id: string): HoldfastError {
  return new HoldfastError("NO_SUCH_JOB", `There is no job ${id}.`, "It may have been pruned; check the id and the database.");
}
