import { createWriteStream } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pipeline as flow } from "node:stream/promises";
import { Artifacts } from "../../artifacts/artifacts.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { followUpId } from "../../core/text/ids.ts";
import { toJson } from "../../core/text/json.ts";
import { isPipeline, type PipelineDefinition, pipelineOf } from "../../core/pipelines/pipeline.ts";
import type { Cost } from "../../core/pipelines/budget.ts";
import type { Target } from "../../core/pipelines/source.ts";
import type { StageDefinition } from "../../core/pipelines/stage.ts";
import { addFollowUp, SettleAs, permanentFailure, outcomeOf } from "../../engine/attempt.ts";
import { definitionOf } from "../../engine/definition.ts";
import { systemClock } from "../../engine/host.ts";
import type { Log } from "../../engine/log.ts";
import { STOP_SIGNALS } from "../../engine/shared-engine.ts";
import type { Calls, FromChild, Member, ToChild, TargetMessage, TaskMessage } from "./parent.ts";
import { ClaimedFile } from "../sources/file-target.ts";
import { Alive } from "../../store/alive.ts";
import type { NewJob } from "../../store/store.ts";

const BATCH = 200;

const say = (message: FromChild): void => void process.send?.(message);
const waiting = new Map<number, PromiseWithResolvers<unknown>>();
const controller = new AbortController();
let calls = 0;
let isOver = false;
let artifacts: Artifacts | null = null;

// Ctrl-C reaches the child, too; its parent decides how the child stops.
for (const signal of STOP_SIGNALS) process.on(signal, () => {});
process.on("disconnect", () => process.exit(isOver ? 0 : 1));
process.on("message", (message: ToChild) => {
  switch (message.type) {
    case "run":
      return void run(message.task);
    case "abort": {
      const { code, message: text, hint } = message.reason;
      return controller.abort(new HoldfastError(code, text, hint));
    }
    case "answer":
      return waiting.get(message.call)?.resolve(message.value);
    case "refusal": {
      const { code = "REFUSED", message: text } = message.error;
      return waiting.get(message.call)?.reject(new HoldfastError(code, text, "See the message."));
    }
  }
});
say({ type: "ready" });

async function run(task: TaskMessage): Promise<void> {
  const files: ClaimedFile[] = [];
  const followUps: NewJob[] = [];
  try {
    const stage = await stageOf(task);
    if (task.artifacts !== null) {
      const { folder, driver } = task.artifacts;
      artifacts = await Artifacts.open(folder, { alive: (path) => new Alive(path, driver) });
    }
    const target = targetOf(task.target, files);
    const context = contextOf(task, target, followUps);
    const returned: unknown = await (stage.run as (context: unknown) => unknown)(context);
    if (stage.kind === "expand") await handOver(returned);
    const output = stage.kind === "expand" ? null : textOf(returned, task.output);
    const isUnchanged = (await Promise.all(files.map((file) => file.recheck()))).every(Boolean);
    await sayLast({ type: "returned", output, isUnchanged, followUps });
  } catch (error) {
    const isStopping = controller.signal.aborted && error === controller.signal.reason;
    const outcome = error instanceof SettleAs ? error.outcome : outcomeOf(error, systemClock);
    await sayLast({ type: "threw", outcome: isStopping ? { kind: "interrupted" } : outcome });
  } finally {
    await Promise.all(files.map((file) => file.dispose()));
    artifacts?.close();
    process.disconnect();
  }
}

async function stageOf({ module, pipeline, stage }: TaskMessage): Promise<StageDefinition> {
  const exported = Object.values((await import(module)) as Record<string, unknown>);
  const definition = exported
    .filter(isPipeline)
    .map((one): PipelineDefinition => pipelineOf(one))
    .find(({ name }) => name === pipeline);
  const found = definition?.stages.find(({ name }) => name === stage);
  if (found !== undefined) return found;
  throw new HoldfastError(
    "PIPELINE_MISSING",
    `The module ${module} exports no pipeline "${pipeline}" with a stage "${stage}".`,
    "Export the pipeline from the module that `module: import.meta.url` names.",
  );
}

function contextOf(task: TaskMessage, target: Target, followUps: NewJob[]): object {
  const { input, outputs, id, attempt, scheduledFor, idempotencyKey, failed, lease } = task;
  return {
    input,
    outputs,
    target,
    id,
    attempt,
    scheduledFor,
    idempotencyKey,
    signal: controller.signal,
    log: { debug: log("debug"), info: log("info"), warn: log("warn"), error: log("error") },
    checkpoint: { load: () => call("load"), save: (value: unknown) => save(value) },
    progress: (fraction: number, message?: string) => post("progress", fraction, message),
    cost: (cost: Cost) => post("cost", cost),
    artifact: (name: string, data: Uint8Array | string | Readable | { path: string }) => keep(name, data),
    enqueue: (def: unknown, value: unknown, options?: object) =>
      addFollowUp(followUps, definitionOf(def), value, options, (index) =>
        followUpId(systemClock.now(), lease.job, lease.fence, index),
      ),
    commit: refuseCommit,
    ...(failed === undefined ? {} : { failed, inputs: members() }),
  };
}

/** Rejects `commit`, because a function cannot be sent to the worker's process, where the transaction is. */
function refuseCommit(): never {
  throw new HoldfastError(
    "COMMIT_ISOLATED",
    '`commit` cannot run in a stage with `isolate: "process"`: the success is recorded by another process.',
    'Remove `isolate: "process"` from this stage, or write the rows in a stage after it.',
  );
}

async function save(value: unknown): Promise<void> {
  toJson(value, "The checkpoint");
  await call("save", value);
}

function log(level: keyof Log): (message: string, data?: object) => void {
  return (message, data) => post("log", level, message, data);
}

async function* members(): AsyncIterable<object> {
  for (;;) {
    const page: Member[] = await call("members");
    if (page.length === 0) return;
    const own: ClaimedFile[] = [];
    for (const { target, output, outputs } of page) yield { target: targetOf(target, own), output, outputs };
    await Promise.all(own.map((file) => file.dispose()));
  }
}

function targetOf({ id, hash, parent, file }: TargetMessage, files: ClaimedFile[]): Target {
  if (file === undefined)
    return Object.freeze({ id, hash, ...(parent === undefined ? {} : { parent: targetOf(parent, files) }) });
  const claimed = new ClaimedFile({ id, ...file, artifacts: artifacts as Artifacts });
  files.push(claimed);
  return claimed;
}

async function handOver(yielded: unknown): Promise<void> {
  if (typeof yielded !== "object" || yielded === null || !(Symbol.asyncIterator in yielded || Symbol.iterator in yielded)) {
    throw new HoldfastError(
      "TARGET_INVALID",
      "The expand did not return an iterable.",
      "Write it as a generator, or return an array.",
    );
  }
  let batch: unknown[] = [];
  for await (const one of yielded as AsyncIterable<unknown>) {
    toJson((one as { value?: unknown } | null)?.value, "The value of a target");
    if (batch.push(one) < BATCH) continue;
    await call("targets", batch);
    batch = [];
  }
  if (batch.length > 0) await call("targets", batch);
}

/** Writes a stream to a file first, because a stream cannot be sent between processes. */
async function keep(name: string, data: Uint8Array | string | Readable | { path: string }): Promise<unknown> {
  if (!(data instanceof Readable)) return call("artifact", name, data);
  const folder = await mkdtemp(join(tmpdir(), "holdfast-artifact-"));
  try {
    const path = join(folder, "artifact");
    await flow(data, createWriteStream(path));
    return await call("artifact", name, { path });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Converts an output before structured cloning, which would turn values that JSON rejects into plain objects. */
function textOf(returned: unknown, what: string): string | Uint8Array | null {
  if (returned instanceof Uint8Array) return returned;
  try {
    return toJson(returned, what);
  } catch (error) {
    // A retry would fail in the same way.
    throw new SettleAs(permanentFailure(error));
  }
}

function call<N extends keyof Calls>(name: N, ...args: Calls[N]["args"]): Promise<Calls[N]["answer"]> {
  const number = ++calls;
  const answer = Promise.withResolvers<unknown>();
  waiting.set(number, answer);
  say({ type: "call", call: number, name, args });
  return answer.promise.finally(() => waiting.delete(number)) as Promise<Calls[N]["answer"]>;
}

function sayLast(message: FromChild): Promise<void> {
  isOver = true;
  return new Promise((resolve) => (process.send === undefined ? resolve() : void process.send(message, () => resolve())));
}

function post<N extends keyof Calls>(name: N, ...args: Calls[N]["args"]): void {
  say({ type: "call", call: null, name, args });
}
