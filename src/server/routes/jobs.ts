import * as z from "zod/mini";
import type { AttemptView } from "../../core/jobs/attempts.ts";
import { parseInputPair } from "../../core/jobs/filter.ts";
import type { Job } from "../../core/jobs/job.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { definedOnly } from "../../core/text/options.ts";
import type { EnqueueOptions } from "../../core/pipelines/stage.ts";
import { checkOwnName } from "../../core/pipelines/work.ts";
import { type Definition, definitionOf, job as defineJob, type JobDef } from "../../engine/definition.ts";
import type { MatchingAction } from "../../engine/all-matching.ts";
import { noSuchJob } from "../../engine/client.ts";
import type { ServerOptions } from "../handler.ts";
import { route } from "../route.ts";
import * as schemas from "../schemas.ts";

const { idInPath, text } = schemas;

export const JOB_ROUTES = [
  route("get", "/jobs", {
    id: "jobs.list",
    summary: "Jobs that match, with a cursor for the next page.",
    query: { ...schemas.pageQuery, ...schemas.filterQuery },
    answer: schemas.pageOf(schemas.job),
    run: async ({ hf, options, query: { input, ...query } }) => {
      refuseHidden({ input, error: query.error }, options);
      const pairs = input?.map((pair) => parseInputPair(pair) as [string, string]);
      const page = await hf.jobs.list(definedOnly({ ...query, input: pairs && Object.fromEntries(pairs) }));
      return { ...page, items: page.items.map((one) => shown(one, options)) };
    },
  }),
  route("get", "/jobs/counts", {
    id: "jobs.counts",
    summary: "How many jobs are in each state.",
    query: { queue: z.optional(text), name: z.optional(text) },
    answer: schemas.counts,
    run: ({ hf, query }) => hf.jobs.counts(definedOnly(query)),
  }),
  route("post", "/jobs", {
    id: "jobs.enqueue",
    summary: "Enqueues a job by its definition among `jobs` of the handler, else with defaults. Answers when the job is durable.",
    body: schemas.enqueueBody,
    answer: z.object({ id: z.string(), duplicate: z.boolean() }),
    run: async ({ hf, body, options: { jobs = [] } }) => {
      const { name, queue, input, ...options } = body;
      const definition = definitionFor(jobs, name, queue);
      const { id, duplicate } = await hf.enqueue(definition, input ?? null, definedOnly(options) as EnqueueOptions);
      return { id, duplicate };
    },
  }),
  allMatching("retry", "Starts all failed and quarantined jobs that match again, with fresh counts."),
  allMatching("cancel", "Cancels all unfinished jobs that match. The signals of running handlers abort."),
  allMatching("remove", "Removes all finished jobs that match. Their chosen ids stay taken."),
  route("get", "/jobs/:id", {
    id: "jobs.get",
    summary: "One job, with its input, output and last error.",
    path: idInPath,
    answer: schemas.job,
    run: async ({ hf, options, path }) => shown((await hf.jobs.get(path.id)) ?? missing(path.id), options),
  }),
  route("get", "/jobs/:id/attempts", {
    id: "jobs.attempts",
    summary: "Attempts of a job, oldest first: those kept that did not succeed, and the running or succeeded one.",
    path: idInPath,
    answer: z.object({ items: z.array(schemas.attempt) }),
    run: async ({ hf, options, path }) => {
      const job = (await hf.jobs.get(path.id)) ?? missing(path.id);
      return { items: (await hf.jobs.attempts(path.id)).map((attempt) => shownAttempt(attempt, job, options)) };
    },
  }),
  route("get", "/jobs/:id/explain", {
    id: "jobs.explain",
    summary: "Why a job does not run, in a sentence and in figures.",
    path: idInPath,
    answer: schemas.explanation,
    run: async ({ hf, path }) => (await hf.jobs.explain(path.id)) ?? missing(path.id),
  }),
  route("post", "/jobs/:id/retry", {
    id: "jobs.retry",
    summary: "Starts a failed or quarantined job again, with fresh counts.",
    path: idInPath,
    answer: schemas.changed,
    run: async ({ hf, path }) => ({ changed: await hf.jobs.retry(path.id) }),
  }),
  route("post", "/jobs/:id/cancel", {
    id: "jobs.cancel",
    summary: "Cancels an unfinished job. The signal of a running handler aborts.",
    path: idInPath,
    answer: schemas.changed,
    run: async ({ hf, path }) => ({ changed: await hf.jobs.cancel(path.id) }),
  }),
];

function allMatching(action: MatchingAction, summary: string) {
  return route("post", `/jobs/${action}-all`, {
    id: `jobs.${action}All`,
    summary,
    body: schemas.matchingBody,
    answer: schemas.matchingAnswer,
    run: async ({ hf, operator, options, body }) => {
      const { dryRun = false, reason: _reason, ...given } = body;
      refuseHidden(given, options);
      const filter = definedOnly(given);
      if (dryRun) return { matched: await operator.countMatching(action, filter), changed: 0 };
      return hf.jobs[`${action}All`](filter);
    },
  });
}

/** Refuses filters by which a caller could guess what `redact` hides, one request for each guess. */
function refuseHidden({ input, error }: { input?: unknown; error?: unknown }, { redact }: ServerOptions): void {
  if (redact === undefined || (input === undefined && error === undefined)) return;
  const name = input === undefined ? "error" : "input";
  throw new HoldfastError(
    "REQUEST_INVALID",
    `\`${name}\` cannot filter jobs here, because this server redacts jobs.`,
    "Filter by queue, name, key, tag, state or time; or use `holdfast jobs list` where the database is.",
  );
}

function shown(job: Job, { redact }: ServerOptions): Job {
  return redact === undefined ? job : redact(job);
}

/** Removes from an attempt's error what `redact` removes from the job's error, and its log, which cannot be redacted. */
function shownAttempt({ error, log, ...rest }: AttemptView, job: Job, options: ServerOptions): AttemptView {
  const attempt = log === undefined || options.redact !== undefined ? rest : { ...rest, log };
  if (error === undefined) return attempt;
  const { error: redacted } = shown({ ...job, error }, options);
  return redacted === undefined ? attempt : { ...attempt, error: redacted };
}

function missing(id: string): never {
  throw noSuchJob(id);
}

/** Returns the newest version of a definition, else a definition with defaults, whose input the worker validates. */
function definitionFor(jobs: readonly JobDef[], name: string, queue: string | undefined): Definition {
  const known = jobs.map((one) => definitionOf(one)).filter((one) => one.name === name);
  const newest = known.toSorted((a, b) => b.version - a.version)[0];
  const definition = newest ?? definitionOf(defineJob({ name, run: () => undefined }));
  if (queue === undefined) return definition;
  return { ...definition, queue: checkOwnName(queue, "The queue") };
}
