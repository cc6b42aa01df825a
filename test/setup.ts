import { randomBytes } from "node:crypto";
import { chown, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { packagedBinaries, prepareBinaries, RUNS_AS } from "./postgres/binaries.ts";
import { makeCluster } from "./postgres/cluster.ts";

/**
 * Once for all files of a run (`--test-global-setup`): what each of them, and each process that they start, would do
 * again. A file that is run alone needs none of it.
 */
const folders: string[] = [];

export async function globalSetup(): Promise<void> {
  // A third of a second of each process is the reading of TypeScript, and there are thousands.
  process.env["NODE_COMPILE_CACHE"] ??= await made("holdfast-compiled-");
  const native = process.env["DATABASE_URL"] ? null : packagedBinaries();
  if (native === null) return;
  const folder = await made("holdfast-cluster-");
  await chown(folder, RUNS_AS.uid, RUNS_AS.gid);
  await makeCluster(await prepareBinaries(native, folder), folder, randomBytes(16).toString("hex"));
  process.env["HOLDFAST_TEST_CLUSTER"] = folder;
}

export async function globalTeardown(): Promise<void> {
  for (const folder of folders) await rm(folder, { recursive: true, force: true });
}

async function made(prefix: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), prefix));
  folders.push(folder);
  return folder;
}
