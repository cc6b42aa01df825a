/**
 * An error that helps: `code` for programs, the message for people, `hint` for what to do next.
 *
 * ```ts
 * try { await hf.enqueue(resize, input); }
 * catch (e) { if (e instanceof HoldfastError && e.code === "INPUT_INVALID") console.error(e.message, e.hint); }
 * ```
 */
export class HoldfastError extends Error {
  readonly code: string;
  readonly hint: string;

  constructor(code: string, message: string, hint: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
    this.hint = hint;
  }
}

/**
 * Whether the same call may succeed later. A value that is rejected stays rejected. Every other error, known or unknown, is
 * one of the disk, the file or the server, and says nothing about the job that met it.
 */
export function isPassing(error: unknown): boolean {
  if (error instanceof HoldfastError) return !LASTING.has(error.code);
  // More than a text of JavaScript's can hold.
  return !(error instanceof RangeError);
}

const LASTING = new Set([
  "COST_INVALID",
  "GROUP_INVALID",
  "ID_TAKEN",
  "KEY_INVALID",
  "NO_SUCH_JOB",
  "NOT_JSON",
  "TARGET_ID_INVALID",
  "TARGET_INVALID",
  "TEXT_INVALID",
  "VALUE_INVALID",
]);

/** The lease is lost: another worker may run the job now, so this attempt's writes are rejected. */
export class LeaseLostError extends HoldfastError {
  constructor(job: string, what = "write") {
    super(
      "LEASE_LOST",
      `The lease on job ${job} is gone, so this attempt's ${what} was refused.`,
      "Stop working on it: the job was reclaimed, cancelled or settled. `signal` tells a handler in time.",
    );
  }
}

/** An id is one job ever, over all names. */
export function idTaken(id: string, owner: string, name: string): HoldfastError {
  return new HoldfastError(
    "ID_TAKEN",
    `The id ${id} belongs to a job "${owner}", so it cannot be a job "${name}".`,
    "Give ids that are unique over all jobs, e.g. with the job's name in front.",
  );
}

/** A job cannot depend on an unknown job: it would wait for ever. */
export function noUpstream(id: string, name: string): HoldfastError {
  return new HoldfastError(
    "NO_SUCH_JOB",
    `There is no job ${id}, so a job "${name}" cannot come after it.`,
    "Enqueue what it depends on first, and give the id that enqueue answered.",
  );
}

/** What was read is not what was written; it is not returned. */
export function damagedRow(what: string): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${what} is damaged: what stands in its row is not what was written there.`,
    "`holdfast doctor --recheck` reads it again. If it finds the same, check the disk, keep a copy of the database with its -wal, and take the row from a backup.",
  );
}

/** Of a whole database: what is there may be all that can be saved. */
export function onlyRead(path: string, what: string): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${path} is damaged, so it is only read. ${what}`,
    "`holdfast doctor --recheck`, or `hf.check()`, looks again and clears the finding where all is well. Otherwise stop all workers, then `holdfast salvage` makes a new one of what can be read and of the newest backup; or go back to a backup: holdfast restore.",
  );
}

/** A handle that was opened while its database was read-only for damage that a check has not found again. */
export function reopenCleared(path: string): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${path} was opened read-only because of a finding of damage, which a check has cleared since.`,
    "Close this handle and open the database again to write.",
  );
}

/** Thrown by a handler: fail now, do not retry. */
export class NonRetryableError extends Error {
  constructor(message?: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = "NonRetryableError";
  }
}
