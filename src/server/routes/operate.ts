import * as z from "zod/mini";
import type { Event } from "../../core/jobs/event.ts";
import { definedOnly } from "../../core/text/options.ts";
import type { AuditEntry } from "../../store/audit.ts";
import { alarmsOf } from "../../operator/overview.ts";
import { examine } from "../../operator/doctor.ts";
import { ROLES } from "../access.ts";
import type { ServerOptions } from "../handler.ts";
import { queryList, queryNumber, route } from "../route.ts";
import * as schemas from "../schemas.ts";
import { changeStream, eventStream, streamHead } from "../streams.ts";

const { instant, text } = schemas;
const MAX_AUDIT_ENTRIES = 1_000;
const AUDIT_WINDOW = 1_000;
const LAST = Number.MAX_SAFE_INTEGER;

const process = z.object({
  pid: z.int(),
  host: z.string(),
  program: z.string(),
  startedAt: instant,
  life: z.enum(["alive", "dead", "rebooted", "unknown"]),
  works: z.array(z.looseObject({ name: z.string() })),
  running: z.int(),
  stopping: z.boolean(),
});
const event = z.object({
  seq: z.int(),
  type: z.string(),
  at: instant,
  dedupeKey: z.string(),
  job: z.optional(z.string()),
  build: z.optional(z.string()),
  data: schemas.anyJson,
});
const auditEntry = z.object({
  seq: z.int(),
  at: instant,
  by: z.string(),
  action: z.string(),
  subject: z.string(),
  before: schemas.anyJson,
  after: schemas.anyJson,
});

const backup = z.object({
  file: z.string(),
  takenAt: instant,
  size: z.int(),
  reason: z.enum(["asked", "scheduled", "migration"]),
  commits: z.int(),
  jobs: z.int(),
  findings: z.array(z.string()),
});

export const OPERATE_ROUTES = [
  route("get", "/overview", {
    id: "overview",
    summary:
      "Counts, queues, workers, open builds, locks, sinks and alarms, as `holdfast status` shows them; and what the caller may do.",
    answer: z.looseObject({
      at: instant,
      access: z.object({ role: z.enum(ROLES), user: z.optional(z.string()) }),
      counts: schemas.counts,
      processes: z.array(process),
      alarms: z.array(z.object({ code: z.string(), grave: z.boolean(), message: z.string(), hint: z.string() })),
    }),
    run: async ({ operator, access }) => {
      const { crashes, pending, ...overview } = await operator.overview();
      return { ...overview, access, alarms: alarmsOf({ ...overview, crashes, pending }) };
    },
  }),
  route("get", "/workers", {
    id: "workers.list",
    summary: "Processes that have the database open. Dead ones are listed until they are recovered.",
    answer: z.object({ items: z.array(process) }),
    run: async ({ operator }) => ({ items: (await operator.overview()).processes }),
  }),
  route("get", "/recovery", {
    id: "recovery.get",
    summary: "What was recovered so far, what is stale now, and the reports of crashes, the newest first.",
    query: { limit: z._default(queryNumber(1, 200), 20) },
    answer: z.object({ stats: z.looseObject({}), reports: z.array(z.looseObject({})) }),
    run: async ({ hf, query }) => {
      const [stats, reports] = await Promise.all([hf.recovery.stats(), hf.recovery.history()]);
      return { stats, reports: reports.slice(0, query.limit) };
    },
  }),
  route("post", "/recovery/acknowledge", {
    id: "recovery.acknowledge",
    summary: "Acknowledges the open reports with errors.",
    answer: z.object({ acknowledged: z.int() }),
    run: async ({ hf }) => ({ acknowledged: (await hf.recovery.acknowledge()).length }),
  }),
  route("get", "/audit", {
    id: "audit.list",
    summary: "Audit entries before a number, the newest first.",
    query: {
      limit: z._default(queryNumber(1, MAX_AUDIT_ENTRIES), 100),
      before: z.optional(queryNumber(1, LAST)),
      subject: z.optional(text),
    },
    answer: z.object({ items: z.array(auditEntry) }),
    run: async ({ operator, query }) => {
      const { limit, before, subject } = query;
      const of = definedOnly({ subject });
      if (before === undefined)
        return { items: (await operator.auditEntries({ after: 0, limit, last: true, ...of })).toReversed() };
      const [newest] = await operator.auditEntries({ after: 0, limit: 1, last: true });
      // Read backwards in windows, because the entries of one subject may be far apart.
      const items: AuditEntry[] = [];
      for (let end = Math.min(before - 1, newest?.seq ?? 0); end > 0 && items.length < limit; end -= AUDIT_WINDOW) {
        const after = Math.max(0, end - AUDIT_WINDOW);
        const entries = await operator.auditEntries({ after, limit: end - after, ...of });
        items.push(...entries.filter(({ seq }) => seq <= end).toReversed());
      }
      return { items: items.slice(0, limit) };
    },
  }),
  route("post", "/audit/verify", {
    id: "audit.verify",
    summary: "Verifies the chain of hashes of the audit log.",
    role: "read",
    isAudited: false,
    answer: z.looseObject({}),
    run: ({ operator }) => operator.verifyAudit([]),
  }),
  route("get", "/doctor", {
    id: "doctor",
    summary:
      "Findings of `holdfast doctor`, each with its remedy, but for what it reads the whole database for: pages, artifacts and " +
      "the audit. Damage that a process has found is among them.",
    answer: z.object({ found: z.array(z.looseObject({ grade: z.string() })) }),
    run: async ({ hf, operator }) => {
      const { found } = await examine({ location: operator.location, hf, backups: {}, now: operator.now(), isBrief: true });
      return { found };
    },
  }),
  route("get", "/backups", {
    id: "backups.list",
    summary: "The backups beside the database, the newest first. SQLite only.",
    answer: z.object({ items: z.array(backup) }),
    run: async ({ operator }) => ({
      items: operator.backups().map(({ file, takenAt, size, reason, commits, jobs, findings }) => {
        return { file, takenAt, size, reason, commits, jobs, findings };
      }),
    }),
  }),
  route("post", "/backups", {
    id: "backups.make",
    summary: "Copies the database into its backup folder, and checks the copy. SQLite only.",
    answer: z.object({ path: z.string() }),
    run: async ({ operator }) => {
      const path = operator.backupPath(undefined);
      await operator.backup(path, {});
      return { path };
    },
  }),
  route("get", "/events", {
    id: "events.list",
    summary: "Stored events after a number, in order.",
    query: {
      after: z._default(queryNumber(0, LAST), 0),
      limit: z._default(queryNumber(1, 1_000), 100),
      types: z.optional(queryList),
    },
    answer: z.object({ items: z.array(event), newest: z.int() }),
    run: async ({ operator, options, query }) => {
      const { types, ...rest } = query;
      const [items, newest] = await Promise.all([
        operator.events({ ...rest, ...definedOnly({ types }) }),
        operator.newestEvent(),
      ]);
      return { items: items.map((one) => shownEvent(one, options)), newest };
    },
  }),
  route("get", "/events/stream", {
    id: "events.stream",
    summary: "Events as server-sent events, from now on or after the header `Last-Event-ID`.",
    query: { types: z.optional(queryList), after: z.optional(queryNumber(0, LAST)) },
    headers: { "Last-Event-ID": z.optional(z.string()) },
    answer: z.string(),
    contentType: "text/event-stream",
    run: async ({ operator, options, query, request }) => {
      if (request.method === "HEAD") return streamHead();
      const last = request.headers.get("last-event-id");
      const after = last !== null && /^\d{1,15}$/.test(last) ? Number(last) : query.after;
      const shown = (one: Event) => shownEvent(one, options);
      return eventStream(operator, { shown, ...definedOnly({ types: query.types, after }) }, request.signal);
    },
  }),
  route("get", "/changes", {
    id: "changes.stream",
    summary: "A server-sent event after commits of any process, at most twice a second.",
    answer: z.string(),
    contentType: "text/event-stream",
    run: async ({ operator, request }) => (request.method === "HEAD" ? streamHead() : changeStream(operator, request.signal)),
  }),
];

/** Removes a job's error where jobs are redacted: the event has no job that `redact` could be called with. */
function shownEvent(event: Event, { redact }: ServerOptions): Event {
  if (redact === undefined || !event.type.startsWith("job.")) return event;
  const { error: _, ...data } = event.data as { error?: unknown };
  return { ...event, data };
}
