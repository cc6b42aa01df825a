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

/** Whether the same call may succeed later: errors of the disk, the file or the server say nothing about the job. */
export function isTransient(error: unknown): boolean {
  if (error instanceof HoldfastError) return !PERMANENT_CODES.has(error.code);
  // A string is longer than JavaScript allows.
  return !(error instanceof RangeError);
}

const PERMANENT_CODES = new Set([
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
      `The lease on job ${job} is lost, so this attempt's ${what} was rejected.`,
      "Stop the handler: the job was reclaimed, cancelled or settled. `signal` aborts when this happens.",
    );
  }
}

export function idTaken(id: string, owner: string, name: string): HoldfastError {
  return new HoldfastError(
    "ID_TAKEN",
    `The id ${id} belongs to a job "${owner}", so it cannot be a job "${name}".`,
    "Use ids that are unique over all jobs, for example with the job's name in front.",
  );
}

export function upstreamMissing(id: string, name: string): HoldfastError {
  return new HoldfastError(
    "NO_SUCH_JOB",
    `There is no job ${id}, so a job "${name}" cannot come after it.`,
    "Enqueue that job first, and give the id that enqueue returned.",
  );
}

export type DiskFault = "FULL" | "READONLY" | "IOERR" | "CANTOPEN";

export function explainDiskFault(fault: DiskFault, path: string, cause: unknown): HoldfastError {
  const [code, message, hint] = explanation(fault, path, cause instanceof Error ? cause.message : "");
  return new HoldfastError(code, message, hint, { cause });
}

function explanation(fault: DiskFault, path: string, reason: string): [code: string, message: string, hint: string] {
  switch (fault) {
    case "FULL":
      return [
        "DISK_FULL",
        `The disk is full: cannot write to ${path}, so nothing was changed.`,
        "Free space on that disk and try again.",
      ];
    case "READONLY":
      return [
        "READ_ONLY",
        `${path} cannot be written.`,
        "Check the owner and the permissions of it and of its folder, and that the disk is not mounted read-only.",
      ];
    case "CANTOPEN":
      return [
        "CANNOT_OPEN",
        `${path} cannot be opened: ${reason}.`,
        "Check that its folder exists, that this user may read and write there, and that no other program removes files.",
      ];
    case "IOERR":
      return [
        "DISK_ERROR",
        `The disk under ${path} reported an error: ${reason}.`,
        "Check the disk and the system's log; what was acknowledged before is not affected by this call.",
      ];
  }
}

export function damagedRow(what: string): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${what} is damaged: its row does not match its checksum.`,
    "Run `holdfast doctor --recheck` to read it again. If it is still damaged, check the disk, copy the database with its -wal, and restore a backup: `holdfast restore`.",
  );
}

/** Returns the error for damage. The database stays readable, because the readable rest may be all that can be saved. */
export function damagedDatabase(path: string, what: string): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${path} is damaged and read-only. ${what}`,
    "Run `holdfast doctor --recheck`, or call `hf.check()`: it clears the finding if all is well. Otherwise stop all workers, and run `holdfast salvage` to make a new database of what can be read and the newest backup, or `holdfast restore` to go back to a backup.",
  );
}

/** Returns the error for a handle that was opened read-only, after a check has cleared the damage. */
export function damageCleared(path: string): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${path} was opened read-only because of damage, and a check has since cleared that finding.`,
    "Close this handle and open the database again to write.",
  );
}

/** Thrown by a handler to fail the job now, without a retry. */
export class NonRetryableError extends Error {
  constructor(message?: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = "NonRetryableError";
  }
}
