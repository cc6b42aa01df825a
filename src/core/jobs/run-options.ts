import { type Duration, toMillis } from "../text/duration.ts";
import { HoldfastError } from "../text/errors.ts";
import type { Limit } from "../limits/limit.ts";
import { checkAtLeast, checkCount, checkOneOf, refuseUnknown } from "../text/options.ts";
import type { Policy } from "./retry.ts";

/** Options that jobs and stages share. */
export interface RunOptions<In = unknown> {
  /** Version of the definition. A worker claims only the versions that its own definitions have. Default: 1. */
  version?: number;
  /** Attempts, the first included, and the delay between them. Default: 3 attempts, exponential from 1 s to 10 min. */
  retry?: { attempts?: number; backoff?: "exponential" | "fixed"; delay?: Duration; maxDelay?: Duration };
  /** Crashed workers after which the job is quarantined. Default: 3. */
  crashes?: number;
  /** How long a claim is valid without renewal. At least 300 ms. Default: "30s". */
  lease?: Duration;
  /** How long one attempt may take. Default: "1h". */
  timeout?: Duration;
  /** How many one worker process runs at once. Default: the worker's. */
  concurrency?: number;
  /** Limits over all workers: how many run at once, and how many start per period. */
  limit?: Limit<In> | Limit<In>[];
}

/** The keeper renews after a third of the lease and may sleep for a tenth of a second. */
const MIN_LEASE_MS = 300;

/** Leases that one process can renew at once, so also its attempts. */
export const MAX_CONCURRENCY = 8_192;

export function checkConcurrency(value: unknown, what: string): number {
  const concurrency = checkCount(value, what, 1);
  if (concurrency <= MAX_CONCURRENCY) return concurrency;
  throw new HoldfastError(
    "NUMBER_INVALID",
    `${what} must be at most ${MAX_CONCURRENCY}, got ${concurrency}.`,
    `Give at most ${MAX_CONCURRENCY}, and run more worker processes.`,
  );
}

export interface RunSettings {
  readonly version: number;
  readonly policy: Policy;
  readonly lease: number;
  readonly concurrency: number | undefined;
}

export function checkRunOptions(options: RunOptions & Interruptible, where: string): RunSettings {
  const { version = 1, lease = "30s", concurrency } = options;
  return {
    version: checkCount(version, `The version of ${where}`, 0),
    policy: policyOf(options, where),
    lease: checkAtLeast(toMillis(lease, `The lease of ${where}`), MIN_LEASE_MS, `The lease of ${where}`),
    concurrency: concurrency === undefined ? undefined : checkConcurrency(concurrency, `The concurrency of ${where}`),
  };
}

interface Interruptible {
  onInterrupt?: Policy["onInterrupt"];
}

function policyOf(options: RunOptions & Interruptible, where: string): Policy {
  const { retry = {}, crashes = 3, onInterrupt = "resume", timeout = "1h" } = options;
  refuseUnknown(retry, ["attempts", "backoff", "delay", "maxDelay"], `retry of ${where}`);
  const { attempts = 3, backoff = "exponential", delay = "1s", maxDelay = "10m" } = retry;
  return {
    attempts: checkCount(attempts, `retry.attempts of ${where}`, 1),
    backoff: checkOneOf(backoff, ["exponential", "fixed"], `retry.backoff of ${where}`),
    delay: toMillis(delay, `retry.delay of ${where}`),
    maxDelay: toMillis(maxDelay, `retry.maxDelay of ${where}`),
    crashes: checkCount(crashes, `crashes of ${where}`, 1),
    onInterrupt: checkOneOf(onInterrupt, ["retry", "fail", "resume"], `onInterrupt of ${where}`),
    timeout: checkAtLeast(toMillis(timeout, `The timeout of ${where}`), 1, `The timeout of ${where}`),
  };
}

/** Any schema of standardschema.dev: zod, valibot, arktype and others. */
export interface StandardSchema<In = unknown, Out = In> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => unknown;
    readonly types?: { readonly input: In; readonly output: Out } | undefined;
  };
}

interface Issue {
  message: string;
  path?: readonly (PropertyKey | { key: PropertyKey })[] | undefined;
}
type Result = { value: unknown; issues?: undefined } | { issues: readonly Issue[] };

export function parse(schema: StandardSchema, value: unknown, what: string): unknown {
  const result = schema["~standard"].validate(value);
  if (result instanceof Promise) return result.then((late) => acceptedValue(late as Result, what));
  return acceptedValue(result as Result, what);
}

function acceptedValue(result: Result, what: string): unknown {
  if (result.issues === undefined) return result.value;
  throw new HoldfastError(
    "INPUT_INVALID",
    `${what} does not fit its schema: ${result.issues.slice(0, 5).map(describeIssue).join("; ")}`,
    "Correct the value, or the schema of the job's definition.",
  );
}

function describeIssue(issue: Issue): string {
  const path = (issue.path ?? []).map((part) => String(typeof part === "object" ? part.key : part)).join(".");
  return path === "" ? issue.message : `${path}: ${issue.message}`;
}
