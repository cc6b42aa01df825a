import { HoldfastError } from "../../../core/text/errors.ts";
import { REFUSED as CODES } from "./session-settings.ts";

/** The connection is gone; whatever was under way on it and not committed is undone by the server. */
export class ConnectionLost extends Error {
  constructor(cause?: unknown) {
    super(cause === undefined ? "the connection was lost" : wordsOf(cause), { cause });
    this.name = "ConnectionLost";
  }
}

/** Another transaction was faster, which is seen only now: everything is undone and decided again. */
export class Overtaken extends Error {
  /** What was in the way is waited for next time: there is no need to wait before. */
  readonly soon: boolean;
  constructor(message?: string, options: { soon: boolean } = { soon: false }) {
    super(message);
    this.soon = options.soon;
  }
}

export function closedError(): HoldfastError {
  return new HoldfastError("CLOSED", "This store is closed.", "Open it again.");
}

/** The driver's and the system's words for a connection that is gone, or was never there. */
const GONE = new Set([
  "CONNECTION_CLOSED",
  "CONNECTION_ENDED",
  "CONNECTION_DESTROYED",
  "CONNECT_TIMEOUT",
  "ECONNREFUSED",
  "ECONNRESET",
  "ENOENT",
  "EPIPE",
  "ETIMEDOUT",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "EAI_AGAIN",
  "ENOTFOUND",
  // The server stops, or starts, or ended this connection.
  "57P01",
  "57P02",
  "57P03",
  // It ended this connection because nothing was heard on it for too long.
  "25P03",
  "57P05",
  // Or because its transaction lasted for too long.
  "25P04",
  // Too many connections just now.
  "53300",
]);

/** No writes are taken. */
export const NO_WRITES = "25006";

export function codeOf(error: unknown): string {
  if (error instanceof ConnectionLost) return codeOf(error.cause);
  const { code, routine } = error instanceof Error ? (error as { code?: unknown; routine?: unknown }) : {};
  // A replica has no tables that are not logged, and says so before it says that it takes no writes. Told by the place in
  // the server where it is said: the words are in the server's own language.
  if (code === "0A000" && routine === "get_relation_info") return NO_WRITES;
  return typeof code === "string" ? code : "";
}

/** Whether the connection is gone: then it is worth trying again over another. */
export function isLost(error: unknown): boolean {
  const code = codeOf(error);
  return error instanceof ConnectionLost || GONE.has(code) || code.startsWith("08");
}

/** Whether it was the server that said so, which hence is there. Every driver tells how severe it is. */
export function isRefused(error: unknown): boolean {
  if (error instanceof ConnectionLost) return isRefused(error.cause);
  return error instanceof Error && typeof (error as { severity?: unknown }).severity === "string";
}

/** Whether the same again may well succeed: it was chosen to end a deadlock, or another transaction was faster. */
export function mayRunAgain(error: unknown): boolean {
  const code = codeOf(error);
  return error instanceof Overtaken || code === "40P01" || code === "40001" || isTaken(error);
}

/** An id or a key was free when it was looked up, and is not any more: a second look finds whose it is. */
function isTaken(error: unknown): boolean {
  return codeOf(error) === "23505" && ARBITERS.has(constraintOf(error));
}

/** `postgres` and `pg` call it differently. */
function constraintOf(error: unknown): string {
  const { constraint_name, constraint } = error as { constraint_name?: string; constraint?: string };
  return constraint_name ?? constraint ?? "";
}

const ARBITERS = new Set(["ids_pkey", "jobs_slot"]);

/** The error for a caller; errors that are not the database's pass as they are. */
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
  // Two codes that are used for much else.
  if ((code === "42704" || code === "22023") && / parameter "/.test(said)) return UNKNOWN_SETTING;
  // In the server's own language, which need not be this one: only what is certain is called so.
  if (code === "57014" && /statement timeout/.test(said)) return TIMED_OUT;
  if (code === "EPROTO" || code.startsWith("ERR_SSL_") || /before secure TLS connection/.test(said)) return TLS_FAILED;
  return EXPLAINED[code];
}

/** Where a name stands for several addresses, none of which answers, the error itself says nothing. */
function wordsOf(error: unknown): string {
  if (error instanceof AggregateError && error.message === "") return error.errors.map(wordsOf).join("; ");
  return error instanceof Error ? error.message : String(error);
}

function explainedByKind(error: unknown): Explanation | undefined {
  if (isLost(error)) return GONE_EXPLAINED;
  // It was tried again and again, and is worth trying later: nothing is wrong with what was asked.
  if (mayRunAgain(error)) return CROWDED;
  if (!isRefused(error)) return undefined;
  return isOfValues(codeOf(error)) ? VALUE : REFUSED;
}

/** By the classes of PostgreSQL's codes: the data themselves, a constraint that they break, a limit that they are beyond. */
function isOfValues(code: string): boolean {
  return code.startsWith("22") || code.startsWith("23") || code === "54000";
}

type Explanation = [code: string, words: string, hint: string];

const GONE_EXPLAINED: Explanation = [
  "SERVER_GONE",
  "The PostgreSQL server at ADDRESS cannot be reached (SAID).",
  "See that it runs and that the address is right. What was not acknowledged was not done; workers go on when it is back.",
];

const CROWDED: Explanation = [
  "BUSY",
  "Others changed the same rows at ADDRESS again and again, so nothing was changed (SAID).",
  "Try again; look for a program that changes queues' settings in a loop.",
];

const VALUE: Explanation = [
  "VALUE_INVALID",
  "The PostgreSQL server at ADDRESS refuses a value (SAID; CODE), so nothing was changed.",
  "Make it smaller, if it is one of many millions of characters; look for a trigger or a constraint that is not Holdfast's.",
];

const REFUSED: Explanation = [
  "STORE_ERROR",
  "The PostgreSQL server at ADDRESS refused (SAID; CODE), so nothing was changed.",
  "Look into the server's log, and try again.",
];

const DENIED: Explanation = [
  "ACCESS_DENIED",
  "The PostgreSQL server at ADDRESS does not let this user in (SAID).",
  "Check user and password in the address: postgres://user:password@host/database. Some servers want ?sslmode=require.",
];

const DROPPED: Explanation = [
  "NO_DATABASE",
  "Tables of Holdfast are missing in the database at ADDRESS (SAID): they, or the whole schema, were dropped.",
  "Restore a backup, or start again: the next process that opens it creates them, empty.",
];

const CERTIFICATE: Explanation = [
  "CERTIFICATE_INVALID",
  "The PostgreSQL server at ADDRESS shows a certificate that cannot be trusted (SAID).",
  "Name its authority by the environment variable NODE_EXTRA_CA_CERTS; ?sslmode=require encrypts without checking it.",
];

const TLS_FAILED: Explanation = [
  "TLS_FAILED",
  "No encrypted connection to the PostgreSQL server at ADDRESS could be made (SAID).",
  "See which versions of TLS the server speaks (`ssl_min_protocol_version`), and that it is one, not something in between.",
];

const TIMED_OUT: Explanation = [
  "STATEMENT_TIMEOUT",
  "The PostgreSQL server at ADDRESS ended a statement for its time (SAID), so nothing was changed.",
  "Raise `statement_timeout` for this user, or look for what holds the server up.",
];

const POOLED: Explanation = [
  "POOLER_UNDECLARED",
  "The server at ADDRESS does not remember what it was told (SAID): a pooler in transaction mode seems to be in between.",
  "Add ?pooler=transaction to the address, or connect without the pooler; then start again.",
];

const UNSYNCED: Explanation = [
  "POOLER_UNDECLARED",
  "The server at ADDRESS has forgotten that commits wait for its disk, so nothing was changed: a pooler seems to be in between.",
  "Add ?pooler=transaction to the address, or connect without the pooler; then start again.",
];

const TAKEN: Explanation = [
  "SCHEMA_TAKEN",
  "The schema in the database at ADDRESS holds something with a name of Holdfast's (SAID). It was left as it is.",
  "Give Holdfast a schema of its own by the option `schema`.",
];

const UNKNOWN_SETTING: Explanation = [
  "ADDRESS_INVALID",
  "The PostgreSQL server at ADDRESS refuses a setting that stands in the address after the `?` (SAID).",
  "Correct it, or leave it out. A schema is not named in the address: it is an option.",
];

/** By PostgreSQL's own codes, and by the system's. */
const EXPLAINED: Readonly<Record<string, Explanation>> = {
  "28P01": DENIED,
  "28000": DENIED,
  SASL_SIGNATURE_MISMATCH: DENIED,
  "3D000": [
    "NO_DATABASE",
    "There is no such database on the PostgreSQL server at ADDRESS, and none was made.",
    "Check the name at the end of the address, or make it with `createdb`.",
  ],
  "42501": [
    "NO_RIGHTS",
    "The user in the address may not do that in the database at ADDRESS (SAID).",
    "Let an owner grant what docs/postgres.md lists; to make the schema at first also `grant create on database … to …`.",
  ],
  "42P01": DROPPED,
  "3F000": DROPPED,
  "42883": DROPPED,
  [NO_WRITES]: [
    "READ_ONLY",
    "The PostgreSQL server at ADDRESS takes no writes: it is a replica, or is set to read only. Nothing was changed.",
    "Give the address of the primary (of several hosts ?target_session_attrs=read-write finds it); where it is the primary, " +
      "see that `default_transaction_read_only` is off for the server, the database and the user.",
  ],
  "57014": [
    "STATEMENT_CANCELLED",
    "A statement was cancelled on the PostgreSQL server at ADDRESS (SAID), so nothing was changed.",
    "Try again; look for an operator or a program that calls `pg_cancel_backend`.",
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
    "Switch `ssl` on at the server; or leave `sslmode` out of the address, where the network in between can be trusted.",
  ],
  "55P03": [
    "BUSY",
    "Rows in the database at ADDRESS were locked by another transaction for too long (SAID), so nothing was changed.",
    "Look for a transaction that stays open; try again when it is done.",
  ],
  "53300": [
    "TOO_MANY_CONNECTIONS",
    "The PostgreSQL server at ADDRESS takes no more connections (SAID).",
    "Run fewer processes, raise `max_connections` or the user's limit, or put a pooler in between (docs/postgres.md).",
  ],
  "53100": [
    "DISK_FULL",
    "The disk of the PostgreSQL server at ADDRESS is full (SAID), so nothing was changed.",
    "Make room there, and try again.",
  ],
  "53200": [
    "SERVER_EXHAUSTED",
    "The PostgreSQL server at ADDRESS is out of memory (SAID), so nothing was changed.",
    "Give it more memory, or fewer connections.",
  ],
  "22021": [
    "TEXT_INVALID",
    "A text holds the character with the number zero, which cannot be stored (SAID).",
    "Leave out the character with the number zero.",
  ],
  ENOTFOUND: [
    "SERVER_GONE",
    "The host of the PostgreSQL server at ADDRESS is not known (SAID).",
    "Check the name of the host in the address.",
  ],
  CERT_HAS_EXPIRED: CERTIFICATE,
  DEPTH_ZERO_SELF_SIGNED_CERT: CERTIFICATE,
  ERR_TLS_CERT_ALTNAME_INVALID: CERTIFICATE,
  SELF_SIGNED_CERT_IN_CHAIN: CERTIFICATE,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: CERTIFICATE,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: CERTIFICATE,
};

/** In milliseconds. */
const SHORTEST = 50;
const LONGEST = 1_000;

/**
 * How long to wait before a server that was lost so many times is tried again: not at all at first, since often the
 * connection alone is gone; then longer and longer, and never quite as long as the others, who all come back at once.
 */
export function backoff(losses: number, random: () => number): number {
  if (losses === 0) return 0;
  return Math.min(LONGEST, SHORTEST * 2 ** (losses - 1)) * (0.5 + random() / 2);
}
