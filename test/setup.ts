import { randomBytes } from "node:crypto";
import { chmod, chown, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { bundleForTests } from "./bundle.ts";
import { packagedBinaries, prepareBinaries, RUNS_AS } from "./postgres/binaries.ts";
import { makeCluster, memoryFolder } from "./postgres/cluster.ts";

/**
 * Once for all files of a run (`--test-global-setup`): what each of them, and each process that they start, would do
 * again. A file that is run alone needs none of it.
 */
const folders: string[] = [];

export async function globalSetup(): Promise<void> {
  await moveToMemory();
  const bundle = (process.env["HOLDFAST_TEST_BUNDLE"] = await bundleForTests());
  // Thousands of processes load the same files. Kept with the bundle: the first processes of the next run have it, too.
  process.env["NODE_COMPILE_CACHE"] ??= `${bundle}-compiled`;
  const hook = `--import=${new URL("./bundled.ts", import.meta.url).href}`;
  process.env["NODE_OPTIONS"] = [process.env["NODE_OPTIONS"], hook].filter(Boolean).join(" ");
  const native = process.env["DATABASE_URL"] ? null : packagedBinaries();
  if (native === null) return;
  const folder = await made("holdfast-cluster-");
  await chown(folder, RUNS_AS.uid, RUNS_AS.gid);
  await makeCluster(await prepareBinaries(native, folder), folder, randomBytes(16).toString("hex"));
  process.env["HOLDFAST_TEST_CLUSTER"] = folder;
}

export async function globalTeardown(): Promise<void> {
  for (const folder of folders.toReversed()) await rm(folder, { recursive: true, force: true });
}

/** Temporary files of all tests, where there is room: a process that is killed leaves the same there as on a disk. */
async function moveToMemory(): Promise<void> {
  const memory = memoryFolder();
  if (memory === null) return;
  // A server that syncs stays where syncing means something.
  process.env["HOLDFAST_TEST_DISK"] ??= tmpdir();
  const folder = await made("holdfast-run-", memory);
  // Other users have their folders in it: a server that runs as the Unix user `nobody`. ruled-out-word-ok
  await chmod(folder, 0o711);
  process.env["TMPDIR"] = folder;
}

async function made(prefix: string, where = tmpdir()): Promise<string> {
  const folder = await mkdtemp(join(where, prefix));
  folders.push(folder);
  return folder;
}
