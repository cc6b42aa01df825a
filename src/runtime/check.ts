import { existsSync } from "node:fs";
import { HoldfastError } from "../core/errors.ts";
import type { Thoroughness } from "../store/findings.ts";
import { verifyAudit } from "./audit.ts";
import type { Engine } from "./engine.ts";

/** How many missing artifacts are named; the others are counted. */
const NAMED = 5;
/** So many are looked for at a time: what else this process does comes in between. */
const STEP = 500;

/** What is wrong with a database and what it refers to, in sentences. */
export async function checkAll(engine: Engine, how: Thoroughness, signal?: AbortSignal): Promise<string[]> {
  const { damage } = engine.store;
  const known = damage.damaged;
  const standing = (await damage.findings()).filter(({ severity }) => severity === "damage").map(({ id }) => id);
  const { findings, references, artifacts, isComplete } = await damage.check(how);
  signal?.throwIfAborted();
  const missing = await missingOf(engine, artifacts);
  const audit = how === "whole" ? await auditOf(engine) : [];
  const [first] = missing;
  const named = missing.slice(0, NAMED).join(", ");
  const more = missing.length > NAMED ? ` and ${missing.length - NAMED} more` : "";
  // Only what was known before the check: it says nothing about what was found while it looked.
  const isClean = isComplete && findings.length + audit.length === 0;
  const stays = known !== null && isClean ? await damage.clear(standing) : known;
  return [
    ...(stays === null ? [] : [stays]),
    ...findings,
    ...audit,
    ...references,
    ...(first === undefined ? [] : [`Artifacts that something refers to are missing: ${named}${more}.`]),
  ];
}

/** What pages that cannot be read mean for it was found with them. */
async function auditOf({ store }: Engine): Promise<string[]> {
  try {
    const { fault } = await verifyAudit(store);
    return fault === null ? [] : [`The audit is not as it was written. ${fault.message}`];
  } catch (error) {
    if (error instanceof HoldfastError && error.code === "DAMAGED") return [];
    throw error;
  }
}

async function missingOf(engine: Engine, hashes: readonly string[]): Promise<readonly string[]> {
  if (hashes.length === 0) return [];
  const { path } = engine.artifactFolder;
  // On a server nobody may have said where they are: then nobody can look.
  if (path === null) return engine.location.kind === "postgres" ? [] : hashes;
  if (!existsSync(path)) return hashes;
  const artifacts = await engine.artifacts();
  const missing: string[] = [];
  for (let at = 0; at < hashes.length; at += STEP) {
    missing.push(...artifacts.missing(hashes.slice(at, at + STEP)));
    await new Promise((resolve) => setImmediate(resolve));
  }
  return missing;
}
