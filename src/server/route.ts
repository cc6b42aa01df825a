import * as z from "zod/mini";
import type { Context } from "hono";
import { en } from "zod/locales";
import { HoldfastError } from "../core/text/errors.ts";
import type { Holdfast } from "../holdfast.ts";
import type { Operator } from "../operator/operator.ts";
import type { Access, Role } from "./access.ts";
import type { ServerOptions } from "./handler.ts";

// Zod reports the messages of its issues only with a locale.
z.config(en());

type Schema = z.ZodMiniType;
export type Fields = Record<string, Schema>;
type Parsed<F> = F extends Fields ? { [Name in keyof F]: z.infer<F[Name]> } : Record<never, never>;

export interface Call<Path, Query, Body> {
  hf: Holdfast;
  operator: Operator;
  options: ServerOptions;
  access: Access;
  request: Request;
  path: Path;
  query: Query;
  body: Body;
}

interface RouteOptions<P extends Fields, Q extends Fields, B extends Fields, A extends Schema> {
  id: string;
  summary: string;
  /** Role that a request needs. Default: "read" for `get`, else "operate". */
  role?: Exclude<Role, "none">;
  path?: P;
  query?: Q;
  body?: B;
  /** True where a request without a body means its defaults. Default: false. */
  isBodyOptional?: boolean;
  /** Schema of the answer. A `Response` is sent as it is. */
  answer: A;
  /** Media type of the answer. Default: "application/json". */
  contentType?: string;
  /** Headers that the route reads, described by their schemas. They are not checked. */
  headers?: Fields;
  /** False for the calls of workers, because each job takes a few. Default: writes are audited. */
  isAudited?: boolean;
  run: (call: Call<Parsed<P>, Parsed<Q>, Parsed<B>>) => Promise<unknown>;
}

/** One operation of the API. Its schemas check requests and also make the OpenAPI document. */
export interface Route {
  method: "get" | "post" | "put" | "delete";
  url: string;
  id: string;
  summary: string;
  role: Exclude<Role, "none">;
  path: Fields;
  query: Fields;
  body: Fields | null;
  isBodyOptional: boolean;
  answer: Schema;
  contentType?: string;
  headers?: Fields;
  isAudited: boolean;
  run: (call: Call<unknown, unknown, unknown>) => Promise<unknown>;
}

export function route<P extends Fields, Q extends Fields, B extends Fields, A extends Schema>(
  method: Route["method"],
  url: string,
  options: RouteOptions<P, Q, B, A>,
): Route {
  const isRead = method === "get";
  const { role = isRead ? "read" : "operate", path = {}, query = {}, body = null, ...rest } = options;
  const { isBodyOptional = false, isAudited = !isRead, run, ...same } = rest;
  return { method, url, ...same, role, path, query, body, isBodyOptional, isAudited, run: run as Route["run"] };
}

export async function parseRequest(route: Route, c: Context): Promise<{ path: unknown; query: unknown; body: unknown }> {
  const query: Record<string, unknown> = {};
  for (const [name, values] of Object.entries(c.req.queries())) query[name] = values.length === 1 ? values[0] : values;
  const path = c.req.param();
  // A path cannot have "." or ".." as an id, nor an id that is the name of another operation, such as "counts".
  for (const name of Object.keys(route.path).filter((one) => one in query)) {
    path[name] = query[name] as string;
    delete query[name];
  }
  return {
    path: check(route.path, path, "The path"),
    query: check(route.query, query, "The query"),
    body: route.body === null ? {} : check(route.body, await jsonOf(c, route.isBodyOptional), "The body"),
  };
}

async function jsonOf(c: Context, isOptional: boolean): Promise<unknown> {
  const text = await c.req.text();
  if (text === "") {
    // A parser in front of the handler leaves an empty stream. An empty filter in its place would match every job.
    const isAnnounced = Number(c.req.header("content-length") ?? 0) > 0 || c.req.header("transfer-encoding") !== undefined;
    if (isAnnounced) throw invalid("The body was read before Holdfast.", "Mount the handler before anything that reads bodies.");
    if (!isOptional) throw invalid("The body is missing.", "Send a JSON object.");
    return {};
  }
  try {
    return JSON.parse(text, rejectInexact as (key: string, value: unknown) => unknown);
  } catch (cause) {
    if (cause instanceof HoldfastError) throw cause;
    // JSON.parse visits each level by a call of its own.
    if (cause instanceof RangeError) throw invalid("The body is nested too deeply.", "Send fewer levels of arrays and objects.");
    throw invalid(`The body is not JSON: ${(cause as Error).message}`, "Send a JSON object.");
  }
}

/** Rejects integers that JavaScript would round, because programs in other languages send them. */
function rejectInexact(key: string, value: unknown, { source }: { source?: string }): unknown {
  if (typeof value !== "number" || Number.isSafeInteger(value) || source === undefined || !/^-?\d+$/.test(source)) return value;
  throw invalid(`The number ${source} of \`${key}\` cannot be kept exactly.`, "Send it as a string.");
}

function check(fields: Fields, given: unknown, what: string): unknown {
  const parsed = z.strictObject(fields).safeParse(given);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const hint = `Allowed: ${Object.keys(fields).join(", ") || "nothing"}. The schema is at api/v1/openapi.json.`;
  if (issue === undefined || issue.path.length === 0) throw invalid(`${what} is not valid: ${issue?.message ?? ""}.`, hint);
  const isMissing = issue.code === "invalid_type" && valueAt(given, issue.path) === undefined;
  // A single value of a list in a query has no index, so the path ends at its name.
  const path = what === "The query" ? issue.path.slice(0, 1) : issue.path;
  const where = `\`${path.join(".")}\``;
  if (isMissing) throw invalid(`${where} is required.`, hint);
  if (issue.code === "invalid_format" && "pattern" in issue && issue.pattern === String(WHOLE_NUMBER))
    throw invalid(`${where} must be a whole number.`, hint);
  throw invalid(`${what}'s ${where} is not valid: ${issue.message}.`, hint);
}

function valueAt(given: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>((value, name) => (value as Record<PropertyKey, unknown> | null | undefined)?.[name], given);
}

function invalid(message: string, hint: string): HoldfastError {
  return new HoldfastError("REQUEST_INVALID", message, hint);
}

const WHOLE_NUMBER = /^\d{1,15}$/;

export const queryNumber = (least: number, most: number) =>
  z.pipe(
    z.pipe(
      z.string().check(z.regex(WHOLE_NUMBER)),
      z.transform((text: string) => Number(text)),
    ),
    z.int().check(z.gte(least), z.lte(most)),
  );
export const queryList = z.pipe(
  z.union([z.string(), z.array(z.string())]),
  z.transform((given: string | string[]) => [given].flat()),
);

const ERROR = {
  description: "What happened, and what to do.",
  content: {
    "application/json": {
      schema: {
        type: "object",
        properties: {
          error: {
            type: "object",
            properties: { code: { type: "string" }, message: { type: "string" }, hint: { type: "string" } },
            required: ["code", "message", "hint"],
          },
        },
        required: ["error"],
      },
    },
  },
};

export function openapi(routes: readonly Route[], { title = "Holdfast", basePath = "" }: ServerOptions): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const route of routes) {
    const url = route.url.replaceAll(/:(\w+)/g, "{$1}");
    (paths[url] ??= {})[route.method] = operationOf(route);
  }
  return {
    openapi: "3.1.0",
    info: { title: `${title} API`, version: "1", description: "Jobs, queues, builds and recovery of a Holdfast database." },
    servers: [{ url: `${basePath.replace(/\/+$/, "")}/api/v1` }],
    security: [{ token: [] }],
    components: { securitySchemes: { token: { type: "http", scheme: "bearer" } } },
    paths,
  };
}

function operationOf(route: Route): object {
  const { id, summary, role, path, query, body, isBodyOptional, answer, contentType = "application/json", headers = {} } = route;
  return {
    operationId: id,
    summary,
    description: `Needs the role \`${role}\`.`,
    tags: [id.split(".")[0]],
    parameters: [...parametersOf("path", path), ...parametersOf("query", query), ...parametersOf("header", headers)],
    ...(body === null
      ? {}
      : {
          requestBody: {
            required: !isBodyOptional,
            content: { "application/json": { schema: toSchema(z.strictObject(body), "input") } },
          },
        }),
    responses: {
      200: { description: "The answer.", content: { [contentType]: { schema: toSchema(answer, "output") } } },
      default: ERROR,
    },
  };
}

function parametersOf(where: "path" | "query" | "header", fields: Fields): object[] {
  const { properties = {}, required = [] } = toSchema(z.strictObject(fields), "input") as {
    properties?: Record<string, object>;
    required?: string[];
  };
  return Object.entries(properties).map(([name, schema]) => ({
    name,
    in: where,
    required: where === "path" || required.includes(name),
    schema,
  }));
}

function toSchema(schema: z.ZodMiniType, io: "input" | "output"): object {
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io, unrepresentable: "any" }) as Record<string, unknown>;
  return rest;
}
