import { HoldfastError } from "../../core/errors.ts";
import type postgres from "postgres";

export type Sql = postgres.Sql<{ bigint: number }>;
export type Reserved = postgres.ReservedSql<{ bigint: number }>;
/** What a statement takes. Lists go in as one text, see `listOf`. */
export type Value = string | number | boolean | null;

/** Sends a statement, of a transaction or of a reader; the rows of its answer, each in the order of its columns. */
export type Rows = <Row extends readonly unknown[]>(text: string, ...values: Value[]) => Promise<Row[]>;

export interface ConnectOptions {
  /** How many connections at most. */
  max: number;
  /** A pooler in between gives each transaction another connection, where nothing can be prepared. */
  pooled: boolean;
  onClose?: () => void;
  onNotice?: (channel: string, text: string) => void;
}

/** The driver is the user's to install, and is loaded only where it is needed. */
export async function loadDriver(): Promise<typeof postgres> {
  try {
    return (await import("postgres")).default;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ERR_MODULE_NOT_FOUND") throw error;
    throw new HoldfastError(
      "DRIVER_MISSING",
      "To work on PostgreSQL, Holdfast needs the package `postgres`, which is not installed here.",
      "Run `npm install postgres` and start again.",
      { cause: error },
    );
  }
}

/** Nothing is connected yet: that happens with the first statement. */
export function connect(driver: typeof postgres, to: { url: string; socket?: string }, options: ConnectOptions): Sql {
  return driver(to.url, {
    ...(to.socket === undefined ? {} : { host: to.socket }),
    max: options.max,
    prepare: !options.pooled,
    // Lists are sent as text, so nobody needs the types; but a connection to be reserved is never handed out without.
    fetch_types: true,
    // Whoever waits decides how long, and tries again by himself.
    backoff: () => 0,
    connect_timeout: 10,
    max_lifetime: null,
    idle_timeout: 0,
    keep_alive: 15,
    onnotice: () => {},
    ...(options.onClose === undefined ? {} : { onclose: options.onClose }),
    // What the driver's own `listen` is made of; that one cannot be told how long to wait before it connects again.
    ...(options.onNotice === undefined ? {} : { onnotify: options.onNotice }),
    connection: { application_name: "holdfast" },
    // Instants and keys are below 2^53.
    types: { bigint: { to: 20, from: [20], parse: Number, serialize: String } },
  });
}

/** A list as PostgreSQL writes it: one value, however many there are. */
export function listOf(values: readonly (string | number | boolean | null)[]): string {
  let text = "{";
  for (let i = 0; i < values.length; i++) {
    const value = values[i] as string | number | boolean | null;
    if (i > 0) text += ",";
    text += typeof value === "string" ? quoted(value) : value === null ? "NULL" : String(value);
  }
  return `${text}}`;
}

function quoted(text: string): string {
  return `"${/["\\]/.test(text) ? text.replaceAll(/["\\]/g, "\\$&") : text}"`;
}
