import { createHash, hash } from "node:crypto";
import { HoldfastError } from "../text/errors.ts";
import { canonicalJson, Secret, SECRET } from "../text/json.ts";
import { checkName, rejectSurplus } from "../text/options.ts";
import { type ResultKey, compareIds } from "../text/ids.ts";
import { type JobError, toJobError } from "../jobs/job.ts";
import type { Outcome } from "../jobs/retry.ts";
import { checkStorable } from "../text/text.ts";
import type { StageDefinition, StageKind } from "./stage.ts";
import type { Difference } from "./build-view.ts";

const PIPELINE_PREFIX = "pipeline/";

/** Returns the pipeline's queue. With `host`, only that host has the targets' files, and no other host claims from the queue. */
export function pipelineQueue(pipeline: string, host: string | null): string {
  return host === null ? PIPELINE_PREFIX + pipeline : `${PIPELINE_PREFIX}${pipeline}@${host}`;
}

export function isPipelineQueue(queue: string): boolean {
  return queue.startsWith(PIPELINE_PREFIX);
}

export function stageJobName(pipeline: string, stage: string): string {
  return `${PIPELINE_PREFIX}${pipeline}/${stage}`;
}

/** Returns the name of a pipeline's listing job. No stage has an empty name. */
export function listingJobName(pipeline: string): string {
  return stageJobName(pipeline, "");
}

/** Checks the name of a job or queue that is not a pipeline's. */
export function checkOwnName(given: unknown, what: string): string {
  const name = checkName(given, what);
  if (!name.startsWith(PIPELINE_PREFIX)) return name;
  throw new HoldfastError(
    "NAME_INVALID",
    `${what} is "${name}", but names that begin with "${PIPELINE_PREFIX}" are reserved for pipelines.`,
    "Give another name.",
  );
}

/** Returns the error for missing artifacts. A retry may help, because another attempt may store the artifact again. */
export function artifactMissing(hashes: readonly string[]): HoldfastError {
  const [first, ...others] = hashes;
  return new HoldfastError(
    "ARTIFACT_MISSING",
    `The artifact ${first}${others.length === 0 ? "" : ` and ${others.length} more`} is not stored, so no result can refer to it.`,
    "Store artifacts before you commit the result that names them, in the folder of this database.",
  );
}

export function missingArtifactsOutcome(hashes: readonly string[]): Outcome {
  return { kind: "error", error: toJobError(artifactMissing(hashes)) };
}

export function missingResultOutcome(): Outcome {
  const error = new HoldfastError(
    "RESULT_MISSING",
    "The job of a stage was settled as a success without the stage's result.",
    "Let only workers of the pipeline claim jobs of its queue.",
  );
  return { kind: "error", error: toJobError(error), retry: false };
}

export function cancelledItemError(): JobError {
  return { name: "CancelledError", code: "CANCELLED", message: "Its job was cancelled." };
}

/** Stages of the same targets. An expand ends its segment and makes the next one's targets; a gather begins its own segment. */
export interface Segment<Stage = StageDefinition> {
  index: number;
  from: "source" | "expand" | "gather";
  stages: readonly Stage[];
  ends: "expand" | "gather" | "nothing";
  gather: Stage | null;
  round: number;
}

export function segmentsOf<Stage extends { kind: StageKind }>(stages: readonly Stage[]): Segment<Stage>[] {
  const segments: { from: Segment["from"]; stages: Stage[] }[] = [{ from: "source", stages: [] }];
  for (const stage of stages) {
    if (stage.kind === "gather") segments.push({ from: "gather", stages: [] });
    segments.at(-1)?.stages.push(stage);
    if (stage.kind === "expand") segments.push({ from: "expand", stages: [] });
  }
  let round = 0;
  return segments.map(({ from, stages: own }, index) => {
    if (from === "gather") round++;
    const next = segments[index + 1];
    const ends = next === undefined ? "nothing" : (next.from as "expand" | "gather");
    return { index, from, stages: own, ends, gather: ends === "gather" ? (next?.stages[0] as Stage) : null, round };
  });
}

export function gatherSegment(segments: readonly Segment[], round: number): Segment | undefined {
  return segments.find((segment) => segment.from === "gather" && segment.round === round);
}

/** Marks a target that is gone. It is kept until its results are removed. */
export const GONE_MARK = "gone";

/** Hashes what a segment's results depend on besides the content. Returns null if that needs a call of a user's function. */
export function doneMark({ stages, gather }: Segment, inherited: CompletedStages): string | null {
  const asks = stages.some(({ key, match }) => typeof key === "function" || typeof match === "function");
  if (asks || (gather !== null && gather.by !== null)) return null;
  const parts = stages.map(({ name, kind, version, key, uses, match, reuse }) => [name, kind, version, key, uses, match, reuse]);
  const before = inherited.map(({ stage, output }) => [stage, output]);
  return hash("sha256", JSON.stringify(["holdfast.done.1", parts, gather?.name ?? null, before]));
}

export interface Step {
  stage: string;
  /** Null if the result is written in the same commit. */
  result: ResultKey | null;
  /** For an expand, `childrenOf` its context, or `none` while other children are being made. */
  output: ValueHash;
  /** True if the target is gone, and its effects outside are removed or being removed. */
  undone?: true;
}

export function childrenOf(context: string): ValueHash {
  return `members:${context}`;
}

/** Completed stages in order. Those of the target's parent come first. */
export type CompletedStages = readonly Step[];

export function findStep(completed: CompletedStages, stage: string): Step | undefined {
  return completed.find((step) => step.stage === stage);
}

export function completedStagesText(completed: CompletedStages): string {
  return JSON.stringify(completed.map(({ stage, result, output, undone }) => [stage, result, output, ...(undone ? [1] : [])]));
}

export function parseCompletedStages(text: string): CompletedStages {
  const steps = JSON.parse(text) as [string, ResultKey | null, ValueHash, 1?][];
  return steps.map(([stage, result, output, undone]) =>
    undone === undefined ? { stage, result, output } : { stage, result, output, undone: true },
  );
}

export function withResult(completed: CompletedStages, result: ResultKey): CompletedStages {
  return completed.map((step) => (step.result === null ? { ...step, result } : step));
}

export const MAX_ID_BYTES = 2_000;

/** Separates a target's id from those of its parents. No id contains it. */
const ID_SEPARATOR = "\u001f";

export function pathOf(parent: string | null, id: string): string {
  if (parent === null) return id;
  const path = parent + ID_SEPARATOR + id;
  if (isShortEnough(path)) return path;
  throw new HoldfastError(
    "TARGET_ID_INVALID",
    `The id ${JSON.stringify(id.slice(0, 100))} has, with those of its parents, ${Buffer.byteLength(path)} bytes.`,
    `Give shorter ids: together they may have ${MAX_ID_BYTES} bytes.`,
  );
}

export function pathText(path: string): string {
  return path.replaceAll(ID_SEPARATOR, "/");
}

export function idsOf(path: string): string[] {
  return path.split(ID_SEPARATOR);
}

export function checkTargetId(id: unknown, what: string): string {
  const wrong = whyInvalid(id);
  if (wrong === null) return checkStorable(id as string, what);
  throw new HoldfastError(
    "TARGET_ID_INVALID",
    `${what} is ${wrong}.`,
    `Give a string of 1 to ${MAX_ID_BYTES} bytes, without lone surrogates and without U+001F.`,
  );
}

/** Says why an id is invalid. The reason is part of the message, because a build stores an error's message, but not its hint. */
function whyInvalid(id: unknown): string | null {
  if (typeof id !== "string") return `${JSON.stringify(id) ?? String(id)}, and an id is a text`;
  if (id === "") return '"", and an id has at least one character';
  if (!isShortEnough(id)) return `a text of ${Buffer.byteLength(id)} bytes, and an id may have ${MAX_ID_BYTES}`;
  const given = JSON.stringify(id.slice(0, 100));
  if (!id.isWellFormed()) return `${given}, and an id holds no half of a character (a lone surrogate)`;
  return id.includes(ID_SEPARATOR) ? `${given}, and an id does not hold U+001F` : null;
}

export function isShortEnough(id: string): boolean {
  // A UTF-16 unit takes at most three bytes.
  return id.length * 3 <= MAX_ID_BYTES || Buffer.byteLength(id) <= MAX_ID_BYTES;
}

/** `json:` and `bytes:` keep a text apart from its bytes; `members:` is a gather's input or an expand's children. */
export type ValueHash = `${"json" | "bytes" | "members" | "item"}:${string}` | "none";

export function valueHash(stored: string | Uint8Array | null): ValueHash {
  if (stored === null) return "none";
  return `${typeof stored === "string" ? "json" : "bytes"}:${hash("sha256", stored)}`;
}

export interface ContextParts {
  stage: string;
  version: number;
  key: string | null;
  input: ValueHash;
  uses: Readonly<Record<string, ValueHash | null>>;
  target: { id: string; hash: string };
  reuse: "target" | "bytes";
}

/** Returns the content key of a result. Its parts are elements of one JSON array, so no two sets of parts have the same text. */
export function contextHash({ stage, version, key, input, uses, target, reuse }: ContextParts): string {
  const used = Object.keys(uses)
    .sort()
    .map((name) => [name, uses[name]]);
  const id = reuse === "bytes" ? null : target.id;
  return hash("sha256", JSON.stringify(["holdfast.context.1", stage, version, key, input, used, id, target.hash]));
}

/** Hashes earlier outputs, too, because an equal output from other inputs would hide their change from the gather. */
export function memberHash(member: {
  target: string;
  output: ValueHash;
  outputs: Readonly<Record<string, ValueHash | null>>;
}): string {
  const outputs = Object.keys(member.outputs)
    .sort()
    .map((name) => [name, member.outputs[name]]);
  return hash("sha256", JSON.stringify(["holdfast.member.1", member.target, member.output, outputs]));
}

export class MembersHash {
  readonly #hash = createHash("sha256").update("holdfast.members.1\n");
  #last: Buffer | null = null;

  /** Adds a member. The caller adds members in the order of the ids' UTF-8 bytes, which is that of both databases. */
  add(id: string, member: string): void {
    const bytes = Buffer.from(id);
    if (this.#last !== null && Buffer.compare(this.#last, bytes) >= 0) {
      throw new Error(`member ${JSON.stringify(id)} came after ${JSON.stringify(this.#last.toString())}`);
    }
    this.#last = bytes;
    // JSON has no line break inside, so each member is a line.
    this.#hash.update(`${JSON.stringify([id, member])}\n`);
  }

  end(failed: number): ValueHash {
    return `members:${this.#hash.update(String(failed)).digest("hex")}`;
  }
}

/** Short hashes of a gather's members, by path. They are enough to say later what has changed. */
export interface Members {
  failed: number;
  members: Member[];
}

export type Member = readonly [path: string, output: string, all: string];

const SHOWN_HASH_LENGTH = 12;

export function toMember(path: string, output: ValueHash, all: string): Member {
  const [kind = "", hash] = output.split(":");
  return [path, hash === undefined ? kind : `${kind}:${hash.slice(0, SHOWN_HASH_LENGTH)}`, all.slice(0, SHOWN_HASH_LENGTH)];
}

export function changedMembers(before: Members, after: Members): Difference[] {
  const changes: (Difference & { path: string })[] = [];
  const were = new Map(before.members.map((member) => [member[0], member]));
  for (const [path, output, all] of after.members) {
    const was = were.get(path);
    were.delete(path);
    const part = `members[${JSON.stringify(pathText(path))}]`;
    if (was === undefined) changes.push({ path, part, before: undefined, after: output });
    else if (was[1] !== output) changes.push({ path, part, before: was[1], after: output });
    else if (was[2] !== all) changes.push({ path, part: `${part}.outputs`, before: was[2], after: all });
  }
  for (const [path, output] of were.values())
    changes.push({ path, part: `members[${JSON.stringify(pathText(path))}]`, before: output, after: undefined });
  changes.sort((a, b) => compareIds(a.path, b.path));
  const failed = before.failed === after.failed ? [] : [{ part: "members.failed", before: before.failed, after: after.failed }];
  return [...changes.map(({ part, before: was, after: is }) => ({ part, before: was, after: is })), ...failed];
}

/** Metadata of a file. Times are nanoseconds as text, because a number cannot hold them. */
export interface FileStat {
  size: number;
  mtime: string;
  ctime: string;
  inode: string;
}

/** Which bytes a file had. It is plain JSON, because the target's row stores it. */
export interface Fingerprint extends FileStat {
  hash: string;
  hashedAt: number;
}

/** The coarsest clock of file systems. Two writes within this time may leave the same timestamp. */
const FILE_TIME_TICK_MS = 2_000;

/** Whether a listing must read the bytes. A new time alone is no change, but a reason to read them. */
export function needsHash(before: Fingerprint | null, now: FileStat): boolean {
  return before === null || before.size !== now.size || before.mtime !== now.mtime || isRacy(before);
}

/** Whether a file may have changed before a commit. It also sees a time that was set back, and a file that replaced another. */
export function mayHaveChanged(before: Fingerprint, now: FileStat): boolean {
  return !isSameStat(before, now) || isRacy(before);
}

export function isSameStat(a: FileStat, b: FileStat): boolean {
  return a.size === b.size && a.mtime === b.mtime && a.ctime === b.ctime && a.inode === b.inode;
}

export function toFingerprint({ size, mtime, ctime, inode }: FileStat, hash: string, hashedAt: number): Fingerprint {
  return { size, mtime, ctime, inode, hash, hashedAt };
}

/** Whether the file was written so shortly before it was hashed, or in the future, that a later write may leave the same time. */
function isRacy({ mtime, hashedAt }: Fingerprint): boolean {
  return BigInt(mtime) >= BigInt(hashedAt - FILE_TIME_TICK_MS) * 1_000_000n;
}

/** A value between stages as it is stored: in the row, or, if large or bytes, in an artifact. */
export interface StoredValue {
  hash: ValueHash;
  text: string | null;
  artifact: string | null;
  size: number;
}

export const NO_VALUE: StoredValue = { hash: "none", text: null, artifact: null, size: 0 };

/** Longer JSON goes to an artifact. The length is in UTF-16 units. */
export const MAX_INLINE_LENGTH = 16_384;

export function inlineValue(text: string): StoredValue {
  return { hash: valueHash(text), text, artifact: null, size: Buffer.byteLength(text) };
}

/** What a stage's result depends on besides its inputs: a model's name, a prompt, settings. */
export type Key = string | number | object;

export function keyText(key: unknown, what: string): string | null {
  if (key === undefined) return null;
  if (typeof key === "string" || typeof key === "number" || (typeof key === "object" && key !== null)) {
    if (key instanceof Promise) key.catch(() => {});
    return canonicalJson(key, what);
  }
  throw new HoldfastError(
    "KEY_INVALID",
    `${what} is ${key === null ? "null" : `a ${typeof key}`}, which cannot be a key.`,
    "Give a string, a number, a plain object or an array, or leave it out.",
  );
}

/**
 * Marks a value in a stage's `key`: the result depends on it, but only its hash is stored and shown. The value must be hard to
 * guess, because the hash reveals which one it is among a thousand.
 *
 * ```ts
 * .stage("fetch", { key: { account: secret(token) } }, async ({ target }) => download(target.id, token))
 * ```
 */
export function secret<T>(value: T): T {
  rejectSurplus(arguments, 1, "secret");
  return new Secret(hash("sha256", `holdfast.secret.1\n${canonicalJson(value, "secret")}`)) as T;
}

export function hideSecrets(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(hideSecrets);
  const secret: unknown = Object.hasOwn(value, SECRET) ? (value as Record<string, unknown>)[SECRET] : undefined;
  if (typeof secret === "string") return `[secret ${secret.slice(0, SHOWN_HASH_LENGTH)}]`;
  return Object.fromEntries(Object.entries(value).map(([name, child]) => [name, hideSecrets(child)]));
}
