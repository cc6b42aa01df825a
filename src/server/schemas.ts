import * as z from "zod/mini";
import { ATTEMPT_OUTCOMES } from "../core/jobs/attempts.ts";
import { WAIT_REASONS } from "../core/jobs/explain.ts";
import { JOB_STATES } from "../core/jobs/job.ts";
import { BUILD_STATES } from "../core/pipelines/build.ts";
import { queryList, queryNumber } from "./route.ts";

const text = z.string().check(z.maxLength(1_000));
/** Milliseconds since 1970. */
export const instant = z.number();
export const duration = z.union([z.int().check(z.gte(0)), text]);
export const anyJson = z.unknown();
export const done = z.object({ ok: z.literal(true) });
export const changed = z.object({ changed: z.boolean() });

export const jobState = z.enum(JOB_STATES);
export const jobError = z.object({
  name: z.string(),
  message: z.string(),
  code: z.optional(z.string()),
  stack: z.optional(z.string()),
});
export const job = z.object({
  id: z.string(),
  name: z.string(),
  queue: z.string(),
  key: z.optional(z.string()),
  tags: z.optional(z.array(z.string())),
  state: jobState,
  input: anyJson,
  output: z.optional(anyJson),
  error: z.optional(jobError),
  attempt: z.int(),
  crashes: z.int(),
  priority: z.int(),
  progress: z.optional(z.object({ fraction: z.number(), message: z.optional(z.string()) })),
  createdAt: instant,
  runAt: instant,
  startedAt: z.optional(instant),
  finishedAt: z.optional(instant),
  worker: z.optional(z.string()),
  host: z.optional(z.string()),
  pid: z.optional(z.int()),
  leaseExpiresAt: z.optional(instant),
});
export const attempt = z.object({
  attempt: z.int(),
  outcome: z.enum(ATTEMPT_OUTCOMES),
  startedAt: instant,
  endedAt: z.optional(instant),
  worker: z.optional(z.string()),
  host: z.optional(z.string()),
  pid: z.optional(z.int()),
  error: z.optional(jobError),
  log: z.optional(
    z.array(z.object({ at: instant, level: z.enum(["info", "warn", "error"]), message: z.string(), data: z.optional(anyJson) })),
  ),
});
export const explanation = z.object({
  state: jobState,
  reason: z.enum(WAIT_REASONS),
  message: z.string(),
  until: z.optional(instant),
  ahead: z.optional(z.int()),
  limit: z.optional(z.object({ key: z.string(), used: z.int(), max: z.int() })),
  jobs: z.optional(z.array(z.string())),
});
export const counts = z.record(jobState, z.int());

export const cost = z.object({ usd: z.optional(z.number()), tokens: z.optional(z.number()) });
export const buildState = z.enum(BUILD_STATES);
export const build = z.object({
  id: z.string(),
  pipeline: z.string(),
  state: buildState,
  reason: z.string(),
  budget: cost,
  spent: cost,
  approved: z.optional(z.literal(true)),
  token: z.optional(z.string()),
  createdAt: instant,
  finishedAt: z.optional(instant),
  stages: z.record(z.string(), z.object({ ran: z.int(), cached: z.int(), failed: z.int(), left: z.int() })),
  errors: z.array(z.object({ stage: z.string(), target: z.string(), message: z.string() })),
});

export function pageOf<S extends z.ZodMiniType>(item: S) {
  return z.object({ items: z.array(item), next: z.optional(z.string()), incomplete: z.optional(z.string()) });
}

export const order = z.enum(["newest", "oldest"]);
export const idInPath = { id: text };
export const nameInPath = { name: text };
export const pageQuery = { limit: z._default(queryNumber(1, 1_000), 100), after: z.optional(text) };
export const enqueueBody = {
  name: text,
  queue: z.optional(text),
  input: z.optional(anyJson),
  id: z.optional(text),
  key: z.optional(text),
  priority: z.optional(z.int()),
  delay: z.optional(duration),
  runAt: z.optional(instant),
  after: z.optional(z.array(text)),
  tags: z.optional(z.array(text)),
  onDuplicate: z.optional(z.enum(["keep", "replace"])),
};
const ofJob = {
  queue: z.optional(text),
  name: z.optional(text),
  key: z.optional(text),
  tag: z.optional(text),
  error: z.optional(text),
};
const queryInstant = z.optional(queryNumber(0, 8.64e15));
/** Filter of jobs in a body, for an action on all that match. `dryRun` only counts them. */
export const matchingBody = {
  ...ofJob,
  state: z.optional(z.union([jobState, z.array(jobState)])),
  input: z.optional(z.record(z.string(), z.union([z.string(), z.number(), z.boolean(), z.null()]))),
  createdAfter: z.optional(instant),
  createdBefore: z.optional(instant),
  finishedAfter: z.optional(instant),
  finishedBefore: z.optional(instant),
  dryRun: z.optional(z.boolean()),
  reason: z.optional(text),
};
export const matchingAnswer = z.object({ matched: z.int(), changed: z.int() });
/** Filter of jobs in a query: times are milliseconds since 1970, and `input` is `path=value`. */
export const filterQuery = {
  ...ofJob,
  state: z.optional(z.pipe(queryList, z.array(jobState))),
  input: z.optional(z.pipe(queryList, z.array(z.string().check(z.regex(/^[^=]+=/))))),
  createdAfter: queryInstant,
  createdBefore: queryInstant,
  finishedAfter: queryInstant,
  finishedBefore: queryInstant,
  order: z.optional(order),
};
export { text };
