import { lstat, readFile, rename, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { HoldfastError } from "../core/errors.ts";
import { faultOf, isAbsent } from "./faults.ts";
import { syncFolder } from "./folder.ts";
import { passArtifactPoint } from "./points.ts";

export const LATEST = "latest";

/** Where links cannot be made: Windows without the right to, disks that know none. */
const NO_LINKS = new Set(["EPERM", "EACCES", "ENOSYS", "ENOTSUP", "EOPNOTSUPP", "EINVAL"]);

/**
 * Makes `latest` in a folder lead to `name` beside it: a link, or a text file that says the name. It is made in the
 * workshop and renamed, so that there is never none and never half of one.
 */
export async function pointLatest(folder: string, name: string, workshop: string, link = symlink): Promise<void> {
  const made = join(workshop, LATEST);
  try {
    await link(name, made, "dir");
  } catch (error) {
    if (!NO_LINKS.has(faultOf(error) ?? "")) throw error;
    await writeFile(made, `${name}\n`, { flush: true });
  }
  await syncFolder(workshop);
  passArtifactPoint("export:pointing");
  await rename(made, join(folder, LATEST));
  await syncFolder(folder);
  passArtifactPoint("export:pointed");
}

/** Refuses to take the place of something that is no pointer. */
export async function refuseOthersLatest(folder: string): Promise<void> {
  const path = join(folder, LATEST);
  try {
    const found = await lstat(path);
    if (found.isSymbolicLink()) return;
    if (found.isFile() && found.size <= 1_024 && /^[^/\n]+\n$/.test(await readFile(path, "utf8"))) return;
  } catch (error) {
    if (isAbsent(error)) return;
    throw error;
  }
  throw new HoldfastError(
    "EXPORT_LATEST_TAKEN",
    `${path} is not a pointer to an export, so nothing was exported.`,
    `Move it away, or export into a folder that has no "${LATEST}" of its own.`,
  );
}
