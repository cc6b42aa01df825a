import { existsSync } from "node:fs";
import type { BackupArtifacts, BackupReason, Manifest, OnProgress, StagedBackup } from "../store/backups.ts";
import { lacking } from "../artifacts/collect.ts";
import { artifactsPath } from "../store/backup-manifest.ts";
import { damaged, verifyBackup, type VerifiedBackup } from "../store/sqlite/backup/verify.ts";
import type { Engine } from "./engine.ts";
import { said } from "./trouble.ts";

export interface BackupOptions {
  /** Copy the artifacts, too; default false: the backup knows what they are called, and that they must be there. */
  artifacts?: boolean;
  /** Called now and then while it is made. */
  onProgress?: OnProgress;
}

/** A copy of all that is there at one instant, checked, under its name only when it is whole. Nobody is held up by it. */
export async function makeBackup(
  engine: Engine,
  path: string,
  { artifacts = false, onProgress = () => {}, reason = "asked" }: BackupOptions & { reason?: BackupReason } = {},
): Promise<Manifest> {
  const staged = await engine.store.backups.stage(path, { reason, onProgress });
  try {
    const collected = await (artifacts ? include(engine, staged, onProgress) : refer(engine, staged));
    const manifest = await staged.publish(collected);
    await writeDown(engine, path, manifest);
    return manifest;
  } catch (error) {
    await staged.discard();
    throw error;
  }
}

/** It is there by now, whatever becomes of its entry in the audit; and what is damaged is not written to. */
async function writeDown({ store, log }: Engine, path: string, { size, sha256, reason }: Manifest): Promise<void> {
  if (store.damage.damaged !== null) return;
  await store.audit
    .record({ action: "backup.made", name: path, after: { size, sha256, reason } })
    .catch((error: unknown) => log.warn("a backup was made, and could not be written down", { path, ...said(error) }));
}

/** The file, and the artifacts that came with it. */
export async function verifyWhole(
  path: string,
  driver: "node:sqlite" | "better-sqlite3",
  tell: OnProgress,
): Promise<VerifiedBackup> {
  const verified = await verifyBackup(path, driver, tell);
  await verifyArtifacts(verified.path, verified.manifest, tell);
  return verified;
}

/** Throws if an artifact that came with the backup is missing or damaged. */
export async function verifyArtifacts(backup: string, manifest: Manifest | null, tell: OnProgress): Promise<void> {
  if (manifest === null || !manifest.artifacts.included) return;
  const { hashes } = manifest.artifacts;
  const bad = await lacking(hashes, artifactsPath(backup), (done) => tell({ step: "artifacts", done, total: hashes.length }));
  if (bad.length > 0) throw damaged(backup, `of its artifacts ${bad.length} are missing or damaged, ${bad[0]} among them`);
}

async function include(engine: Engine, staged: StagedBackup, onProgress: OnProgress): Promise<BackupArtifacts> {
  const hashes = [...staged.hashes];
  const tell = (done: number) => onProgress({ step: "artifacts", done, total: hashes.length });
  const opened = await engine.artifacts();
  const { bytes, missing } = await opened.collect(hashes, staged.artifactFolder, tell);
  const gone = new Set(missing);
  return { included: true, hashes: hashes.filter((hash) => !gone.has(hash)), bytes, missing };
}

/** Whether they are there is looked at all the same: to know it now is better than after a restore. */
async function refer(engine: Engine, staged: StagedBackup): Promise<BackupArtifacts> {
  const hashes = [...staged.hashes];
  const { path } = engine.artifactFolder;
  if (hashes.length === 0) return { included: false, hashes, bytes: 0, missing: [] };
  const missing = path === null || !existsSync(path) ? hashes : (await engine.artifacts()).missing(hashes);
  const gone = new Set(missing);
  return { included: false, hashes: hashes.filter((hash) => !gone.has(hash)), bytes: 0, missing: [...missing] };
}
