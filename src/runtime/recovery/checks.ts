import { addFindings, type Findings, NO_FINDINGS } from "../../core/recovery-report.ts";
import type { StoreLocation } from "../../store/open-store.ts";
import type { Store } from "../../store/store.ts";

/** What a check is told. */
export interface CheckContext {
  store: Store;
  location: StoreLocation;
  /** The database has just been opened here. */
  opening: boolean;
  /** Nobody else has it open. */
  alone: boolean;
  /** The host was started anew since one of the dead was. */
  rebooted: boolean;
  /** Aborts when this process leaves; whoever opens next checks again. */
  signal: AbortSignal;
}

/**
 * Looks closer, after everything was given back. It must not hold up this thread: what takes long goes into one of its own. What
 * it throws is an error of the report.
 */
export type Check = (context: CheckContext) => Promise<Partial<Findings>>;

/** In this order, after each recovery. */
export const CHECKS: readonly Check[] = [];

/** All that they find. Null: the process leaves before they are done. */
export async function runChecks(checks: readonly Check[], context: CheckContext): Promise<Findings | null> {
  let found = NO_FINDINGS;
  for (const check of checks) {
    const findings = await attempt(check, context);
    if (context.signal.aborted) return null;
    found = addFindings(found, findings);
  }
  return found;
}

/** What could not be checked is not known to be well. */
async function attempt(check: Check, context: CheckContext): Promise<Partial<Findings>> {
  try {
    return await check(context);
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    return { errors: [`The database could not be checked after the crash: ${message}`] };
  }
}
