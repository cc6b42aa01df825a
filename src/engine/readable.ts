import { HoldfastError } from "../core/text/errors.ts";
import { checkBoolean, refuseUnknown } from "../core/text/options.ts";
import type { DamageStore } from "../store/findings.ts";

/** Of a damaged database some of it cannot be read: null. The damage itself is known, or found by a check. */
export async function readable<T>(look: () => Promise<T>): Promise<T | null> {
  try {
    return await look();
  } catch (error) {
    if (isDamage(error)) return null;
    throw error;
  }
}

export function isDamage(error: unknown): boolean {
  return error instanceof HoldfastError && error.code === "DAMAGED";
}

/** Of calls whose result has no room to say that something may be missing. */
export interface ReadOptions {
  /** True: what can be read. Default: the call rejects with `DAMAGED` where commits of a damaged database cannot be read. */
  incomplete?: boolean;
}

/** Checks the options of `call`, and rejects where commits cannot be read: a list that lacks rows looks like any other. */
export async function refuseMissing(damage: DamageStore, options: ReadOptions, call: string, what: string): Promise<void> {
  refuseUnknown(options, ["incomplete"], call);
  const { incomplete = false } = options;
  checkBoolean(incomplete, "`incomplete`");
  if (incomplete || damage.damaged === null) return;
  const missing = (await damage.findings()).find((one) => one.severity === "damage" && (one.commitsMissing ?? 0) > 0);
  if (missing === undefined) return;
  throw new HoldfastError(
    "DAMAGED",
    `${what}, because ${missing.commitsMissing} commits of the database cannot be read. ${missing.what}`,
    `\`holdfast doctor --recheck\` looks again; \`holdfast salvage\` also reads what SQLite cannot. \`${call}({ incomplete: true })\` returns what can be read.`,
  );
}

/** Of a damaged database it cannot be told whether `what` was there. */
export function notReadable(what: string, damaged: string): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${what} is not in what can be read of the database, which is damaged. ${damaged}`,
    "`holdfast doctor --recheck` looks again; `holdfast salvage` also reads what SQLite cannot.",
  );
}

/** The flag of a list on a database that may lack what was committed. */
export function incompleteOf({ incomplete }: DamageStore): { incomplete?: string } {
  return incomplete === null ? {} : { incomplete };
}
