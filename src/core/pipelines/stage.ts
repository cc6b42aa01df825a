import { hash } from "node:crypto";
import type { Readable } from "node:stream";
import { type Amount, checkCost, type Cost, toAmount } from "./budget.ts";
import type { Duration } from "../text/duration.ts";
import { HoldfastError } from "../text/errors.ts";
import { matchGlob } from "../text/glob.ts";
import { type CommitRows, toJobError } from "../jobs/job.ts";
import { checkRunOptions, type RunOptions, type RunSettings } from "../jobs/run-options.ts";
import { type CheckedLimit, checkLimits } from "../limits/limit.ts";
import type { Log } from "../text/text.ts";
import {
  checkBoolean,
  checkFunction,
  checkName,
  checkOneOf,
  describeValue,
  invalidOption,
  refuseUnknown,
} from "../text/options.ts";
import type { Target } from "./source.ts";
import { checkTargetId, type Key, keyText } from "./work.ts";

export interface StageOptions<T, In> extends RunOptions<In> {
  /** What the result depends on besides its inputs, such as a prompt. Another key makes another result. */
  key?: Key | ((c: { target: T; input: In }) => Key);
  /** Expected cost of one attempt, reserved before it starts. Default: the mean cost of past attempts. */
  estimate?: Cost | ((c: { target: T; input: In }) => Cost);
  /** "bytes": the target's id is not part of the hash, so that renamed and copied files reuse the result. Default: "target". */
  reuse?: "target" | "bytes";
  /** "process": each attempt runs in a child process, so that its crash does not take the worker down. Default: "none". */
  isolate?: "none" | "process";
  /** Called when a target disappears or no longer matches, with its last output. */
  remove?: (c: { target: Target; output: unknown; idempotencyKey: string; signal: AbortSignal }) => void | Promise<void>;
}

/** What a stage's handler gets. */
export interface StageContext<T, In, Outs> extends JobContext<In> {
  target: T;
  /** Outputs of the earlier stages named in `uses`. */
  outputs: Outs;
  /** Adds a cost. It is charged even if the attempt then fails. */
  cost(c: Cost): void;
  artifact(
    name: string,
    data: Uint8Array | string | Readable | { path: string },
  ): Promise<{ name: string; hash: string; size: number }>;
}

export type StageKind = "stage" | "expand" | "gather";

export interface StageDefinition extends RunSettings {
  readonly name: string;
  readonly kind: StageKind;
  readonly limits: readonly CheckedLimit[];
  readonly key: string | ((c: { target: unknown; input: unknown }) => unknown) | null;
  readonly estimate: ((c: { target: unknown; input: unknown }) => unknown) | null;
  readonly reuse: "target" | "bytes";
  readonly isolate: "none" | "process";
  readonly remove: NonNullable<StageOptions<unknown, unknown>["remove"]> | null;
  readonly uses: readonly string[];
  readonly match: string | ((target: unknown, input: unknown) => unknown) | null;
  readonly by: ((target: unknown, output: unknown) => unknown) | null;
  readonly partial: boolean;
  readonly run: (context: never) => unknown;
  /** Hash of the handler's text. Edited code under an unchanged version is worth a warning. */
  readonly code: string;
}

const SHARED_OPTIONS = "version retry crashes lease timeout concurrency limit key estimate reuse isolate remove".split(" ");
const OPTIONS: Record<StageKind, readonly string[]> = {
  stage: [...SHARED_OPTIONS, "uses", "match"],
  expand: SHARED_OPTIONS,
  gather: [...SHARED_OPTIONS, "by", "partial"],
};

type AnyOptions = StageOptions<unknown, unknown> & {
  uses?: unknown;
  match?: unknown;
  by?: unknown;
  partial?: unknown;
};

export function checkStage(kind: StageKind, name: unknown, options: unknown, run: unknown): StageDefinition {
  const named = checkStageName(name);
  const where = `stage "${named}"`;
  if (typeof options === "function" && run === undefined) {
    throw invalidOption(
      `The options of ${where} are missing: the second argument is a function.`,
      `Give the options before the handler, {} for none: .${kind}("${named}", {}, async ({ target, input }) => …).`,
    );
  }
  refuseUnknown(options, OPTIONS[kind], `The ${kind} "${named}"`);
  const given = options as AnyOptions;
  const { reuse = "target", isolate = "none" } = given;
  if (typeof run !== "function")
    throw invalidOption(`The handler of ${where} must be a function.`, "Give a function after the options.");
  return Object.freeze({
    name: named,
    kind,
    ...checkRunOptions(given, where),
    limits: checkLimits(given.limit, "job", where),
    key: typeof given.key === "function" ? (given.key as StageDefinition["key"]) : keyText(given.key, `key of ${where}: key`),
    estimate: checkEstimate(given.estimate, named),
    reuse: checkOneOf(reuse, ["target", "bytes"], `reuse of ${where}`),
    isolate: checkOneOf(isolate, ["none", "process"], `isolate of ${where}`),
    remove: given.remove === undefined ? null : checkFunction(given.remove, `\`remove\` of ${where}`),
    uses: checkUses(given.uses, where),
    match: checkMatch(given.match, where),
    by: given.by === undefined ? null : checkFunction(given.by as StageDefinition["by"], `\`by\` of ${where}`),
    partial: checkBoolean(given.partial === undefined ? false : given.partial, `\`partial\` of ${where}`),
    run: run as StageDefinition["run"],
    code: hash("sha256", Function.prototype.toString.call(run)),
  });
}

export function stageKey({ name, key }: StageDefinition, context: { target: unknown; input: unknown }): string | null {
  if (typeof key !== "function") return key;
  return keyText(
    callOption(() => key(context), "key", name, "KEY_INVALID"),
    `key of stage "${name}": key`,
  );
}

export function stageEstimate({ name, estimate }: StageDefinition, context: { target: unknown; input: unknown }): Amount | null {
  if (estimate === null) return null;
  return toAmount(
    callOption(() => estimate(context), "estimate", name, "COST_INVALID"),
    `The estimate of stage "${name}"`,
  );
}

/** Returns the estimate if it is the same for all targets, else null. Throws for an invalid amount, before there is a target. */
export function fixedEstimate({ name, estimate }: StageDefinition): Amount | null {
  if (estimate === null) return null;
  let cost: unknown;
  try {
    cost = estimate(NO_CONTEXT);
  } catch {
    return null;
  }
  return toAmount(cost, `The estimate of stage "${name}"`);
}

const NO_CONTEXT = {
  get target(): never {
    throw new Error("there is no target yet");
  },
  get input(): never {
    throw new Error("there is no input yet");
  },
};

export function groupOf({ name, by }: StageDefinition, target: unknown, output: unknown): string | null {
  if (by === null) return null;
  const group = callOption(() => by(target, output), "by", name, "GROUP_INVALID");
  return checkTargetId(group, `The result of \`by\` of stage "${name}"`);
}

function callOption<R>(act: () => R, option: string, stage: string, code: string): R {
  try {
    return act();
  } catch (cause) {
    throw new HoldfastError(
      code,
      `\`${option}\` of stage "${stage}" threw: ${toJobError(cause).message}`,
      `Make \`${option}\` return a value for every target and input of the stage.`,
      { cause },
    );
  }
}

function checkStageName(name: unknown): string {
  const named = checkName(name, "A stage's name");
  // Stages are found by pipeline/stage, and their outputs by name in plain objects.
  if (named.trim() === named && !named.includes("/") && named !== "__proto__") return named;
  throw new HoldfastError(
    "NAME_INVALID",
    `A stage's name is ${JSON.stringify(named)}.`,
    "Give a name without a slash and without spaces around it.",
  );
}

function checkUses(uses: unknown, where: string): readonly string[] {
  if (uses === undefined) return [];
  if (!Array.isArray(uses) || uses.some((name) => typeof name !== "string")) {
    throw invalidOption(
      `\`uses\` of ${where} must be an array of names.`,
      'Give the names of earlier stages, such as ["parse"].',
    );
  }
  const names = uses as string[];
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) throw invalidOption(`\`uses\` of ${where} names "${twice}" twice.`, "Name each stage once.");
  return Object.freeze(names.toSorted());
}

function checkMatch(match: unknown, where: string): StageDefinition["match"] {
  if (match === undefined) return null;
  if (typeof match === "function") return match as StageDefinition["match"];
  if (typeof match === "string" && match.trim() !== "") {
    matchGlob(match, where);
    return match;
  }
  throw invalidOption(
    `\`match\` of ${where} must be a glob or a function, got ${describeValue(match)}.`,
    'Give a glob of ids such as "**/*.md", or a function of target and input that returns true or false.',
  );
}

function checkEstimate(given: unknown, name: string): StageDefinition["estimate"] {
  if (given === undefined) return null;
  if (typeof given === "function") return given as NonNullable<StageDefinition["estimate"]>;
  const cost = Object.freeze(checkCost(given, `The estimate of stage "${name}"`));
  return () => cost;
}

export interface EnqueueOptions {
  /** Id of the job. At most one job ever has it, also after it was pruned; a job of another name is rejected with `ID_TAKEN`. Default: a new one. */
  id?: string;
  /** At most one unfinished job of this name has the key. */
  key?: string;
  /** Higher runs first. Default: 0. */
  priority?: number;
  /** How long to wait before the first attempt. Default: 0. */
  delay?: Duration;
  /** Earliest time of the first attempt, instead of `delay`. Default: now. */
  runAt?: Date | number;
  /** Ids of jobs that must succeed first. If one does not, this job is cancelled. */
  after?: string[];
  /** Of `key`: "replace" gives a pending job the new input, delay and priority; behind a running one it waits. Default: "keep". */
  onDuplicate?: "keep" | "replace";
  /** Words to find the job by: at most 20, of up to 200 characters. Default: none. */
  tags?: string[];
}

export interface Enqueued<Out = unknown> {
  id: string;
  duplicate: boolean;
  readonly types?: { output: Out };
}

/** What a handler gets. */
export interface JobContext<In> {
  input: In;
  id: string;
  /** 1 for the first attempt. Starts that were given back do not count. */
  attempt: number;
  scheduledFor: Date | null;
  /** The same for every attempt of this job. Give it to outside services, so that what they do happens once. */
  idempotencyKey: string;
  log: Log;
  /** Aborts with a reason whose `code` is LEASE_LOST, CANCELLED, TIMEOUT or STOPPING; throwing `signal.reason` is right. */
  signal: AbortSignal;
  /** Work in progress, for the next attempt. `load` returns undefined if nothing was saved. */
  checkpoint: { load(): Promise<unknown>; save(value: unknown): Promise<void> };
  progress(fraction: number, message?: string): void;
  /** Enqueues a job that commits with this attempt's success, or not at all. */
  enqueue<I>(def: JobDef<I>, input: NoInfer<I>, options?: EnqueueOptions): { id: string };
  /**
   * Writes rows of your own tables in the transaction that records this attempt's success. `run` is called after the handler
   * has returned; several calls run in order. Not with `isolate: "process"`.
   *
   * ```ts
   * commit(({ db }) => addInvoice(db, input.customer));
   * ```
   */
  commit(run: CommitRows): void;
}

export type Run<Parsed, Out> = (context: JobContext<Parsed>) => Out | Promise<Out>;

/** A kind of job. Producers need only the definition; the handler may be given elsewhere. */
export interface JobDef<In = unknown, Out = unknown, Parsed = unknown> {
  readonly name: string;
  readonly queue: string;
  readonly types?: { input: In; output: Out };
  /** Returns the same job with its handler, which producers need not import. */
  handle(run: Run<Parsed, Out>): JobDef<In, Out, Parsed>;
}
