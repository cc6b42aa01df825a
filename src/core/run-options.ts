import { type Duration, toMillis } from "./duration.ts";
import type { Limit } from "./limit-options.ts";
import { checkAtLeast, checkCount, checkOneOf } from "./options.ts";
import type { Policy } from "./retry.ts";

/** What jobs and stages say about how they run. */
export interface RunOptions<In = unknown> {
  /** A worker claims only versions that its own definitions have. Default 1. */
  version?: number;
  /** `attempts` counts all of them, the first too. Default: 3, exponential from 1 s, at most 10 min. */
  retry?: { attempts?: number; backoff?: "exponential" | "fixed"; delay?: Duration; maxDelay?: Duration };
  /** How many times it may take its worker down before it is quarantined. Default 3. */
  crashes?: number;
  /** How long a claim holds without being renewed. Default 30 s. */
  lease?: Duration;
  /** How long one attempt may take; there is no "none". Default 1 h. */
  timeout?: Duration;
  /** How many one worker process runs at once. */
  concurrency?: number;
  /** Over all workers: how many at once, how many starts in how long, for each key by itself. */
  limit?: Limit<In> | Limit<In>[];
}

/** Renewed after a third of it, by a keeper that may be asleep for a tenth of a second. In milliseconds. */
const SHORTEST_LEASE = 300;

/** The same with its defaults, in numbers; limits are apart, because they are declared for a queue. */
export interface RunSettings {
  readonly version: number;
  readonly policy: Policy;
  readonly lease: number;
  readonly concurrency: number | undefined;
}

/** `where` names the job or stage in errors. */
export function checkRunOptions(options: RunOptions & Interruptible, where: string): RunSettings {
  return {
    version: checkCount(options.version ?? 1, `The version of ${where}`, 0),
    policy: policyOf(options, where),
    lease: checkAtLeast(toMillis(options.lease ?? "30s", `The lease of ${where}`), SHORTEST_LEASE, `The lease of ${where}`),
    concurrency:
      options.concurrency === undefined ? undefined : checkCount(options.concurrency, `The concurrency of ${where}`, 1),
  };
}

interface Interruptible {
  onInterrupt?: Policy["onInterrupt"];
}

function policyOf(options: RunOptions & Interruptible, where: string): Policy {
  const retry = options.retry ?? {};
  return {
    attempts: checkCount(retry.attempts ?? 3, `retry.attempts of ${where}`, 1),
    backoff: checkOneOf(retry.backoff ?? "exponential", ["exponential", "fixed"], `retry.backoff of ${where}`),
    delay: toMillis(retry.delay ?? "1s", `retry.delay of ${where}`),
    maxDelay: toMillis(retry.maxDelay ?? "10m", `retry.maxDelay of ${where}`),
    crashes: checkCount(options.crashes ?? 3, `crashes of ${where}`, 1),
    onInterrupt: checkOneOf(options.onInterrupt ?? "resume", ["retry", "fail", "resume"], `onInterrupt of ${where}`),
    timeout: checkAtLeast(toMillis(options.timeout ?? "1h", `The timeout of ${where}`), 1, `The timeout of ${where}`),
  };
}
