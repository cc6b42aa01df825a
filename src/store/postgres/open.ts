import type { Clock } from "../../core/clock.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Durability } from "../store.ts";
import { parseAddress } from "./address.ts";
import { connect, loadDriver, type Sql } from "./driver.ts";
import { explain } from "./faults.ts";
import { migrate, quoteName } from "./migrate.ts";
import { Reader } from "./reader.ts";
import type { Session } from "./session.ts";
import { Writer } from "./writer.ts";

export interface OpenPostgresOptions {
  schema?: string;
  readers?: number;
  durability?: Durability;
  create?: boolean;
  clock: Clock;
  injected: boolean;
  random: () => number;
  patience: number;
}

export interface OpenedPostgres {
  /** The schema, as it is written into statements. */
  s: string;
  writer: Writer;
  reader: Reader;
  databaseId: string;
  durability: Durability;
  /** Connections are not one's own for longer than a transaction. */
  pooled: boolean;
  /** Makes a connection to be told of others' commits; null where there is no such thing. */
  listen: ((on: { close: () => void; notice: (channel: string, text: string) => void }) => Sql) | null;
}

/** Reads that may be under way at once, unless said otherwise. */
const READERS = 2;

/** Connections that are ready for use: migrated, with the durability set and read back. */
export async function openPostgres(url: string, options: OpenPostgresOptions): Promise<OpenedPostgres> {
  const { schema = "holdfast", readers = READERS, clock, random, patience } = options;
  const driver = await loadDriver();
  const { name: address, pooled, ...to } = parseAddress(url);
  let durability: Durability | null = null;
  const writerSql = connect(driver, to, { max: 1, pooled, onClose: () => writer.closed() });
  const writer = new Writer(writerSql, {
    address,
    setUp: async (session) => (durability === null ? undefined : setDurability(session, durability)),
  });
  const reader = new Reader(connect(driver, to, { max: readers, pooled }), { address, patience, random });
  try {
    const session = await writer.session();
    const migrated = await migrate(session, {
      schema,
      durability: options.durability ?? "power",
      create: options.create ?? true,
      now: options.injected ? clock.now() : null,
    });
    if (options.durability !== undefined && options.durability !== migrated.durability) {
      throw durabilityDiffers(schema, migrated.durability, options.durability);
    }
    durability = migrated.durability;
    await setDurability(session, durability);
    const listen: OpenedPostgres["listen"] = ({ close, notice }) =>
      connect(driver, to, { max: 1, pooled, onClose: close, onNotice: notice });
    return { s: quoteName(schema), writer, reader, pooled, listen: pooled ? null : listen, ...migrated };
  } catch (error) {
    await Promise.all([writer.close(), reader.close()]);
    throw explain(error, address);
  }
}

/** Whatever the server's or the user's default is. */
async function setDurability(session: Session, durability: Durability): Promise<void> {
  await session.command(`set synchronous_commit = ${durability === "power" ? "on" : "off"}`);
}

function durabilityDiffers(schema: string, has: Durability, asked: Durability): HoldfastError {
  return new HoldfastError(
    "DURABILITY_DIFFERS",
    `The schema ${JSON.stringify(schema)} was made with durability "${has}", and "${asked}" was asked for.`,
    "Leave `durability` out to use what the database has. Two processes that disagree could acknowledge what is not on the disk.",
  );
}
