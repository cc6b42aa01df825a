import { fork } from "node:child_process";
import { toJobError, type JobError } from "../../core/jobs/job.ts";
import type { Target } from "../../core/pipelines/source.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { SettleAs } from "../../engine/attempt.ts";
import { inheritedArguments, ownFile } from "../../store/own-file.ts";
import type { Log } from "../../engine/log.ts";
import type { NewJob } from "../../store/store.ts";
import { ClaimedFile } from "../sources/file-target.ts";
import { type Expansion, gatherInputs, type HandedContext, type Task } from "../stage-attempt.ts";
import { outputOf } from "../values.ts";
import type { Fingerprint } from "../../core/pipelines/work.ts";
import type { Cost } from "../../core/pipelines/budget.ts";
import type { LeaseRef } from "../../core/jobs/lease.ts";
import type { Outcome } from "../../core/jobs/retry.ts";
import type { DriverName } from "../../store/sqlite/driver.ts";

/** A handler that ignores its signal is killed after this time. */
const KILL_GRACE_MS = 5_000;

interface Returned {
  output: unknown;
  isUnchanged: boolean;
  followUps: NewJob[];
}

type Answers = Record<keyof Calls, (...args: never[]) => unknown>;

/** Runs a stage's handler in a child process. If the child dies, for example out of memory, only this attempt has crashed. */
async function runIsolated(task: TaskMessage, answers: Answers, signal: AbortSignal): Promise<Returned> {
  const entry = ownFile({ here: import.meta.url, name: "./child", runs: 'the process of a stage with isolate: "process"' });
  // The handler's output goes to stderr: stdout may be a command's JSON.
  const child = fork(entry, [], {
    serialization: "advanced",
    stdio: ["ignore", 2, 2, "ipc"],
    execArgv: inheritedArguments(),
  });
  const end = Promise.withResolvers<Returned>();
  const send = (message: ToChild): void => void (child.connected && child.send(message, () => {}));
  child.on("message", (message: FromChild) => hear(message, { task, answers, send, end }));
  child.on("error", (error) => end.reject(error));
  // The last messages may still arrive after the exit, so wait for the disconnect.
  const died = (): void => end.reject(new SettleAs({ kind: "crashed" }));
  child.on("exit", () => (child.connected ? child.once("disconnect", died) : setImmediate(died)));
  let timer: NodeJS.Timeout | undefined;
  const abort = (): void => {
    const { name, message, code = "STOPPING" } = toJobError(signal.reason);
    send({ type: "abort", reason: { name, code, message, hint: (signal.reason as HoldfastError).hint ?? "" } });
    timer = setTimeout(() => child.kill("SIGKILL"), KILL_GRACE_MS);
  };
  if (signal.aborted) abort();
  else signal.addEventListener("abort", abort, { once: true });
  try {
    return await end.promise;
  } finally {
    signal.removeEventListener("abort", abort);
    clearTimeout(timer);
    if (child.exitCode === null && child.signalCode === null) child.kill("SIGKILL");
  }
}

interface Talk {
  task: TaskMessage;
  answers: Answers;
  send: (message: ToChild) => void;
  end: PromiseWithResolvers<Returned>;
}

function hear(message: FromChild, talk: Talk): void {
  switch (message.type) {
    case "ready":
      return talk.send({ type: "run", task: talk.task });
    case "call":
      return void answer(message, talk);
    case "returned": {
      const { output, isUnchanged, followUps } = message;
      return talk.end.resolve({
        output: typeof output === "string" ? JSON.parse(output) : (output ?? undefined),
        isUnchanged,
        followUps,
      });
    }
    case "threw": {
      const { outcome } = message;
      const error = "error" in outcome ? outcome.error : null;
      if (error?.code !== "BYTES_CHANGED") return talk.end.reject(new SettleAs(outcome));
      return talk.end.reject(new HoldfastError("BYTES_CHANGED", error.message, "The new bytes get work of their own."));
    }
  }
}

async function answer({ call, name, args }: FromChild & { type: "call" }, { answers, send, end }: Talk): Promise<void> {
  try {
    const value = await answers[name](...(args as never[]));
    if (call !== null) send({ type: "answer", call, value });
  } catch (error) {
    // An invalid message of the child counts as an error of the handler.
    if (call === null) end.reject(error);
    else send({ type: "refusal", call, error: toJobError(error) });
  }
}

const PAGE = 100;

export async function callIsolated(task: Task, handed: HandedContext, expansion: Expansion | null): Promise<unknown> {
  const inputs = gatherInputs(task);
  const answers: Answers = {
    load: () => handed.checkpoint.load(),
    save: (value: unknown) => handed.checkpoint.save(value),
    artifact: (title: string, data: Uint8Array | string | { path: string }) => handed.artifact(title, data),
    members: async () => {
      const page: Member[] = [];
      for (let next; page.length < PAGE && !(next = await inputs.next()).done;) {
        const { target, output, outputs } = next.value;
        page.push({ target: targetMessage(target as Target), output, outputs });
      }
      return page;
    },
    targets: async (yielded: unknown[]) => {
      for (const one of yielded) await expansion?.add(one);
    },
    cost: handed.cost,
    progress: handed.progress,
    log: (level: keyof Log, message: string, data: object | undefined) => handed.log[level](message, data),
  };
  const returned = await runIsolated(await taskMessage(task, handed), answers, task.job.signal);
  if (!returned.isUnchanged) task.isSpoiled = true;
  if (returned.followUps.length > 0) (task.attempt.followUps ??= []).push(...returned.followUps);
  return returned.output;
}

function targetMessage(target: Target): TargetMessage {
  const { id, hash, parent } = target;
  return {
    id,
    hash,
    ...(parent === undefined ? {} : { parent: targetMessage(parent) }),
    ...(target instanceof ClaimedFile ? { file: target.claim } : {}),
  };
}

async function taskMessage(task: Task, handed: HandedContext): Promise<TaskMessage> {
  const { runtime, attempt, place, row, live, view } = task;
  const { location, artifactFolder } = runtime.engine;
  const { job, fence, claimed } = attempt;
  const isFiles = runtime.model.definition.source.kind === "files";
  if (isFiles) await runtime.artifacts();
  return {
    module: runtime.model.definition.module as string,
    pipeline: runtime.model.name,
    stage: place.stage.name,
    output: outputOf(place.stage.name, row.path),
    lease: { job, fence },
    id: claimed.id,
    attempt: claimed.attempt,
    scheduledFor: handed.scheduledFor,
    idempotencyKey: handed.idempotencyKey,
    input: handed.input,
    outputs: handed.outputs,
    target: targetMessage(live.target),
    ...(place.stage.kind === "gather" ? { failed: view.build.failed } : {}),
    artifacts: isFiles
      ? { folder: artifactFolder.path as string, driver: location.kind === "sqlite" ? location.driver : "node:sqlite" }
      : null,
  };
}

export interface TargetMessage {
  id: string;
  hash: string;
  parent?: TargetMessage;
  file?: { path: string; fingerprint: Fingerprint; snapshot: boolean };
}

export interface TaskMessage {
  module: string;
  pipeline: string;
  stage: string;
  /** Names the output in errors. */
  output: string;
  lease: LeaseRef;
  id: string;
  attempt: number;
  scheduledFor: Date | null;
  idempotencyKey: string;
  input: unknown;
  outputs: Record<string, unknown>;
  target: TargetMessage;
  failed?: number;
  artifacts: { folder: string; driver: DriverName } | null;
}

export interface Member {
  target: TargetMessage;
  output: unknown;
  outputs: Record<string, unknown>;
}

export interface Calls {
  load: { args: []; answer: unknown };
  save: { args: [unknown]; answer: void };
  artifact: {
    args: [name: string, data: Uint8Array | string | { path: string }];
    answer: { name: string; hash: string; size: number };
  };
  /** Reads a page of members. An empty page means that there are no more. */
  members: { args: []; answer: Member[] };
  targets: { args: [unknown[]]; answer: void };
  cost: { args: [Cost]; answer: void };
  progress: { args: [fraction: number, message: string | undefined]; answer: void };
  log: { args: [level: keyof Log, message: string, data: object | undefined]; answer: void };
}

export type ToChild =
  | { type: "run"; task: TaskMessage }
  | { type: "abort"; reason: { name: string; code: string; message: string; hint: string } }
  | { type: "answer"; call: number; value: unknown }
  | { type: "refusal"; call: number; error: JobError };

export type FromChild =
  | { type: "ready" }
  /** `call` is null if the child does not wait for the answer. */
  | { type: "call"; call: number | null; name: keyof Calls; args: unknown[] }
  /** `isUnchanged` says that the file still has the bytes that it was claimed with. */
  | { type: "returned"; output: string | Uint8Array | null; isUnchanged: boolean; followUps: NewJob[] }
  | { type: "threw"; outcome: Outcome };
