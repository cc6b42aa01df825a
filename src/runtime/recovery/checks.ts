import { existsSync } from "node:fs";
import { addFindings, type Findings, NO_FINDINGS } from "../../core/recovery-report.ts";
import { checkAll } from "../check.ts";
import type { Engine } from "../engine.ts";

/** Under what circumstances the dead were found. */
export interface CheckCircumstances {
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
export type Check = (engine: Engine, circumstances: CheckCircumstances) => Promise<Partial<Findings>>;

/** In this order, after each recovery. A server looks after its own log and pages; artifacts are Holdfast's on both. */
export const CHECKS: readonly Check[] = [shortenLog, clearTemporary, checkPages];

/** All that they find. Null: the process leaves before they are done. */
export async function runChecks(
  checks: readonly Check[],
  engine: Engine,
  circumstances: CheckCircumstances,
): Promise<Findings | null> {
  const { signal } = circumstances;
  const left = new Promise<null>((resolve) => signal.addEventListener("abort", () => resolve(null), { once: true }));
  let found = NO_FINDINGS;
  for (const check of checks) {
    const findings = await Promise.race([attempt(check, engine, circumstances), left]);
    if (findings === null || signal.aborted) return null;
    found = addFindings(found, findings);
  }
  return found;
}

/** What could not be checked is not known to be well. */
async function attempt(check: Check, engine: Engine, circumstances: CheckCircumstances): Promise<Partial<Findings>> {
  try {
    return await check(engine, circumstances);
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    return { errors: [`The database could not be checked after the crash: ${message}`] };
  }
}

/** A log that a crash has left long makes every opening slow until somebody copies it. */
async function shortenLog({ store }: Engine, { alone }: CheckCircumstances): Promise<Partial<Findings>> {
  await store.recoveries.checkpoint({ alone });
  return {};
}

/** What the dead were writing into the folder of artifacts, which may have been open here long before. */
async function clearTemporary(engine: Engine): Promise<Partial<Findings>> {
  const { path } = engine.artifactFolder;
  if (path !== null && existsSync(path)) await (await engine.artifacts()).clear();
  return {};
}

/** With the artifacts that something refers to. Where others live, they would have met damage; they have just been reading. */
async function checkPages(engine: Engine, { alone, rebooted, signal }: CheckCircumstances): Promise<Partial<Findings>> {
  if (!alone && !rebooted) return {};
  // There is nothing to look for on a server where nobody has said where artifacts are.
  if (engine.location.kind === "postgres" && engine.artifactFolder.path === null) return {};
  return { errors: await checkAll(engine, "quick", signal) };
}
