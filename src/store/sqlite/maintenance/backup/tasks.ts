import { fork } from "node:child_process";
import { once } from "node:events";
import { Worker } from "node:worker_threads";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { OnProgress } from "../../../backups.ts";
import { ownFile, ownThread } from "../../../own-file.ts";
import type { FromTask, Thrown, Tasks } from "./task-runner.ts";

type Input<Name extends keyof Tasks> = Parameters<Tasks[Name]>[0];
type Answer<Name extends keyof Tasks> = Awaited<ReturnType<Tasks[Name]>>;

export function runTask<Name extends keyof Tasks>(
  task: Name,
  input: Input<Name>,
  onProgress: OnProgress = () => {},
): Promise<Answer<Name>> {
  return new Promise((resolve, reject) => {
    const { code, options } = ownThread(fileOf("task-runner", `the task "${task}"`));
    const thread = new Worker(code, { workerData: { task, input }, ...options });
    thread.on("message", (message: FromTask) => {
      if ("progress" in message) onProgress(message.progress);
      else if ("answer" in message) resolve(message.answer as Answer<Name>);
      else reject(toError(message.failure));
    });
    thread.on("error", reject);
    thread.on("exit", () => reject(new Error(`the thread for "${task}" ended without an answer`)));
  });
}

/** Runs a task in a child process, so that a crash of SQLite in a damaged file ends no job. */
export async function runTaskApart<Name extends keyof Tasks>(task: Name, input: Input<Name>): Promise<Answer<Name>> {
  const child = fork(ownFile(fileOf("task-process", `the task "${task}"`)), [], {
    execArgv: [],
    stdio: ["ignore", "ignore", "inherit", "ipc"],
  });
  // The child may exit before its answer is read from the channel.
  const ended = Promise.all([once(child, "exit"), once(child, "disconnect")]).then(([[code, signal]]) => {
    throw new Error(`the process for "${task}" ended (${signal ?? `code ${code}`}) without an answer`);
  });
  ended.catch(() => {});
  child.send({ task, input });
  const [message] = (await Promise.race([once(child, "message"), ended])) as [FromTask];
  // Wait until the child has exited, so that it has closed its files when the caller uses the answer.
  await ended.catch(() => {});
  if ("failure" in message) throw toError(message.failure);
  return (message as { answer: Answer<Name> }).answer;
}

export function fileOf(name: string, runs: string): Parameters<typeof ownFile>[0] {
  return { here: import.meta.url, name: `./${name}`, runs };
}

function toError({ code, message, hint, stack }: Thrown): Error {
  const error = code === null ? new Error(message) : new HoldfastError(code, message, hint);
  error.stack = stack;
  return error;
}
