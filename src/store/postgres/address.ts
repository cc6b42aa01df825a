import { HoldfastError } from "../../core/errors.ts";

/** Where a server is, as it was given and as the driver takes it. */
export interface Address {
  url: string;
  /** A folder with a socket in it: `?host=/run/postgresql`. */
  socket?: string;
  /** For people, and never with a user or a password: `localhost:5432/shop`. */
  name: string;
  /** `?pooler=transaction`: a pooler in between gives each transaction another connection. */
  pooled: boolean;
}

const FORM = /^postgres(?:ql)?:\/\/(?:(?<user>[^/?#]*)@)?(?<hosts>[^/?#@]*)(?<path>\/[^?#]*)?(?:\?(?<query>[^#]*))?$/;

/** Whether it is meant to be one; a path is none. */
export function isAddress(where: string): boolean {
  return /^postgres(ql)?:/.test(where);
}

export function parseAddress(given: string): Address {
  const { user, hosts = "", path = "", query = "" } = FORM.exec(given)?.groups ?? {};
  const asked = new URLSearchParams(query);
  const pooler = asked.get("pooler");
  const socket = asked.get("host");
  asked.delete("pooler");
  asked.delete("host");
  const rest = asked.size === 0 ? "" : `?${asked}`;
  const url = `postgres://${user === undefined ? "" : `${user}@`}${hosts === "" ? "localhost" : hosts}${path}${rest}`;
  // Of several hosts the driver tries one after the other; to see whether all the rest is well formed, one is enough.
  if (!FORM.test(given) || !URL.canParse(url.replace(hosts, hosts.split(",")[0] as string))) throw malformed();
  if (pooler !== null && pooler !== "transaction") {
    throw new HoldfastError(
      "ADDRESS_INVALID",
      `There is no pooler ${JSON.stringify(pooler)}.`,
      "Give ?pooler=transaction behind a pooler in transaction mode; in session mode give nothing.",
    );
  }
  const at = socket ?? (hosts === "" ? "localhost" : hosts);
  return { url, name: `${at}${path}`, pooled: pooler !== null, ...(socket === null ? {} : { socket }) };
}

/** Names a schema that is Holdfast's own. Written in quotes everywhere, it could be anything; this is what people can type. */
export function checkSchema(schema: unknown): string {
  if (typeof schema === "string" && /^[a-z_][a-z0-9_]{0,39}$/.test(schema)) {
    if (!schema.startsWith("pg_") && schema !== "public" && schema !== "information_schema") return schema;
    throw new HoldfastError(
      "OPTION_INVALID",
      `The schema ${JSON.stringify(schema)} is not for Holdfast alone.`,
      'Its tables have plain names (jobs, queues, locks …): give them a schema of their own, such as "holdfast".',
    );
  }
  throw new HoldfastError(
    "OPTION_INVALID",
    `${JSON.stringify(schema) ?? String(schema)} is no name for a schema.`,
    "Give up to 40 of a–z, 0–9 and _, beginning with a letter or _.",
  );
}

/** It may hold a password, so it is not repeated. */
function malformed(): HoldfastError {
  return new HoldfastError(
    "ADDRESS_INVALID",
    "That is no address of a PostgreSQL database.",
    "Write postgres://user:password@host:5432/database; in user and password, encode / ? # @ : as %2F %3F %23 %40 %3A.",
  );
}
