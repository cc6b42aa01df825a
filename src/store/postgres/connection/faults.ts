import { HoldfastError } from "../../../core/text/errors.ts";
import { REFUSED as CODES } from "./session-settings.ts";

/** The connection is gone; the server undoes what was not committed. */
export class ConnectionLost extends Error {
  constructor(cause?: unknown) {
    super(cause === undefined ? "the connection was lost" : wordsOf(cause), { cause });
    this.name = "ConnectionLost";
  }
}

/** Another transaction was faster, so everything is undone and decided again. */
export class RerunTransaction extends Error {
  /** True if the next try waits for what was in the way, so that it needs no pause. */
  readonly soon: boolean;
  constructor(message?: string, options: { soon: boolean } = { soon: false }) {
    super(message);
    this.soon = options.soon;
  }
}

export function closedError(): HoldfastError {
  return new HoldfastError("CLOSED", "This store is closed.", "Call open() again.");
}

const GONE = new Set([
  "CONNECTION_CLOSED",
  "CONNECTION_ENDED",
  "CONNECTION_DESTROYED",
  "CONNECT_TIMEOUT",
  "ECONNREFUSED",
  "ECONNRESET",
  "ENOENT",
  "EPIPE",
  // The driver writes to a socket that the server has closed meanwhile.
  "ERR_STREAM_WRITE_AFTER_END",
  "ERR_STREAM_DESTROYED",
  "ETIMEDOUT",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "EAI_AGAIN",
  "ENOTFOUND",
  "57P01",
  "57P02",
  "57P03",
  "25P03",
  "57P05",
  "25P04",
  "53300",
]);

export const NO_WRITES = "25006";
/** SQLSTATE lock_not_available: a lock was not granted within `lock_timeout`. */
export const LOCK_TIMEOUT = "55P03";

export function codeOf(error: unknown): string {
  if (error instanceof ConnectionLost) return codeOf(error.cause);
  const { code, routine } = error instanceof Error ? (error as { code?: unknown; routine?: unknown }) : {};
  // A replica first reports that it has no unlogged tables. The routine identifies the error, because messages are translated.
  if (code === "0A000" && routine === "get_relation_info") return NO_WRITES;
  return typeof code === "string" ? code : "";
}

export function isLost(error: unknown): boolean {
  const code = codeOf(error);
  return error instanceof ConnectionLost || GONE.has(code) || code.startsWith("08");
}

export function isRefused(error: unknown): boolean {
  if (error instanceof ConnectionLost) return isRefused(error.cause);
  return error instanceof Error && typeof (error as { severity?: unknown }).severity === "string";
}

/** Whether another try may succeed, because the server ended a deadlock, or another transaction was faster. */
export function mayRunAgain(error: unknown): boolean {
  const code = codeOf(error);
  return error instanceof RerunTransaction || code === "40P01" || code === "40001" || isTaken(error);
}

/** Whether an id or a key that was free when it was looked up is taken now. */
function isTaken(error: unknown): boolean {
  return codeOf(error) === "23505" && ARBITERS.has(constraintOf(error));
}

function constraintOf(error: unknown): string {
  const { constraint_name, constraint } = error as { constraint_name?: string; constraint?: string };
  return constraint_name ?? constraint ?? "";
}

const ARBITERS = new Set(["ids_pkey", "jobs_slot"]);

export function explain(error: unknown, address: string): unknown {
  if (error instanceof HoldfastError) return error;
  const [said, code] = [wordsOf(error), codeOf(error)];
  const explained = explanationOf(code, said) ?? explainedByKind(error);
  if (explained === undefined) return error;
  const [name, words, hint] = explained;
  const filled: Record<string, string> = { ADDRESS: address, SAID: said, CODE: code };
  const message = words.replace(/ADDRESS|SAID|CODE/g, (word) => filled[word] as string);
  return new HoldfastError(name, message, hint, { cause: error instanceof ConnectionLost ? (error.cause ?? error) : error });
}

function explanationOf(code: string, said: string): Explanation | undefined {
  if ((code === "42704" || code === "22023") && / parameter "/.test(said)) return UNKNOWN_SETTING;
  // The message may be translated, so only a certain match gets this name.
  if (code === "57014" && /statement timeout/.test(said)) return TIMED_OUT;
  if (code === "EPROTO" || code.startsWith("ERR_SSL_") || /before secure TLS connection/.test(said)) return TLS_FAILED;
  return EXPLAINED[code];
}

/** Returns the message. The error itself has none if a host name has several addresses and none answers. */
function wordsOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === "") return error.errors.map(wordsOf).join("; ");
  return error instanceof Error ? error.message : String(error);
}

function explainedByKind(error: unknown): Explanation | undefined {
  if (isLost(error)) return GONE_EXPLAINED;
  if (mayRunAgain(error)) return CONTENDED;
  if (!isRefused(error)) return undefined;
  return isOfValues(codeOf(error)) ? VALUE : REFUSED;
}

function isOfValues(code: string): boolean {
  return code.startsWith("22") || code.startsWith("23") || code === "54000";
}

type Explanation = [code: string, words: string, hint: string];

const GONE_EXPLAINED: Explanation = [
  "SERVER_GONE",
  "The PostgreSQL server at ADDRESS cannot be reached (SAID).",
  "Check that the server runs and that the address is right. Calls that failed changed nothing; workers continue when the server is back.",
];

const CONTENDED: Explanation = [
  "BUSY",
  "Other transactions kept changing the same rows at ADDRESS, so nothing was changed (SAID).",
  "Try again. Look for a program that changes the settings of queues in a loop.",
];

const VALUE: Explanation = [
  "VALUE_INVALID",
  "The PostgreSQL server at ADDRESS rejected a value (SAID; CODE), so nothing was changed.",
  "Make the value smaller if it has many millions of characters; otherwise look for your own triggers and constraints on Holdfast's tables.",
];

const REFUSED: Explanation = [
  "STORE_ERROR",
  "The PostgreSQL server at ADDRESS rejected a statement (SAID; CODE), so nothing was changed.",
  "Check the server's log and try again.",
];

const DENIED: Explanation = [
  "ACCESS_DENIED",
  "The PostgreSQL server at ADDRESS rejected this user (SAID).",
  "Check user and password in the address: postgres://user:password@host/database. Some servers need ?sslmode=require.",
];

const DROPPED: Explanation = [
  "NO_DATABASE",
  "Tables of Holdfast are missing in the database at ADDRESS (SAID): they, or the whole schema, were dropped.",
  "Restore a backup. Otherwise the next process that opens the database creates them, empty.",
];

const CERTIFICATE: Explanation = [
  "CERTIFICATE_INVALID",
  "The PostgreSQL server at ADDRESS has a certificate that this process does not trust (SAID).",
  "Set NODE_EXTRA_CA_CERTS to the file of its authority; ?sslmode=require encrypts without checking the certificate.",
];

const TLS_FAILED: Explanation = [
  "TLS_FAILED",
  "No encrypted connection to the PostgreSQL server at ADDRESS could be made (SAID).",
  "Check the server's TLS versions (`ssl_min_protocol_version`), and that the address is the server's.",
];

const TIMED_OUT: Explanation = [
  "STATEMENT_TIMEOUT",
  "The PostgreSQL server at ADDRESS cancelled a statement after its timeout (SAID), so nothing was changed.",
  "Raise `statement_timeout` for this user, or find out what slows the server down.",
];

const POOLED: Explanation = [
  "POOLER_UNDECLARED",
  "The server at ADDRESS lost the settings of this session (SAID): there seems to be a pooler in transaction mode in between.",
  "Add ?pooler=transaction to the address, or connect without the pooler; then start again.",
];

const UNSYNCED: Explanation = [
  "POOLER_UNDECLARED",
  "The server at ADDRESS lost the setting that commits wait for the disk, so nothing was changed: there seems to be a pooler in between.",
  "Add ?pooler=transaction to the address, or connect without the pooler; then start again.",
];

const TAKEN: Explanation = [
  "SCHEMA_TAKEN",
  "The schema in the database at ADDRESS has an object with a name that Holdfast uses (SAID). It was not changed.",
  "Give another schema with the option `schema`.",
];

const UNKNOWN_SETTING: Explanation = [
  "ADDRESS_INVALID",
  "The PostgreSQL server at ADDRESS rejected a setting in the address after the `?` (SAID).",
  "Correct it or leave it out. Give a schema with the option `schema`, not in the address.",
];

const EXPLAINED: Readonly<Record<string, Explanation>> = {
  "28P01": DENIED,
  "28000": DENIED,
  SASL_SIGNATURE_MISMATCH: DENIED,
  "3D000": [
    "NO_DATABASE",
    "The PostgreSQL server at ADDRESS has no such database.",
    "Check the name at the end of the address, or create the database with `createdb`.",
  ],
  "42501": [
    "NO_RIGHTS",
    "The user in the address lacks a right in the database at ADDRESS (SAID).",
    "Let an owner grant the rights that docs/postgres.md lists; creating the schema also needs `grant create on database … to …`.",
  ],
  "42P01": DROPPED,
  "3F000": DROPPED,
  "42883": DROPPED,
  [NO_WRITES]: [
    "READ_ONLY",
    "The PostgreSQL server at ADDRESS is read-only: it is a replica, or configured so. Nothing was changed.",
    "Give the address of the primary (?target_session_attrs=read-write finds it among several hosts). On the primary, " +
      "check that `default_transaction_read_only` is off for the server, the database and the user.",
  ],
  "57014": [
    "STATEMENT_CANCELLED",
    "A statement was cancelled on the PostgreSQL server at ADDRESS (SAID), so nothing was changed.",
    "Try again. Look for an operator or a program that calls `pg_cancel_backend`.",
  ],
  "26000": POOLED,
  "42P05": POOLED,
  [CODES.unsynced]: UNSYNCED,
  "42P07": TAKEN,
  "42710": TAKEN,
  "42723": TAKEN,
  TLS_REFUSED: [
    "TLS_REFUSED",
    "The PostgreSQL server at ADDRESS does not offer encrypted connections (SAID), and the address asks for one.",
    "Turn `ssl` on at the server; or, in a trusted network, leave `sslmode` out of the address.",
  ],
  [LOCK_TIMEOUT]: [
    "BUSY",
    "Rows in the database at ADDRESS were locked by another transaction for too long (SAID), so nothing was changed.",
    "Look for a transaction that stays open, and try again when it has ended.",
  ],
  "53300": [
    "TOO_MANY_CONNECTIONS",
    "The PostgreSQL server at ADDRESS accepts no more connections (SAID).",
    "Run fewer processes, raise `max_connections` or the user's limit, or put a pooler in between (docs/postgres.md).",
  ],
  "53100": [
    "DISK_FULL",
    "The disk of the PostgreSQL server at ADDRESS is full (SAID), so nothing was changed.",
    "Free space there and try again.",
  ],
  "53200": [
    "SERVER_EXHAUSTED",
    "The PostgreSQL server at ADDRESS is out of memory (SAID), so nothing was changed.",
    "Give the server more memory or fewer connections.",
  ],
  "22021": [
    "TEXT_INVALID",
    "A text contains the character U+0000, which cannot be stored (SAID).",
    "Remove the character U+0000.",
  ],
  ENOTFOUND: [
    "SERVER_GONE",
    "The host of the PostgreSQL server at ADDRESS is unknown (SAID).",
    "Check the name of the host in the address.",
  ],
  CERT_HAS_EXPIRED: CERTIFICATE,
  DEPTH_ZERO_SELF_SIGNED_CERT: CERTIFICATE,
  ERR_TLS_CERT_ALTNAME_INVALID: CERTIFICATE,
  SELF_SIGNED_CERT_IN_CHAIN: CERTIFICATE,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: CERTIFICATE,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: CERTIFICATE,
};

const MIN_RECONNECT_DELAY_MS = 50;
const MAX_RECONNECT_DELAY_MS = 1_000;

/** Waits not at all at first, because often only the connection is gone; then exponentially, with jitter against a stampede. */
export function reconnectDelay(losses: number, random: () => number): number {
  if (losses === 0) return 0;
  return Math.min(MAX_RECONNECT_DELAY_MS, MIN_RECONNECT_DELAY_MS * 2 ** (losses - 1)) * (0.5 + random() / 2);
}
