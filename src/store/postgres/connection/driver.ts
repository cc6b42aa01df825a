import type postgres from "postgres";
import { connect as dial, type Socket } from "node:net";
import { HoldfastError } from "../../../core/text/errors.ts";
import { isModuleMissing, requirePackage } from "../../own-file.ts";
import { IS_THREAD_CODE } from "../../thread-code.ts";
import { ConnectionLost } from "./faults.ts";
import type { Address, Host } from "./address.ts";

export type Sql = postgres.Sql<{ bigint: number }>;
export type Value = string | number | boolean | null;

export type Rows = <Row extends readonly unknown[]>(text: string, ...values: Value[]) => Promise<Row[]>;

export interface Server {
  driver: typeof postgres;
  address: Address;
  /** How long an answer may take before another connection checks whether one will come, in milliseconds. */
  silence: number;
}

export interface ConnectOptions {
  name: string;
  onClose: (cause?: Error) => void;
  onNotice?: (channel: string, text: string) => void;
}

export interface Connection {
  sql: Sql;
  heard(): number;
  keep(alive: boolean): void;
  destroy(): void;
}

export async function loadDriver(): Promise<typeof postgres> {
  try {
    return IS_THREAD_CODE ? (requirePackage("postgres") as typeof postgres) : (await import("postgres")).default;
  } catch (error) {
    if (!isModuleMissing(error)) throw error;
    throw new HoldfastError(
      "DRIVER_MISSING",
      "PostgreSQL needs the package `postgres`, which is not installed.",
      "Run `npm install postgres`, and start the program again.",
      { cause: error },
    );
  }
}

/** Connects once: the driver's reconnect waits for lost answers, sends the rest of a transaction anew, or retries for ever. */
export function connect({ driver, address }: Server, host: Host, options: ConnectOptions): Connection {
  let socket: Socket | null = null;
  const once = () => {
    if (socket !== null) throw new ConnectionLost();
    socket = dial(host.host === undefined ? { path: host.path } : { ...host, noDelay: true });
    return dialled(socket, host).then((made) => {
      // The driver continues as if TLS had been granted, and then fails without the reason.
      if (address.ssl !== false && address.ssl !== "prefer")
        made.once("data", (answer) => answer[0] === NOT_ENCRYPTED && options.onClose(tlsRefused()));
      return made;
    });
  };
  const sql = driver({
    ...host,
    ...(address.user === undefined ? {} : { user: address.user }),
    ...(address.password === undefined ? {} : { password: address.password }),
    ...(address.database === undefined ? {} : { database: address.database }),
    ssl: address.ssl as "require",
    max: 1,
    prepare: !address.pooled,
    // Lists are sent as text, so the types are not needed, and errors while the driver fetches them could not be caught.
    fetch_types: false,
    max_lifetime: null,
    idle_timeout: 0,
    connect_timeout: 0,
    keep_alive: 15,
    onnotice: () => {},
    onclose: () => options.onClose(),
    // The driver's own `listen` reconnects by itself, after delays that cannot be set.
    ...(options.onNotice === undefined ? {} : { onnotify: options.onNotice }),
    connection: { application_name: options.name, ...address.settings },
    types: {
      bigint: { to: 20, from: [20], parse: Number, serialize: String },
      ...TEXTS_AS_THEY_ARE,
    },
    ...({ socket: once } as object),
  });
  return {
    sql,
    heard: () => socket?.bytesRead ?? 0,
    keep: (alive) => void (alive ? socket?.ref() : socket?.unref()),
    destroy: () => void socket?.destroy(),
  };
}

/** Sends text unchanged: the driver would make a JSON string of a JSON text, `false` of "true", and an error of "infinity". */
const TEXTS_AS_THEY_ARE = {
  json: { to: 114, from: [114, 3802], parse: JSON.parse, serialize: textOr(JSON.stringify) },
  boolean: { to: 16, from: [16], parse: (text: string) => text === "t", serialize: textOr(String) },
  date: {
    to: 1184,
    from: [1082, 1114, 1184],
    parse: (text: string) => new Date(text),
    serialize: textOr((value) => new Date(value as Date).toISOString()),
  },
};

function textOr(serialize: (value: unknown) => string) {
  return (value: unknown) => (typeof value === "string" ? value : serialize(value));
}

const NOT_ENCRYPTED = "N".charCodeAt(0);

function tlsRefused(): Error {
  return Object.assign(new Error("it does not offer TLS"), { code: "TLS_REFUSED" });
}

function dialled(socket: Socket, host: Host): Promise<Socket> {
  return new Promise((resolve, reject) => {
    socket.once("error", reject);
    socket.once("close", () => reject(new ConnectionLost()));
    socket.once("connect", () => {
      socket.removeAllListeners();
      resolve(Object.assign(socket, { host: host.host }));
    });
  });
}

/** Formats a list as PostgreSQL writes it, which is one value however many items it has. */
export function listOf(values: readonly Value[]): string {
  let text = "{";
  for (let i = 0; i < values.length; i++) {
    const value = values[i] as Value;
    if (i > 0) text += ",";
    text += typeof value === "string" ? quoted(value) : value === null ? "NULL" : String(value);
  }
  return `${text}}`;
}

export function lists<Name extends string>(rows: readonly Readonly<Record<Name, Value>>[], ...names: Name[]): string[] {
  return names.map((name) => listOf(rows.map((row) => row[name])));
}

/** Returns SQL for the position of a number in a sorted list. Rows found by `= any(list)` get their values by it in one walk. */
export function placeIn(number: string, list: string): string {
  return `width_bucket(${number}, ${list}::bigint[])`;
}

function quoted(text: string): string {
  return `"${/["\\]/.test(text) ? text.replaceAll(/["\\]/g, "\\$&") : text}"`;
}
