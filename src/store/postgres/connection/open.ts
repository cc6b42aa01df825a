import type { Clock } from "../../../core/text/duration.ts";
import { HoldfastError } from "../../../core/text/errors.ts";
import { plural } from "../../../core/text/text.ts";
import type { Durability } from "../../store.ts";
import { migrate, type Migrated, quoteName } from "../migrate.ts";
import { parseAddress } from "./address.ts";
import { reconnectDelay, explain, isLost } from "./faults.ts";
import { Reader, Session, type SessionOptions, Writer } from "./session.ts";
import { loadDriver, type Rows, type Server } from "./driver.ts";
import { Epoch } from "./server-state.ts";
import { writing } from "./session-settings.ts";

export interface OpenPostgresOptions {
  schema?: string;
  readers?: number;
  durability?: Durability;
  create?: boolean;
  clock: Clock;
  /** True if rows get the given clock's time, false if they get the database's. */
  injected: boolean;
  random: () => number;
  actor?: string;
  patience: number;
  /** Whether to wait for a server that was there a moment ago, instead of failing at once. */
  waits?: boolean;
}

export interface OpenedPostgres {
  s: string;
  writer: Writer;
  second: Writer;
  makeWriter: () => Writer;
  reader: Reader;
  databaseId: string;
  durability: Durability;
  epoch: Epoch;
  connectionLimit: ConnectionLimit;
  pooled: boolean;
  listen: ((options: SessionOptions) => Promise<Session>) | null;
}

/** Makes writers join by index look-ups, whatever the statistics of a table that was empty a minute ago suggest. */
const INDEX_JOINS = "set standard_conforming_strings = on; set enable_hashjoin = off; set enable_mergejoin = off";

const READERS = 2;

export async function openPostgres(url: string, options: OpenPostgresOptions): Promise<OpenedPostgres> {
  const { schema = "holdfast", readers = READERS, random, patience } = options;
  const address = parseAddress(url);
  // A quarter of the patience leaves time to serve waiting calls over another connection.
  const server: Server = { driver: await loadDriver(), address, silence: patience / 4 };
  const { pooled } = address;
  const writers = [new Writer(server), new Writer(server)] as const;
  const [writer, second] = writers;
  const setUp = (settings: string) => async (session: Session) => void (pooled || (await session.command(settings)));
  for (const one of writers) one.onSession(setUp(INDEX_JOINS));
  const reader = new Reader(server, { most: readers, patience, random });
  const since = performance.now();
  for (let losses = 0; ; losses++) {
    try {
      const entered = await enter(writer, options);
      const setUpWrites = setUp(writing(entered.durability));
      await setUpWrites(await writer.session());
      for (const one of writers) one.onSession(setUpWrites);
      const makeWriter = () => {
        const made = new Writer(server);
        made.onSession(setUpWrites);
        return made;
      };
      const listen = pooled ? null : (how: SessionOptions) => Session.open(server, how);
      return { s: quoteName(schema), writer, second, makeWriter, reader, pooled, listen, ...entered };
    } catch (error) {
      if (!options.waits || !isLost(error) || performance.now() - since >= patience) {
        await Promise.all([writer.close(), reader.close()]);
        throw explain(error, address.name);
      }
      await new Promise((resolve) => setTimeout(resolve, reconnectDelay(losses, random)));
    }
  }
}

async function enter(
  writer: Writer,
  { schema = "holdfast", durability, create = true, injected, clock, actor }: OpenPostgresOptions,
): Promise<Migrated & { epoch: Epoch; connectionLimit: ConnectionLimit }> {
  const session = await writer.session();
  const [row] = await session.rows<[number, string]>(
    "select current_setting('server_version_num')::integer, current_setting('server_encoding')",
  );
  const [version, encoding] = row as [number, string];
  refuseOld(version);
  refuseEncoding(encoding);
  const connectionLimit = new ConnectionLimit(writer.address);
  if (!writer.pooled) await connectionLimit.look((text, ...values) => session.rows(text, values));
  const few = connectionLimit.refusal("process");
  if (few !== null) throw few;
  const now = injected ? clock.now() : null;
  const migrated = await migrate(session, { schema, durability: durability ?? "power", create, now, actor: actor ?? null });
  if (durability !== undefined && durability !== migrated.durability) {
    throw durabilityDiffers(schema, migrated.durability, durability);
  }
  const epoch = new Epoch(quoteName(schema));
  await epoch.enter(session, () => {});
  return { ...migrated, epoch, connectionLimit };
}

const OLDEST = 150_000;

export function refuseOld(version: number): void {
  if (version >= OLDEST) return;
  throw new HoldfastError(
    "SERVER_TOO_OLD",
    `The PostgreSQL server has version ${Math.floor(version / 10_000)}.${version % 10_000}, and Holdfast needs ${OLDEST / 10_000} or newer.`,
    "Upgrade the server, or give the address of another.",
  );
}

/** Rejects other encodings. They cannot store every text, and a job would fail only after it has run. */
function refuseEncoding(encoding: string): void {
  if (encoding === "UTF8") return;
  throw new HoldfastError(
    "ENCODING_UNSUPPORTED",
    `The database has the encoding ${encoding}, which cannot store every text, and Holdfast needs UTF8.`,
    "Create another database: `createdb --encoding=UTF8 --template=template0 …`, and give its address.",
  );
}

function durabilityDiffers(schema: string, has: Durability, asked: Durability): HoldfastError {
  return new HoldfastError(
    "DURABILITY_DIFFERS",
    `The schema ${JSON.stringify(schema)} was made with durability "${has}", and "${asked}" was asked for.`,
    "Leave `durability` out to use the database's own.",
  );
}

type Limit = [connections: number, kind: "role" | "database", name: string];

/** Connections that a process needs to enqueue and query, and at most with leases. */
const NEEDED = { process: 3, worker: 7 };

export class ConnectionLimit {
  readonly #address: string;
  #limit: Limit | null = null;

  constructor(address: string) {
    this.#address = address;
  }

  async look(rows: Rows): Promise<void> {
    const [limit] = await rows<Limit>(`
      select connections, kind, name from (
        select rolconnlimit, 'role', quote_ident(rolname) from pg_roles where rolname = session_user
        union all
        select datconnlimit, 'database', quote_ident(datname) from pg_database where datname = current_database()
      ) as limits (connections, kind, name)
      where connections >= 0 and not (select rolsuper from pg_roles where rolname = session_user)
      order by connections limit 1`);
    this.#limit = limit ?? null;
  }

  refusal(who: keyof typeof NEEDED): HoldfastError | null {
    if (this.#limit === null || this.#limit[0] >= NEEDED[who]) return null;
    const [connections, kind, name] = this.#limit;
    const needs = { process: "one process needs", worker: "one that holds leases, as a worker does, needs" }[who];
    return new HoldfastError(
      "TOO_MANY_CONNECTIONS",
      `The PostgreSQL server at ${this.#address} allows ${plural(connections, "connection")} to the ${kind} ${name}, and ${needs} ${NEEDED[who]}.`,
      `Raise the limit: \`alter ${kind} ${name} connection limit ${NEEDED.worker}\` is enough for one worker, -1 is none.`,
    );
  }
}
