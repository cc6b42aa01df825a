import type { Clock } from "../../../core/text/duration.ts";
import { HoldfastError } from "../../../core/text/errors.ts";
import { plural } from "../../../core/text/text.ts";
import type { Durability } from "../../store.ts";
import { migrate, type Migrated, quoteName } from "../migrate.ts";
import { parseAddress } from "./address.ts";
import { backoff } from "./faults.ts";
import { Reader, Writer } from "./connections.ts";
import { loadDriver, type Rows, type Server } from "./driver.ts";
import { Epoch } from "./epoch.ts";
import { explain, isLost } from "./faults.ts";
import { writing } from "./session-settings.ts";
import { Session, type SessionOptions } from "./session.ts";

interface OpenPostgresOptions {
  schema?: string;
  readers?: number;
  durability?: Durability;
  create?: boolean;
  clock: Clock;
  injected: boolean;
  random: () => number;
  /** Who opens it, for the audit. */
  actor?: string;
  patience: number;
  /** Whether a server that is gone is waited for already now: one that was there a moment ago. */
  waits?: boolean;
}

export interface OpenedPostgres {
  /** The schema, as it is written into statements. */
  s: string;
  writer: Writer;
  /** Another one, which connects when it is first needed. */
  second: Writer;
  /** Makes one more, for statements of users. */
  makeWriter: () => Writer;
  reader: Reader;
  databaseId: string;
  durability: Durability;
  epoch: Epoch;
  connectionLimit: ConnectionLimit;
  /** Connections are not one's own for longer than a transaction. */
  pooled: boolean;
  /** Opens a connection for notifications; null behind a pooler. */
  listen: ((options: SessionOptions) => Promise<Session>) | null;
}

/**
 * What is written is written for its indexes. Planned once and so, no statement becomes ten times as slow because of what
 * statistics said about a table that was empty a minute ago, and none is planned anew each time.
 */
const PLANNED = `
  set standard_conforming_strings = on; set plan_cache_mode = force_generic_plan; set jit = off;
  set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off`;

/** Reads that may be under way at once, unless said otherwise. */
const READERS = 2;

/** Connections that are ready for use, to a schema that is up to date. */
export async function openPostgres(url: string, options: OpenPostgresOptions): Promise<OpenedPostgres> {
  const { schema = "holdfast", readers = READERS, random, patience } = options;
  const address = parseAddress(url);
  // Soon enough that calls that wait can still be served over another connection.
  const server: Server = { driver: await loadDriver(), address, silence: patience / 4 };
  const [writer, second] = [new Writer(server), new Writer(server)];
  if (!address.pooled)
    for (const one of [writer, second]) one.onSession(async (session) => void (await session.command(PLANNED)));
  const reader = new Reader(server, { most: readers, patience, random });
  const since = performance.now();
  for (let losses = 0; ; losses++) {
    try {
      const { pooled } = address;
      const listen = (how: SessionOptions) => Session.open(server, how);
      const entered = await enter(writer, options);
      if (!pooled) await setUp(writer, second, writing(entered.durability));
      const makeWriter = () => {
        const made = new Writer(server);
        if (!pooled) made.onSession(async (session) => void (await session.command(writing(entered.durability))));
        return made;
      };
      return {
        s: quoteName(schema),
        writer,
        second,
        makeWriter,
        reader,
        pooled,
        listen: pooled ? null : listen,
        ...entered,
      };
    } catch (error) {
      if (!options.waits || !isLost(error) || performance.now() - since >= patience) {
        await Promise.all([writer.close(), reader.close()]);
        throw explain(error, address.name);
      }
      await new Promise((resolve) => setTimeout(resolve, backoff(losses, random)));
    }
  }
}

/** Both, whenever they connect; the first has done so. */
async function setUp(first: Writer, second: Writer, settings: string): Promise<void> {
  const set = async (session: Session): Promise<void> => void (await session.command(settings));
  await set(await first.session());
  for (const writer of [first, second]) writer.onSession(set);
}

/** Sees to it that the schema is there, up to date and awake. */
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
  // Behind a pooler connections are the pooler's, and shared.
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

/** As PostgreSQL counts them: 150004 is 15.4. */
const OLDEST = 150_000;

export function refuseOld(version: number): void {
  if (version >= OLDEST) return;
  throw new HoldfastError(
    "SERVER_TOO_OLD",
    `The PostgreSQL server has version ${Math.floor(version / 10_000)}.${version % 10_000}, and Holdfast needs ${OLDEST / 10_000} or newer.`,
    "Upgrade the server, or give the address of another.",
  );
}

/** Half of what people write could not be stored, and would be found out when a job has already been done. */
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

/** What a process needs to enqueue and to look; and one that holds leases, all that it may come to have. */
const NEEDED = { process: 3, worker: 7 };

/** How many connections this user may have to this database: where they are too few, a process is in its own way. */
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

  /** As it was when last looked up; null: it is enough, and to wait for others is not in vain. */
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
