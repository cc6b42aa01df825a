import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import postgres from "postgres";
import { packagedBinaries } from "./binaries.ts";
import { ServerProcess, type StopMode } from "./server-process.ts";
import { passwordOf, template } from "./cluster.ts";

const given = process.env["DATABASE_URL"] || undefined;
const native = packagedBinaries();

/** Why there is no server for tests here, or false. */
export const noServer: string | false =
  given === undefined && native === null
    ? `there are no PostgreSQL binaries for ${process.platform}-${process.arch}: set DATABASE_URL`
    : false;

/** Why tests cannot stop and start the server here, or false. */
export const noRestart: string | false =
  noServer || (given === undefined ? false : "the server of DATABASE_URL is not ours to stop");

export interface ServerOptions {
  /** Commits are synced to disk, as they are by default anywhere else; without it they survive everything but a power cut. */
  durable?: boolean;
  /** More lines of postgresql.conf. Not for the server of DATABASE_URL. */
  settings?: Record<string, string>;
}

/**
 * A real server: one of our own, in a temporary folder, that ends with this process however that ends; or the one of
 * DATABASE_URL, whose user must be allowed to create databases. Those are dropped by `close()`.
 */
export async function startServer({ durable = false, settings = {} }: ServerOptions = {}): Promise<PostgresServer> {
  if (given !== undefined) {
    const server = new PostgresServer(new URL(given), null);
    // What is in the database that was given is not ours.
    const url = new URL(await server.createDatabase());
    return new PostgresServer(url, null, { maker: server, aliveFolder: mkdtempSync(join(tmpdir(), "holdfast-alive-")) });
  }
  if (native === null) throw new Error(String(noServer));
  const password = template === undefined ? randomBytes(16).toString("hex") : passwordOf(template);
  const lazily = durable ? {} : { fsync: "off", full_page_writes: "off" };
  const serverProcess = await ServerProcess.start({ native, password, settings: { ...lazily, ...settings } });
  const { port, aliveFolder } = serverProcess.place;
  return new PostgresServer(new URL(`postgres://postgres:${password}@127.0.0.1:${port}/postgres`), serverProcess, {
    aliveFolder,
  });
}

/** A replica of a server of our own, which is stopped for a moment: it has the same users, databases and settings. */
export async function startReplica(primary: PostgresServer): Promise<PostgresServer> {
  if (native === null) throw new Error(String(noServer));
  const { password, port } = new URL(primary.url());
  await primary.stop("fast");
  const primary_conninfo = `host=127.0.0.1 port=${port} user=postgres password=${password} application_name=replica`;
  const replicaOf = dirname(primary.dataFolder);
  const serverProcess = await ServerProcess.start({
    native,
    password,
    settings: { fsync: "off", wal_retrieve_retry_interval: "20ms", primary_conninfo },
    replicaOf,
  });
  await primary.start();
  return new PostgresServer(Object.assign(new URL(primary.url()), { port: serverProcess.place.port }), serverProcess);
}

export class PostgresServer {
  readonly #home: URL;
  readonly #serverProcess: ServerProcess | null;
  readonly #made = new Set<string>();
  /** Where the database of `url()` was made, when it has to be dropped at the end. */
  readonly #maker: PostgresServer | undefined;
  readonly #aliveFolder: string | undefined;

  /** What processes here leave for each other is in `aliveFolder` while this server is there, unless there is another already. */
  constructor(home: URL, serverProcess: ServerProcess | null, more: { maker?: PostgresServer; aliveFolder?: string } = {}) {
    this.#home = home;
    this.#serverProcess = serverProcess;
    this.#maker = more.maker;
    this.#aliveFolder = more.aliveFolder;
    if (more.aliveFolder !== undefined) process.env["HOLDFAST_ALIVE"] ??= more.aliveFolder;
  }

  /** Of a database that is there, without a name: of one that belongs to this test file. */
  url(database?: string): string {
    const url = new URL(this.#home);
    if (database !== undefined) url.pathname = `/${database}`;
    return url.href;
  }

  /** A fresh empty database. */
  async createDatabase(): Promise<string> {
    const name = `holdfast_test_${randomBytes(6).toString("hex")}`;
    await this.query(`create database ${name} template template0 strategy file_copy`);
    this.#made.add(name);
    return this.url(name);
  }

  /** Clients that are still connected to it lose their connection. */
  async dropDatabase(url: string): Promise<void> {
    const name = new URL(url).pathname.slice(1);
    await this.query(`drop database if exists ${name} with (force)`);
    this.#made.delete(name);
  }

  /** As the owner of everything, on a connection that is not kept; several statements give the rows of the last. */
  async query(text: string, url = this.url()): Promise<Record<string, unknown>[]> {
    const sql = postgres(url, { max: 1, onnotice: () => {}, fetch_types: false });
    try {
      const rows: unknown[] = await sql.unsafe(text);
      return (Array.isArray(rows.at(-1)) ? rows.at(-1) : rows) as Record<string, unknown>[];
    } finally {
      // Without a limit the driver waits for ever for a connection that was lost during a statement.
      await sql.end({ timeout: 0 });
    }
  }

  get dataFolder(): string {
    return this.#own.place.dataFolder;
  }

  async stop(mode: StopMode = "fast"): Promise<void> {
    await this.#own.ask({ do: "stop", mode });
  }

  /** Resolves when it takes connections again, at the same address. */
  async start(): Promise<void> {
    await this.#own.ask({ do: "start" });
  }

  async restart(mode: StopMode = "fast"): Promise<void> {
    await this.stop(mode);
    await this.start();
  }

  /** Leaves nothing behind. */
  async close(): Promise<void> {
    if (process.env["HOLDFAST_ALIVE"] === this.#aliveFolder) delete process.env["HOLDFAST_ALIVE"];
    if (this.#serverProcess !== null) return this.#serverProcess.end();
    for (const name of this.#made) await this.dropDatabase(this.url(name));
    await this.#maker?.close();
    if (this.#aliveFolder !== undefined) rmSync(this.#aliveFolder, { recursive: true, force: true });
  }

  get #own(): ServerProcess {
    if (this.#serverProcess === null) throw new Error(String(noRestart));
    return this.#serverProcess;
  }
}
