import type { Durability } from "../../store.ts";

/** How long a statement waits for a lock, in milliseconds, unless the user or the server has set `lock_timeout`. */
export const LOCK_WAIT_MS = 15_000;

/** Settings that answers rely on (NULL in lists, exact fractions), and that a role or database may have changed. */
const RELIED = [
  ["array_nulls", "on"],
  ["extra_float_digits", "1"],
] as const;

// Every statement is written for its index: one generic plan does. Planning each claim anew costs as much as claiming forty
// jobs, and may scan a table last seen full; before version 18, parallel workers would sort all of history for a page.
const PLANNED = [
  ["plan_cache_mode", "force_generic_plan"],
  ["enable_seqscan", "off"],
  ["max_parallel_workers_per_gather", "0"],
  ["jit", "off"],
] as const;

export const RELIED_SET = [...RELIED, ...PLANNED].map(([name, value]) => `set_config('${name}', '${value}', false)`).join(", ");

/** Resets the planner's settings for the rest of a transaction, so that users' statements are planned as on their connections. */
export const USERS_LOCALLY = PLANNED.map(([name]) => `set local ${name} to default`).join("; ");

/** The server rolls back a transaction that is silent for this long, because a stopped process would hold its locks. */
const MAX_SILENCE_MS = 5_000;

/** Applies Holdfast's settings for the rest of a transaction, whatever the user's statements have set. */
export const OURS_LOCALLY = [
  ...[...RELIED, ...PLANNED].map(([name, value]) => `set local ${name} = '${value}'`),
  `set local idle_in_transaction_session_timeout = ${MAX_SILENCE_MS}`,
  "set local statement_timeout to default",
].join("; ");

const WRITING = (durability: Durability): (readonly [name: string, value: string])[] => [
  ["synchronous_commit", durability === "power" ? "on" : "off"],
  ["idle_in_transaction_session_timeout", String(MAX_SILENCE_MS)],
];

function boundWaits(local: boolean): string {
  return `
    select set_config('lock_timeout', '${LOCK_WAIT_MS}', ${local}) where current_setting('lock_timeout') = '0'`;
}

export function writing(durability: Durability): string {
  const settings = [...WRITING(durability), ["default_transaction_isolation", "'read committed'"]];
  return [...settings.map(([name, value]) => `set ${name} = ${value}`), boundWaits(false)].join(";");
}

/** Returns how a transaction begins. Behind a pooler it sets all settings, because each may have another connection. */
export function beginning(durability: Durability, pooled: boolean): string[] {
  const begin = "begin isolation level read committed";
  if (!pooled) return [begin];
  const settings = [...WRITING(durability), ...RELIED];
  return [begin, ...settings.map(([name, value]) => `set local ${name} = ${value}`), boundWaits(true)];
}

export const RELIED_READ = RELIED.map(([name]) => `current_setting('${name}') as ${name}`).join(", ");

/** Returns statements that set Holdfast's values in a user's transaction, and the user's again; null if they are right. */
export function borrowed(found: Readonly<Record<string, unknown>>): { take: string | null; giveBack: string | null } {
  const other = RELIED.filter(([name, value]) => found[name] !== value);
  if (other.length === 0) return { take: null, giveBack: null };
  return { take: setLocally(other), giveBack: setLocally(other.map(([name]) => [name, String(found[name])])) };
}

function setLocally(values: (readonly [name: string, value: string])[]): string {
  return `select ${values.map(([name, value]) => `set_config('${name}', '${value.replaceAll("'", "''")}', true)`).join(", ")}`;
}

/** Holdfast's own error codes, with which the function `refuse` ends a statement and its transaction. */
export const REFUSED = {
  reverted: "HF001",
  stale: "HF002",
  closed: "HF003",
  moved: "HF004",
  unsynced: "HF005",
  partial: "HF006",
} as const;
