import * as z from "zod/mini";
import type { ServerOptions } from "./handler.ts";
import type { Fields, Route } from "./route.ts";

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

/** The OpenAPI 3.1 document of these routes, from the schemas that check their requests. */
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

function operationOf({ id, summary, role, path, query, body, answer }: Route): object {
  return {
    operationId: id,
    summary,
    description: `Needs the role \`${role}\`.`,
    tags: [id.split(".")[0]],
    parameters: [...parametersOf("path", path), ...parametersOf("query", query)],
    ...(body === null
      ? {}
      : {
          requestBody: { required: true, content: { "application/json": { schema: toSchema(z.strictObject(body), "input") } } },
        }),
    responses: {
      200: { description: "The answer.", content: { "application/json": { schema: toSchema(answer, "output") } } },
      default: ERROR,
    },
  };
}

function parametersOf(where: "path" | "query", fields: Fields): object[] {
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
