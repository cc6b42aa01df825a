import { existsSync } from "node:fs";
import { join } from "node:path";
import { Artifacts } from "../artifacts/artifacts.ts";
import { Alive } from "../store/alive.ts";
import { artifactsPath } from "../store/backup-manifest.ts";
import { damaged } from "../store/sqlite/backup/verify.ts";
import { databaseAt, restore, type Restored, type RestoreRequest } from "../store/sqlite/backup/restore.ts";
import { modeLike } from "../store/sqlite/modes.ts";
import { verifyArtifacts } from "./backup.ts";

export { databaseAt };

export interface RestoredWhole extends Restored {
  artifacts: {
    /** Brought back from the backup. */
    restored: number;
    /** Referenced, and nowhere to be had. */
    missing: string[];
  };
}

/** The database of a backup, and the artifacts that came with it: those come first, since they harm nobody. */
export async function restoreWhole(request: RestoreRequest & { artifacts?: string }): Promise<RestoredWhole> {
  let artifacts: RestoredWhole["artifacts"] = { restored: 0, missing: [] };
  const restored = await restore(request, async (found) => {
    artifacts = await bringBack(found, request);
  });
  return { ...restored, artifacts };
}

async function bringBack(
  { hashes, backup, manifest, path }: Restored,
  { artifacts: given, driver, onProgress = () => {} }: RestoreRequest & { artifacts?: string },
): Promise<RestoredWhole["artifacts"]> {
  await verifyArtifacts(backup, manifest, onProgress);
  if (hashes.length === 0) return { restored: 0, missing: [] };
  const folder = given ?? `${path}-artifacts`;
  const included = manifest?.artifacts.included === true;
  if (!included && !existsSync(folder)) return { restored: 0, missing: hashes };
  const opened = await Artifacts.open(folder, { alive: (place) => new Alive(place, driver), mode: modeLike(path) });
  try {
    const gone = opened.missing(hashes);
    const missing: string[] = [];
    for (const [i, hash] of gone.entries()) {
      const file = join(artifactsPath(backup), hash.slice(0, 2), hash.slice(2));
      if (!included || !existsSync(file)) missing.push(hash);
      else if ((await opened.put({ path: file })).hash !== hash) throw damaged(backup, `its artifact ${hash} has other bytes`);
      onProgress({ step: "artifacts", done: i + 1, total: gone.length });
    }
    return { restored: gone.length - missing.length, missing };
  } finally {
    opened.close();
  }
}
