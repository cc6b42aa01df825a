/** What the process's exit code says. */
export const EXIT = { done: 0, failed: 1, usage: 2, paused: 3, locked: 4, damaged: 5, interrupted: 130 } as const;

const CODES: Record<string, number> = { DAMAGED: EXIT.damaged, LOCK_HELD: EXIT.locked };
/** Whoever gets one of these has to give something else; trying again would not help. */
const USAGE = new Set([
  "ACCESS_DENIED",
  "ADDRESS_INVALID",
  "CERTIFICATE_INVALID",
  "CLAIM_INVALID",
  "CONFIG_INVALID",
  "DRIVER_DIFFERS",
  "DRIVER_MISSING",
  "DURABILITY_DIFFERS",
  "DURATION_INVALID",
  "ENCODING_UNSUPPORTED",
  "FOLDER_MISSING",
  "INPUT_INVALID",
  "JOB_TWICE",
  "MODULE_INVALID",
  "NAME_INVALID",
  "NOT_A_DATABASE",
  "NOT_A_JOB",
  "NOT_JSON",
  "NO_DATABASE",
  "NO_HANDLER",
  "NO_RIGHTS",
  "NUMBER_INVALID",
  "OPTION_INVALID",
  "POOLER_UNDECLARED",
  "SCHEMA_NEWER",
  "SCHEMA_TAKEN",
  "SERVER_TOO_OLD",
  "SQLITE_TOO_OLD",
  "TLS_FAILED",
  "TLS_REFUSED",
  "USAGE",
]);

export function exitCodeOf(code: string): number {
  return CODES[code] ?? (USAGE.has(code) ? EXIT.usage : EXIT.failed);
}
