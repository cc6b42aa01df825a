import * as z from "zod/mini";
import { BUCKET_BOUNDS_MS } from "../../core/jobs/minutes.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { definedOnly } from "../../core/text/options.ts";
import { queryNumber, route } from "../route.ts";
import * as schemas from "../schemas.ts";

const { instant, text } = schemas;
const queue = z.object({
  name: z.string(),
  paused: z.boolean(),
  counts: schemas.counts,
  oldestAt: z.optional(instant),
});
/** Counts of one minute since 1970: sums are in milliseconds, lists count the values in each bucket. */
const minute = z.object({
  queue: z.string(),
  minute: z.int(),
  succeeded: z.int(),
  failed: z.int(),
  retried: z.int(),
  byHand: z.int(),
  waitMs: z.int(),
  waits: z.array(z.int()),
  runMs: z.int(),
  runs: z.array(z.int()),
});
const limit = z.object({
  queue: z.string(),
  job: z.string(),
  key: z.string(),
  concurrency: z.nullable(z.int()),
  starts: z.nullable(z.int()),
  per: z.nullable(z.int()),
  running: z.int(),
  waiting: z.int(),
  usedUntil: instant,
  now: instant,
});
const MAX_MINUTES = 7 * 24 * 60;
const MAX_STEP = 24 * 60;
const schedule = z.object({
  key: z.string(),
  job: z.string(),
  cron: z.string(),
  timezone: z.string(),
  paused: z.boolean(),
  lastAt: z.optional(instant),
  nextAt: instant,
  missed: z.enum(["skip", "once", "all"]),
  overlap: z.boolean(),
  nextRuns: z.array(instant),
});
const keyInPath = { key: text };

export const QUEUE_ROUTES = [
  route("get", "/queues", {
    id: "queues.list",
    summary: "All queues with their counts, by name.",
    answer: z.object({ items: z.array(queue) }),
    run: async ({ hf }) => ({ items: await hf.queues.list({ incomplete: true }) }),
  }),
  route("get", "/stats", {
    id: "stats.get",
    summary:
      "What ended in each queue and minute, or in each `step` of minutes, with histograms of waits and run times. Workers add their counts once a minute.",
    query: {
      minutes: z._default(queryNumber(1, MAX_MINUTES), 60),
      queue: z.optional(text),
      step: z._default(queryNumber(1, MAX_STEP), 1),
    },
    answer: z.object({ boundsMs: z.array(z.int()), items: z.array(minute) }),
    run: async ({ operator, query }) => ({
      boundsMs: BUCKET_BOUNDS_MS,
      items: await operator.minutes(query.minutes, definedOnly({ queue: query.queue, step: query.step })),
    }),
  }),
  route("post", "/queues/:name/pause", {
    id: "queues.pause",
    summary: "Nothing more is claimed from the queue until it is resumed. With `ahead` also one that has had no job yet.",
    path: schemas.nameInPath,
    body: { ahead: z._default(z.boolean(), false) },
    isBodyOptional: true,
    answer: schemas.done,
    run: async ({ hf, path, body }) => {
      const isKnown = (await hf.queues.list({ incomplete: true })).some(({ name }) => name === path.name);
      if (!isKnown && !body.ahead)
        throw new HoldfastError(
          "NO_SUCH_QUEUE",
          `There is no queue "${path.name}".`,
          "Send { ahead: true } to pause it before its first job.",
        );
      await hf.queues.pause(path.name);
      return { ok: true };
    },
  }),
  route("post", "/queues/:name/resume", {
    id: "queues.resume",
    summary: "Jobs of the queue are claimed again.",
    path: schemas.nameInPath,
    answer: schemas.done,
    run: async ({ hf, path }) => {
      await hf.queues.resume(path.name);
      return { ok: true };
    },
  }),
  route("get", "/limits", {
    id: "limits.list",
    summary:
      "Limits that are in use, by key: how many run, how many may, how many wait. Those that most jobs wait for come first.",
    query: { limit: z._default(queryNumber(1, 1_000), 100) },
    answer: z.object({ items: z.array(limit) }),
    run: async ({ operator, query }) => ({ items: await operator.limits(query.limit) }),
  }),
  route("get", "/schedules", {
    id: "schedules.list",
    summary: "All schedules, by key, with their next five runs.",
    answer: z.object({ items: z.array(schedule) }),
    run: async ({ operator }) => ({ items: await operator.schedules() }),
  }),
  scheduleAction("pause", "No more ticks until the schedule is resumed."),
  scheduleAction("resume", "Continues with the next tick."),
  route("post", "/schedules/:key/trigger", {
    id: "schedules.trigger",
    summary: "Enqueues the schedule's job now.",
    path: keyInPath,
    answer: z.object({ id: z.string(), duplicate: z.boolean() }),
    run: async ({ hf, path }) => {
      const { id, duplicate } = await hf.schedules.trigger(path.key);
      return { id, duplicate };
    },
  }),
  route("delete", "/schedules/:key", {
    id: "schedules.remove",
    summary: "Removes the schedule. Its jobs stay.",
    path: keyInPath,
    answer: schemas.changed,
    run: async ({ hf, path }) => ({ changed: await hf.schedules.remove(path.key) }),
  }),
];

function scheduleAction(action: "pause" | "resume", summary: string) {
  return route("post", `/schedules/:key/${action}`, {
    id: `schedules.${action}`,
    summary,
    path: keyInPath,
    answer: schemas.done,
    run: async ({ hf, path }) => {
      await hf.schedules[action](path.key);
      return { ok: true };
    },
  });
}
