import { HoldfastError } from "../../../core/text/errors.ts";

export interface Address {
  name: string;
  hosts: readonly Host[];
  user: string | undefined;
  password: string | undefined;
  database: string | undefined;
  ssl: string | boolean;
  /** True if only a server that takes writes will do. Other hosts are skipped. */
  writable: boolean;
  /** True for `?pooler=transaction`: a pooler gives each transaction another connection. */
  pooled: boolean;
  within: number;
  settings: Readonly<Record<string, string>>;
}

export type Host = { host: string; port: number } | { path: string; host?: undefined };

const FORM = /^postgres(?:ql)?:\/\/(?:(?<user>[^/?#]*)@)?(?<hosts>[^/?#@]*)(?<path>\/[^?#]*)?(?:\?(?<query>[^#]*))?$/;
const PORT = 5432;
const CONNECT_TIMEOUT_MS = 10_000;
const SSL_MODES = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];
/** Options that the driver ignores. The connection would be less safe than its user believes, so they are rejected. */
const UNSUPPORTED = [
  "channel_binding",
  "client_encoding",
  "passfile",
  "service",
  "sslcert",
  "sslcrl",
  "sslkey",
  "sslpassword",
  "sslrootcert",
];

export function isAddress(where: string): boolean {
  return /^postgres(ql)?:/.test(where);
}

/** postgres://user:password@host:port,host:port/database?name=value. Unknown names are settings, which the server checks. */
export function parseAddress(given: string, env: Readonly<Record<string, string | undefined>> = process.env): Address {
  const { user, hosts: at = "", path = "", query = "" } = FORM.exec(given)?.groups ?? malformed();
  // An @ this late follows a password that was not encoded: no part of it may be taken for a host, and shown.
  if (`${path}${query}`.includes("@") && user === undefined) malformed();
  if (path.includes("@")) malformed();
  const asked = new Map(new URLSearchParams(query));
  const take = (name: string) => {
    const value = asked.get(name);
    asked.delete(name);
    return value === "" ? undefined : value;
  };
  const [userName, password] = (user ?? "").split(/:(.*)/s, 2).map(decode);
  const names = decode(at) || (take("host") ?? env["PGHOST"] ?? "localhost");
  const port = take("port") ?? env["PGPORT"];
  const address = {
    name: `${names}${path}`,
    hosts: names.split(",").map((name) => hostOf(name, port)),
    user: once("user", userName || undefined, take("user")),
    password: once("password", password || undefined, take("password")),
    database: decode(path.slice(1)) || env["PGDATABASE"],
    ssl: sslOf(take("sslmode") ?? take("ssl") ?? (env["PGSSLMODE"] || undefined)),
    writable: isWritable(take("target_session_attrs")),
    pooled: isPooled(take("pooler")),
    within: withinOf(take("connect_timeout")),
  };
  for (const name of UNSUPPORTED) if (asked.has(name)) refuse(name, "is not supported", "Leave it out.");
  return { ...address, settings: Object.fromEntries(asked) };
}

function once(name: string, before: string | undefined, asked: string | undefined): string | undefined {
  if (before !== undefined && asked !== undefined)
    refuse(name, "is given twice", "Give it once, before the host or in the query.");
  return before ?? asked;
}

export function checkSchema(schema: unknown): string {
  if (typeof schema === "string" && /^[a-z_][a-z0-9_]{0,39}$/.test(schema)) {
    if (!schema.startsWith("pg_") && schema !== "public" && schema !== "information_schema") return schema;
    throw new HoldfastError(
      "OPTION_INVALID",
      `The schema ${JSON.stringify(schema)} is a shared schema.`,
      'The tables have plain names (jobs, queues, locks …): give a schema for them alone, such as "holdfast".',
    );
  }
  throw new HoldfastError(
    "OPTION_INVALID",
    `${JSON.stringify(schema) ?? String(schema)} cannot be the name of a schema.`,
    "Give at most 40 characters of a–z, 0–9 and _, the first a letter or _.",
  );
}

function hostOf(name: string, given: string | undefined): Host {
  if (name.startsWith("/")) return { path: `${name}/.s.PGSQL.${portOf(given)}` };
  const [, six, plain, port] = /^(?:\[([0-9a-f:.%]+)\]|([^:[\]\s]+))(?::(\d+))?$/i.exec(name) ?? malformed();
  return { host: (six ?? plain) as string, port: portOf(port ?? given) };
}

function portOf(given: string | undefined): number {
  const port = given === undefined ? PORT : Number(given);
  return Number.isInteger(port) && port > 0 && port < 65_536 ? port : malformed();
}

function sslOf(mode: string | undefined): string | boolean {
  if (mode === undefined || mode === "disable" || mode === "false") return false;
  if (mode === "true") return "verify-full";
  return SSL_MODES.includes(mode) ? mode : refuse("sslmode", "is not known", `Give one of ${SSL_MODES.join(", ")}.`);
}

function isWritable(attrs: string | undefined): boolean {
  if (attrs === undefined || attrs === "any") return false;
  if (attrs === "read-write" || attrs === "primary") return true;
  return refuse("target_session_attrs", "is of no use here", "Holdfast writes: give `read-write`, or leave it out.");
}

function isPooled(pooler: string | undefined): boolean {
  if (pooler === undefined || pooler === "transaction") return pooler !== undefined;
  return refuse(
    "pooler",
    "is not known",
    "Give ?pooler=transaction behind a pooler in transaction mode; in session mode give nothing.",
  );
}

function withinOf(seconds: string | undefined): number {
  if (seconds === undefined) return CONNECT_TIMEOUT_MS;
  const within = Number(seconds) * 1_000;
  // 0 means no timeout, which is the longest time that a timer can have.
  if (within >= 0) return within === 0 ? 2 ** 31 - 1 : within;
  return refuse("connect_timeout", "is not a number", "Give a number of seconds.");
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return malformed();
  }
}

/** Throws without repeating the address, which may contain a password. */
function malformed(): never {
  throw new HoldfastError(
    "ADDRESS_INVALID",
    "This is not the address of a PostgreSQL database.",
    "Give postgres://user:password@host:5432/database; in user and password, encode / ? # @ : as %2F %3F %23 %40 %3A.",
  );
}

function refuse(name: string, why: string, hint: string): never {
  throw new HoldfastError("ADDRESS_INVALID", `\`${name}\` in the address of the PostgreSQL server ${why}.`, hint);
}
