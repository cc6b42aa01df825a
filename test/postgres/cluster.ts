import { spawn } from "node:child_process";
import { once } from "node:events";
import { accessSync, constants, openSync, readFileSync, statfsSync } from "node:fs";
import { appendFile, chown, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Binaries, RUNS_AS } from "./binaries.ts";

/** Where a run of many test files has made one for all of them: to copy it takes a fifth of the time. */
export const template: string | undefined = process.env["HOLDFAST_TEST_CLUSTER"] || undefined;

/** What a server may need there, many times over. */
const ROOM = 4 * 2 ** 30;

/**
 * A folder in memory for a server that syncs nothing to disk anyway, or null. A database is six hundred files, and on some
 * disks those are half a second of the processor. A long run has more data than belongs there.
 */
export function memoryFolder(): string | null {
  const folder = "/dev/shm";
  if (process.platform !== "linux" || process.env["HOLDFAST_LONG"] || process.availableMemory() < ROOM) return null;
  try {
    accessSync(folder, constants.W_OK);
    const { bavail, bsize } = statfsSync(folder);
    return bavail * bsize < ROOM ? null : folder;
  } catch {
    return null;
  }
}

/** The files of a server that was never started: `data` in this folder, `password` beside it, and a `log` of what went wrong. */
export async function makeCluster(binaries: Binaries, folder: string, password: string): Promise<void> {
  const { uid, gid } = binaries.how;
  const passwordFile = join(folder, "password");
  await writeFile(passwordFile, password, { mode: 0o600 });
  await chown(passwordFile, uid, gid);
  await run(binaries, folder, binaries.initdb, [
    `--pgdata=${join(folder, "data")}`,
    "--username=postgres",
    `--pwfile=${passwordFile}`,
    "--auth=scram-sha-256",
    // Text is not ordered by bytes in most databases out there; where an order matters, the SQL has to say so.
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=icu",
    "--icu-locale=en-US",
    // Each server has a copy of it.
    "--wal-segsize=1",
    "--no-sync",
    "--no-instructions",
    // A throwaway password needs no slow hash, and some tests connect a thousand times.
    "--set=scram_iterations=1",
  ]);
}

export function passwordOf(cluster: string): string {
  return readFileSync(join(cluster, "password"), "utf8");
}

/** By a program of the system, since the files have to be the server's, and only it may read them. */
export async function copyCluster(binaries: Binaries, from: string, folder: string): Promise<void> {
  await run(binaries, folder, "cp", ["-R", "-p", join(from, "data"), join(folder, "data")]);
}

/** It takes what its primary sends, and no writes, until it is promoted. */
export async function makeReplica(folder: string): Promise<void> {
  const signal = join(folder, "data", "standby.signal");
  await writeFile(signal, "");
  await chown(signal, RUNS_AS.uid, RUNS_AS.gid);
}

/** In its own file, where what is said later counts. */
export async function configure(folder: string, settings: Record<string, string | number>): Promise<void> {
  const lines = Object.entries(settings).map(([name, value]) => `${name} = '${String(value).replaceAll("'", "''")}'\n`);
  await appendFile(join(folder, "data", "postgresql.conf"), lines.join(""));
}

async function run({ how }: Binaries, folder: string, program: string, args: string[]): Promise<void> {
  const file = join(folder, "log");
  const log = openSync(file, "a");
  const [code] = (await once(spawn(program, args, { ...how, stdio: ["ignore", log, log] }), "close")) as [number];
  if (code !== 0) throw new Error(`${program} ended with ${code}:\n${readFileSync(file, "utf8")}`);
}
