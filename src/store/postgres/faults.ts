import { HoldfastError } from "../../core/errors.ts";
import { ConnectionLost } from "./session.ts";

/** Somebody else was faster, which is seen only now: everything is undone and decided again. */
export class Overtaken extends Error {}

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
  // The server stops, or starts, or ended this connection.
  "57P01",
  "57P02",
  "57P03",
  // Too many connections just now.
  "53300",
]);

export function codeOf(error: unknown): string {
  const code = error instanceof Error ? (error as { code?: unknown }).code : undefined;
  return typeof code === "string" ? code : "";
}

/** Whether the connection is gone: then it is worth trying again over another. */
export function isLost(error: unknown): boolean {
  const code = codeOf(error);
  return error instanceof ConnectionLost || GONE.has(code) || code.startsWith("08");
}

/** Whether the same again may well succeed: it was chosen to end a deadlock, or somebody else was faster. */
export function mayRunAgain(error: unknown): boolean {
  const code = codeOf(error);
  return error instanceof Overtaken || code === "40P01" || code === "40001" || isTaken(error);
}

/** An id or a key was free when it was looked up, and is not any more: a second look finds whose it is. */
function isTaken(error: unknown): boolean {
  return codeOf(error) === "23505" && ARBITERS.has((error as { constraint_name?: string }).constraint_name ?? "");
}

const ARBITERS = new Set(["ids_pkey", "jobs_slot"]);

/** What a caller is told; errors that are not the database's pass as they are. */
export function explain(error: unknown, address: string): unknown {
  if (error instanceof HoldfastError) return error;
  if (isLost(error)) {
    return new HoldfastError(
      "SERVER_GONE",
      `The PostgreSQL server at ${address} cannot be reached.`,
      "Check that it runs and that the address is right. What was not acknowledged was not done.",
      { cause: error },
    );
  }
  return error;
}
