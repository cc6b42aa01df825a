import { existsSync } from "node:fs";
import { NO_ENTRY } from "../../core/recovery/audit.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { firstOf } from "../../core/text/text.ts";
import type { AuditFault, AuditHead } from "../../store/audit.ts";
import type { Thoroughness } from "../../store/maintenance.ts";
import type { Store } from "../../store/store.ts";
import type { Engine } from "../engine.ts";

/** Artifacts per step. Other work of this process runs between two steps. */
const ARTIFACTS_PER_STEP = 500;

export async function checkAll(engine: Engine, how: Thoroughness, signal?: AbortSignal): Promise<string[]> {
  const { damage } = engine.store;
  const known = damage.damaged;
  const standing = (await damage.findings()).filter(({ severity }) => severity === "damage").map(({ id }) => id);
  const audit = how === "whole" ? await checkAudit(engine) : [];
  // Clear only findings from before the check.
  const clears = known !== null && audit.length === 0 ? standing : undefined;
  const { findings, references, artifacts, stays = known } = await damage.check(how, clears);
  signal?.throwIfAborted();
  const missing = await findMissingArtifacts(engine, artifacts);
  return [
    ...(stays === null ? [] : [stays]),
    ...findings,
    ...audit,
    ...references,
    ...(missing.length === 0 ? [] : [`Artifacts that something refers to are missing: ${firstOf(missing)}.`]),
  ];
}

/** Checks the audit, unless it is unreadable: the check of the pages reports that. */
async function checkAudit({ store }: Engine): Promise<string[]> {
  try {
    const { fault } = await verifyAudit(store);
    return fault === null ? [] : [`The audit is not as it was written. ${fault.message}`];
  } catch (error) {
    if (error instanceof HoldfastError && error.code === "DAMAGED") return [];
    throw error;
  }
}

async function findMissingArtifacts(engine: Engine, hashes: readonly string[]): Promise<readonly string[]> {
  if (hashes.length === 0) return [];
  const { path } = engine.artifactFolder;
  // On PostgreSQL the folder may not be configured: then artifacts cannot be checked.
  if (path === null) return engine.location.kind === "postgres" ? [] : hashes;
  if (!existsSync(path)) return hashes;
  const artifacts = await engine.artifacts();
  const missing: string[] = [];
  for (let at = 0; at < hashes.length; at += ARTIFACTS_PER_STEP) {
    missing.push(...artifacts.missing(hashes.slice(at, at + ARTIFACTS_PER_STEP)));
    await new Promise((resolve) => setImmediate(resolve));
  }
  return missing;
}

const ENTRIES_PER_PAGE = 1_000;

export interface AuditVerdict {
  ok: boolean;
  entries: number;
  head: AuditHead;
  fault: AuditFault | null;
}

export async function verifyAudit({ audit }: Pick<Store, "audit">, known: readonly AuditHead[] = []): Promise<AuditVerdict> {
  let entries = 0;
  for (let from = NO_ENTRY; ;) {
    const check = await audit.verify({ from, limit: ENTRIES_PER_PAGE, known });
    entries += check.entries;
    const { head, fault } = check;
    if (!check.more) return { ok: fault === null, entries, head, fault };
    from = head;
    await new Promise((resolve) => setImmediate(resolve));
  }
}
