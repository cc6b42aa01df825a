import type { Durability } from "../../store.ts";

/** How long a statement waits for a lock, in milliseconds, unless the user or the server has set `lock_timeout`. */
export const LOCK_WAIT_MS = 15_000;

/**
 * Settings that what is sent and read here relies on, and that a role or a database may have otherwise: whether NULL stands
 * for nothing in a list, and whether numbers with fractions come back exactly.
 */
const RELIED = [
  ["array_nulls", "on"],
  ["extra_float_digits", "1"],
] as const;

/**
 * How the server comes to its plans, on connections of our own. Every statement is written for its index, and one plan does
 * for all values. Left to itself it makes another for each claim, since that looks a little cheaper, and making it costs as
 * much as claiming forty jobs; and where it last saw a table full of what it looks for, it reads all of it to find none.
 * Before version 18 it also takes what several processes find for the share of one of them, and has them read and sort all
 * of history for a page of a list: nothing here is worth a second process.
 */
const PLANNED = [
  ["plan_cache_mode", "force_generic_plan"],
  ["enable_seqscan", "off"],
  ["max_parallel_workers_per_gather", "0"],
  ["jit", "off"],
] as const;

/** For a whole connection: columns of a select. */
export const RELIED_SET = [...RELIED, ...PLANNED].map(([name, value]) => `set_config('${name}', '${value}', false)`).join(", ");

/** For the rest of a transaction: the user's own statements are planned as on connections of the user's own. */
export const USERS_LOCALLY = PLANNED.map(([name]) => `set local ${name} to default`).join("; ");

/**
 * Between two statements of a transaction, in milliseconds; then the server undoes it all. A process that is stopped, or
 * whose handler blocks the event loop, holds locks that other processes may wait for. It runs the transaction again when it continues.
 */
const LONGEST_SILENCE = 5_000;

/** For the rest of a transaction: as Holdfast's statements need it, whatever the user's statements have set. */
export const OURS_LOCALLY = [
  ...[...RELIED, ...PLANNED].map(([name, value]) => `set local ${name} = '${value}'`),
  `set local idle_in_transaction_session_timeout = ${LONGEST_SILENCE}`,
  "set local statement_timeout to default",
].join("; ");

/** What those who write rely on, whatever the server's or the user's defaults are. */
const WRITING = (durability: Durability): (readonly [name: string, value: string])[] => [
  ["synchronous_commit", durability === "power" ? "on" : "off"],
  ["idle_in_transaction_session_timeout", String(LONGEST_SILENCE)],
];

/** Bounds every wait for a lock, unless the user or the server has a bound for it. */
function boundWaits(local: boolean): string {
  return `
    select set_config('lock_timeout', '${LOCK_WAIT_MS}', ${local}) where current_setting('lock_timeout') = '0'`;
}

/** For a whole connection that writes. */
export function writing(durability: Durability): string {
  const settings = [...WRITING(durability), ["default_transaction_isolation", "'read committed'"]];
  return [...settings.map(([name, value]) => `set ${name} = ${value}`), boundWaits(false)].join(";");
}

/** How a transaction begins: with everything that it relies on, where the next one may have another connection. */
export function beginning(durability: Durability, pooled: boolean): string[] {
  const begin = "begin isolation level read committed";
  if (!pooled) return [begin];
  const settings = [...WRITING(durability), ...RELIED];
  return [begin, ...settings.map(([name, value]) => `set local ${name} = ${value}`), boundWaits(true)];
}

/** As they are now: columns of a select, each under its setting's name. */
export const RELIED_READ = RELIED.map(([name]) => `current_setting('${name}') as ${name}`).join(", ");

/** What sets them in a user's transaction, and restores what was there; nothing where they are right. */
export function borrowed(found: Readonly<Record<string, unknown>>): { take: string | null; giveBack: string | null } {
  const other = RELIED.filter(([name, value]) => found[name] !== value);
  if (other.length === 0) return { take: null, giveBack: null };
  return { take: setLocally(other), giveBack: setLocally(other.map(([name]) => [name, String(found[name])])) };
}

function setLocally(values: (readonly [name: string, value: string])[]): string {
  return `select ${values.map(([name, value]) => `set_config('${name}', '${value.replaceAll("'", "''")}', true)`).join(", ")}`;
}

/** Codes of our own, by which the server ends a statement, and with it the transaction: see the function `refuse`. */
export const REFUSED = {
  /** The database has gone back. */
  returned: "HF001",
  /** What was known of lanes or settings has changed. */
  stale: "HF002",
  /** A caller had the answer that it was not committed. */
  closed: "HF003",
  /** A job was changed while it was being claimed. */
  moved: "HF004",
  /** A commit would not wait for the disk as it should. */
  unsynced: "HF005",
  /** A single statement could not settle all of its jobs. */
  partial: "HF006",
} as const;
