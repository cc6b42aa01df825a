import { setTimeout } from "node:timers/promises";
import type { Context } from "hono";
import { bodyLimit } from "hono/body-limit";
import { Hono } from "hono/tiny";
import { HoldfastError, LeaseLostError } from "../core/text/errors.ts";
import type { Job } from "../core/jobs/job.ts";
import { type Pipeline, pipelineOf } from "../core/pipelines/pipeline.ts";
import { checkFunction, checkText, describeValue, refuseUnknown, rejectSurplus } from "../core/text/options.ts";
import { definitionOf, type JobDef } from "../engine/definition.ts";
import { describeError } from "../engine/log.ts";
import type { Holdfast } from "../holdfast.ts";
import { Operator } from "../operator/operator.ts";
import { type Access, allows, RateLimit, refuseForeign, ROLES } from "./access.ts";
import { dashboard } from "./assets.ts";
import { openapi, parseRequest, type Route } from "./route.ts";
import { ROUTES } from "./routes/index.ts";
import { exposition, familiesOf } from "../core/recovery/metrics.ts";
import { alarmsOf } from "../operator/overview.ts";

export interface ServerOptions {
  /** Path under which the handler is mounted, e.g. `/admin/jobs`. Default: "/". */
  basePath?: string;
  /** Decides what a request may do. Default: every request is answered with 403. */
  authorize?: (request: Request) => Access | Promise<Access>;
  /** Changes a job before it is shown, for example to hide parts of its input. Events then have no error of a job, and no filter may name input or error. Default: jobs are shown as they are. */
  redact?: (job: Job) => Job;
  /** Definitions of jobs that are enqueued over HTTP: their queue, retries, limits and schema apply. Default: none, so defaults apply. */
  jobs?: JobDef[];
  /** Pipelines whose next build can be planned over HTTP. Default: none. */
  pipelines?: Pipeline[];
  /** Title of the dashboard. Default: "Holdfast". */
  title?: string;
}

const MAX_BODY_BYTES = 4 * 1024 * 1024;
/** Prometheus gives up after ten seconds. */
const METRICS_TIMEOUT_MS = 8_000;
/** Statuses of error codes. Any other `HoldfastError` says that the request cannot be served as it is: 400. */
const CODES_BY_STATUS: Readonly<Record<number, readonly string[]>> = {
  403: ["NO_ACCESS", "ORIGIN_REFUSED", "HEADER_MISSING"],
  404: [
    "NO_SUCH_ROUTE",
    "NO_SUCH_JOB",
    "NO_SUCH_BUILD",
    "NO_SUCH_PIPELINE",
    "NO_SUCH_QUEUE",
    "NO_SUCH_SCHEDULE",
    "ARTIFACT_MISSING",
  ],
  409: ["LEASE_LOST", "KEY_TAKEN", "ID_TAKEN", "BUILD_STATE", "LOCK_CONFLICT"],
  413: ["BODY_TOO_LARGE"],
  429: ["TOO_MANY_REQUESTS", "TOO_MANY_STREAMS"],
  // The database cannot be reached, read or written now.
  503: [
    "ACCESS_DENIED",
    "BUSY",
    "CANNOT_OPEN",
    "CLOSED",
    "COMMIT_UNKNOWN",
    "DAMAGED",
    "DATABASE_GONE",
    "DISK_ERROR",
    "DISK_FULL",
    "LOCKS_LOST",
    "NO_RIGHTS",
    "READ_ONLY",
    "RECOVERY_PENDING",
    "SERVER_EXHAUSTED",
    "SERVER_GONE",
    "STATEMENT_CANCELLED",
    "STATEMENT_TIMEOUT",
    "STORE_ERROR",
    "TLS_FAILED",
    "TOO_MANY_CONNECTIONS",
  ],
};
const STATUS = new Map(Object.entries(CODES_BY_STATUS).flatMap(([status, codes]) => codes.map((code) => [code, Number(status)])));

/** Without `strict-transport-security`: whether a site and its subdomains need TLS is the decision of the app or proxy in front. */
const SECURITY_HEADERS = {
  "content-security-policy":
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
  "origin-agent-cluster": "?1",
  "referrer-policy": "no-referrer",
  "x-content-type-options": "nosniff",
  "x-dns-prefetch-control": "off",
  "x-download-options": "noopen",
  "x-frame-options": "DENY",
  "x-permitted-cross-domain-policies": "none",
  "x-xss-protection": "0",
};

/**
 * The dashboard and the HTTP API as one fetch handler, for any server that speaks `Request` and `Response`.
 *
 * ```ts
 * app.all("/holdfast/*", (c) => fetchHoldfast(c.req.raw));
 * const fetchHoldfast = handler(hf, { basePath: "/holdfast", authorize: (request) => roleOf(request) });
 * ```
 */
export function handler(hf: Holdfast, options: ServerOptions = {}): (request: Request) => Promise<Response> {
  rejectSurplus(arguments, 2, "handler");
  refuseUnknown(options, ["basePath", "authorize", "redact", "jobs", "pipelines", "title"], "handler");
  for (const def of options.jobs ?? []) definitionOf(def);
  for (const pipeline of options.pipelines ?? []) pipelineOf(pipeline);
  if (options.authorize !== undefined) checkFunction(options.authorize, "authorize");
  if (options.redact !== undefined) checkFunction(options.redact, "redact");
  if (options.title !== undefined) checkText(options.title, "The title");
  const basePath = basePathOf(options.basePath);
  const app = appOf(hf, options);
  return async (request) => {
    const url = new URL(request.url);
    if (url.pathname === basePath && basePath !== "")
      return new Response(null, { status: 308, headers: { location: `${basePath}/${url.search}` } });
    if (url.pathname.startsWith(`${basePath}/`)) url.pathname = url.pathname.slice(basePath.length);
    return app.fetch(url.href === request.url ? request : new Request(url, request));
  };
}

function basePathOf(given = "/"): string {
  checkText(given, "`basePath`");
  const path = given.replace(/\/+$/, "");
  if (path === "" || /^(\/[\w.~-]+)+$/.test(path)) return path;
  throw new HoldfastError("OPTION_INVALID", `\`basePath\` must be a path such as "/admin/jobs", got "${given}".`, "Give a path.");
}

export type Env = { Variables: { access: Access } };

function appOf(hf: Holdfast, options: ServerOptions): Hono<Env> {
  const app = new Hono<Env>();
  const operator = new Operator(hf);
  const limit = new RateLimit();
  app.onError((error, c) => {
    const [body, status] = answerOf(error);
    if (!(error instanceof HoldfastError))
      hf.engine.log.error("a request failed", { method: c.req.method, path: c.req.path, error: error.stack ?? String(error) });
    // A browser that opens an address shows the plain message; programs get JSON.
    const isRead = c.req.method === "GET" && (c.req.header("accept") ?? "").includes("text/html");
    return isRead ? c.text(`${body.error.message}\n${body.error.hint}\n`, status) : c.json(body, status);
  });
  app.notFound(() => {
    throw new HoldfastError("NO_SUCH_ROUTE", "There is nothing at this address.", "The API is described at api/v1/openapi.json.");
  });
  app.use(async (c, next) => {
    await next();
    for (const [name, value] of Object.entries(SECURITY_HEADERS)) c.res.headers.set(name, value);
  });
  // The router also matches a path with a slash at its end, but `jobs/` is a job without an id, not the list of jobs.
  app.use((c, next) => (/.\/$/.test(c.req.path) ? Promise.resolve(c.notFound()) : next()));
  app.get("/health/live", (c) => c.json({ ok: true }));
  app.use(async (c, next) => {
    const access = await accessOf(c.req.raw, options);
    limit.take(access.user ?? access.role);
    c.set("access", access);
    if (c.req.method !== "GET" && c.req.method !== "HEAD") refuseForeign(c.req.raw);
    await next();
  });
  app.use(bodyLimit({ maxSize: MAX_BODY_BYTES, onError: () => rejectBody() }));
  for (const route of ROUTES) app.on(route.method, `/api/v1${route.url}`, (c) => answer(route, c, c.get("access")));
  app.get("/api/v1/openapi.json", (c) => c.json(openapi(ROUTES, options)));
  app.get("/metrics", async (c) => {
    const snapshot = await Promise.race([operator.metrics({}), rejectLate()]).catch((error: unknown) => {
      if (!(error instanceof HoldfastError) || statusOf(error) !== 503) throw error;
      hf.engine.log.warn("the metrics could not be read", describeError(error));
      return { at: Date.now(), isDamaged: error.code === "DAMAGED" };
    });
    return c.text(exposition(familiesOf(snapshot)), 200, { "content-type": "text/plain; version=0.0.4; charset=utf-8" });
  });
  // Readiness for load balancers: 503 as long as there is a grave alarm.
  app.get("/health/ready", async (c) => {
    const alarms = alarmsOf(await operator.overview());
    const ok = !alarms.some((alarm) => alarm.grave);
    return c.json({ ok, alarms }, ok ? 200 : 503);
  });
  dashboard(app, options);
  return app;

  async function answer(route: Route, c: Context, access: Access): Promise<Response> {
    if (!allows(access.role, route.role)) throw noAccess(access.role, route.role);
    const request = c.req.raw;
    const parts = await parseRequest(route, c);
    const { dryRun = false, reason } = parts.body as { dryRun?: boolean; reason?: string };
    const { pathname, search } = new URL(request.url);
    if (route.isAudited && !dryRun) await operator.recordRequest(access.user, request.method, pathname + search, reason);
    const answered = await route.run({ hf, operator, options, access, request, ...parts });
    return answered instanceof Response ? answered : c.json(answered as object);
  }
}

async function accessOf(request: Request, { authorize }: ServerOptions): Promise<Access> {
  if (authorize === undefined)
    throw new HoldfastError(
      "NO_ACCESS",
      "This handler was created without `authorize`, so it allows nothing.",
      "Give handler(hf, { authorize }) a function that returns { role, user } for a request, after checking the user's session.",
    );
  const access = await authorize(request);
  if (!ROLES.includes(access?.role))
    throw new HoldfastError(
      "NO_ACCESS",
      `\`authorize\` returned ${describeValue(access)}, which has no role.`,
      `Return { role, user } with one of the roles ${ROLES.join(", ")}.`,
    );
  if (!allows(access.role, "read")) throw noAccess(access.role, "read");
  return access;
}

function noAccess(role: string, needed: string): HoldfastError {
  return new HoldfastError(
    "NO_ACCESS",
    role === "none" ? "The request has no access." : `The request has the role "${role}", and this needs "${needed}".`,
    `Have \`authorize\` return the role "${needed}".`,
  );
}

function rejectBody(): never {
  throw new HoldfastError(
    "BODY_TOO_LARGE",
    `The body is larger than ${MAX_BODY_BYTES / 1024 / 1024} MB.`,
    "Store large data elsewhere, and send its address.",
  );
}

/** Ends the wait for a server that does not answer. A call waits longer, because the server may restart. */
async function rejectLate(): Promise<never> {
  await setTimeout(METRICS_TIMEOUT_MS, undefined, { ref: false });
  const message = `The database did not answer within ${METRICS_TIMEOUT_MS / 1_000} s.`;
  throw new HoldfastError("SERVER_GONE", message, "Check the server and the network.");
}

/** Returns the message of a Holdfast error. Any other error may contain anything, so its message stays on the server. */
function answerOf(error: Error): [body: { error: { code: string; message: string; hint: string } }, status: 400] {
  if (!(error instanceof HoldfastError)) {
    const body = { code: "INTERNAL", message: "The server failed to answer.", hint: "See the server's log." };
    return [{ error: body }, 500 as 400];
  }
  const { code, message, hint } = error;
  return [{ error: { code, message, hint } }, statusOf(error) as 400];
}

function statusOf(error: HoldfastError): number {
  return error instanceof LeaseLostError ? 409 : (STATUS.get(error.code) ?? 400);
}
