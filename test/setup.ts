import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { chmod, chown, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { packagedBinaries, prepareBinaries, RUNS_AS } from "./postgres/binaries.ts";
import { makeCluster, memoryFolder } from "./postgres/cluster.ts";
import { strip } from "./stripped.ts";

/**
 * Once for all files of a run (`--test-global-setup`): what each of them, and each process that they start, would do
 * again. A file that is run alone needs none of it.
 */
const folders: string[] = [];

export async function globalSetup(): Promise<void> {
  await moveToMemory();
  // A third of a second of each process is the reading of TypeScript, and there are thousands.
  process.env["NODE_COMPILE_CACHE"] ??= await made("holdfast-compiled-");
  const stripped = (process.env["HOLDFAST_TEST_STRIPPED"] = await made("holdfast-stripped-"));
  // A long run has them as they are for users.
  const lowers = process.env["HOLDFAST_TEST_DIST"] !== undefined;
  const joins = !process.env["HOLDFAST_LONG"] && !lowers;
  strip(stripped, { joins, lowers });
  // Some processes are started as nobody.
  await chmod(stripped, 0o755);
  const quickly = `--import=${new URL("./imports.ts", import.meta.url).href}`;
  process.env["NODE_OPTIONS"] = [process.env["NODE_OPTIONS"], quickly].filter(Boolean).join(" ");
  if (joins) await warm();
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

async function warm(): Promise<void> {
  const program = fileURLToPath(new URL("./warm.ts", import.meta.url));
  const env = { ...process.env, HOLDFAST_TEST_WARMS: "1" };
  const child = spawn(process.execPath, [program, await made("holdfast-warm-")], { env, stdio: ["ignore", "ignore", "inherit"] });
  const [code] = (await once(child, "close")) as [number | null];
  if (code !== 0) throw new Error(`${program} ended with ${code}`);
}

/** Temporary files of all tests, where there is room: a process that is killed leaves the same there as on a disk. */
async function moveToMemory(): Promise<void> {
  const memory = memoryFolder();
  if (memory === null) return;
  // A server that syncs stays where syncing means something.
  process.env["HOLDFAST_TEST_DISK"] ??= tmpdir();
  const folder = await made("holdfast-run-", memory);
  // Others than us have their folders in it: a server that runs as nobody.
  await chmod(folder, 0o711);
  process.env["TMPDIR"] = folder;
}

async function made(prefix: string, where = tmpdir()): Promise<string> {
  const folder = await mkdtemp(join(where, prefix));
  folders.push(folder);
  return folder;
}
