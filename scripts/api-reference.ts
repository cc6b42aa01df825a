import { openapi, type Route } from "../src/server/route.ts";
import { ROUTES } from "../src/server/routes/index.ts";
import { cell, generatedBy } from "./source.ts";

interface Schema {
  type?: string;
  enum?: unknown[];
  const?: unknown;
  anyOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  default?: unknown;
}
interface Operation {
  parameters: { name: string; in: string; required: boolean; schema: Schema }[];
  requestBody?: { content: { "application/json": { schema: Schema } } };
}

/** docs/http-api.md, from the routes of src/server. */
export function apiReference(): string {
  const { paths } = openapi(ROUTES, {}) as { paths: Record<string, Record<string, Operation>> };
  const sections = ROUTES.map((route) => {
    const url = route.url.replaceAll(/:(\w+)/g, "{$1}");
    const { parameters, requestBody } = (paths[url] as Record<string, Operation>)[route.method] as Operation;
    const body = requestBody?.content["application/json"].schema;
    const rows = [
      ...parameters.map(({ name, in: where, required, schema }) => row(name, where, required, schema)),
      ...Object.entries(body?.properties ?? {}).map(([name, schema]) =>
        row(name, "body", body?.required?.includes(name) ?? false, schema),
      ),
    ];
    const table = rows.length === 0 ? [] : ["", "| parameter | where | type | |", "|---|---|---|---|", ...rows];
    return [`## ${titleOf(route)}`, "", `${route.summary} Role: \`${route.role}\`.`, ...table].join("\n");
  });
  return [
    generatedBy("scripts/api-reference.ts"),
    "",
    "# Reference of the HTTP API",
    "",
    "Every operation of `holdfast ui` and `handler(hf)`, below `/api/v1`. `/api/v1/openapi.json` is the same as OpenAPI 3.1, with",
    "the schemas of the answers. [dashboard.md](dashboard.md) has access, roles and mounting.",
    "",
    "Bodies and answers are JSON. An error is `{ error: { code, message, hint } }`: 400 bad request, 403 no access, 404 not found,",
    "409 the state or lease has changed, 413 too large, 429 too many, 503 the database cannot be used now. Instants are milliseconds",
    'since 1970; a duration is milliseconds or a text such as `"90s"`.',
    "",
    "A query may replace a part of the path: `GET /jobs/-?id=..` is the job `..`, and `GET /jobs/-?id=counts` the job `counts`,",
    "which no path names.",
    "",
    `${sections.join("\n\n")}\n`,
  ].join("\n");
}

function titleOf({ method, url }: Route): string {
  return `${method.toUpperCase()} ${url.replaceAll(/:(\w+)/g, "{$1}")}`;
}

function row(name: string, where: string, isRequired: boolean, schema: Schema): string {
  const given = schema.default === undefined ? "" : `default: ${JSON.stringify(schema.default)}`;
  return `| \`${name}\` | ${where} | \`${cell(typeOf(schema))}\` | ${isRequired && given === "" ? "required" : given} |`;
}

function typeOf({ type, enum: values, const: value, anyOf, items, properties }: Schema): string {
  if (anyOf !== undefined) return [...new Set(anyOf.map(typeOf))].join(" | ");
  if (values !== undefined) return values.map((one) => JSON.stringify(one)).join(" | ");
  if (value !== undefined) return JSON.stringify(value);
  if (type === "array") return `${typeOf(items ?? {})}[]`;
  if (type === "object" && properties !== undefined) return `{ ${Object.keys(properties).join(", ")} }`;
  return type ?? "any JSON";
}
