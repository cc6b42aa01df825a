import { HoldfastError } from "../../core/errors.ts";

/** Before, a write-ahead log can be corrupted when it is reset. */
const OLDEST = [3, 51, 3] as const;

/** Node is judged by the SQLite that comes with it: 25.0 is newer than 24.21, and its SQLite is older. */
export function refuseOldSqlite(version: string, whose: string): void {
  const parts = version.split(".").map(Number);
  for (const [i, least] of OLDEST.entries()) {
    const part = parts[i] ?? 0;
    if (part > least) return;
    if (part < least) throw unsupported(`${whose} has SQLite ${version}`);
  }
}

export function noSqlite(): HoldfastError {
  return unsupported(`Node ${process.versions.node} has no SQLite`);
}

function unsupported(what: string): HoldfastError {
  return new HoldfastError(
    "SQLITE_TOO_OLD",
    `${what}, and Holdfast needs SQLite ${OLDEST.join(".")} or newer: use Node 22.23, 24.21, 26 or newer ones of these.`,
    'Install a newer Node, or better-sqlite3 13.0.3 or newer and open the database with { driver: "better-sqlite3" }.',
  );
}
