import { readFileSync, statfsSync } from "node:fs";
import { HoldfastError } from "../../core/errors.ts";

/** File systems whose locks and shared memory do not work between hosts, by the magic number of statfs(2). */
const NETWORK = new Map<number, string>([
  [0x6969, "NFS"],
  [0x517b, "SMB"],
  [0xff534d42, "CIFS"],
  [0xfe534d42, "SMB2"],
  [0x01021997, "9P"],
  [0x5346414f, "AFS"],
  [0x00c36400, "Ceph"],
  [0x0bd00bd0, "Lustre"],
  [0x47504653, "GPFS"],
  [0x01161970, "GFS2"],
  [0x7461636f, "OCFS2"],
]);
const FUSE = 0x65735546;
const NETWORK_FUSE = /^fuse\.(sshfs|s3fs|rclone|glusterfs|gcsfuse|goofys|davfs2?|cephfs|ceph-fuse|juicefs)$/;

/** The name of the network file system that a folder is on, or null. */
export function networkFileSystem(
  folder: string,
  stat: (path: string) => number = typeOf,
  mounts: () => string = readMounts,
): string | null {
  const type = stat(folder) >>> 0;
  if (type === FUSE) return networkFuse(folder, mounts());
  return NETWORK.get(type) ?? null;
}

export function refuseNetwork(folder: string, stat?: (path: string) => number): void {
  const kind = networkFileSystem(folder, stat);
  if (kind === null) return;
  throw new HoldfastError(
    "NETWORK_FILE_SYSTEM",
    `${folder} is on a network file system (${kind}), where SQLite's locks cannot be trusted. Nothing was created.`,
    "Put the database on a local disk of the machine that runs the workers.",
  );
}

function networkFuse(folder: string, mounts: string): string | null {
  let found = { at: "", type: "" };
  for (const line of mounts.split("\n")) {
    const [, at, type] = line.split(" ");
    if (at === undefined || type === undefined) continue;
    const inside = at === "/" || folder === at || folder.startsWith(`${at}/`);
    if (inside && at.length >= found.at.length) found = { at, type };
  }
  return NETWORK_FUSE.test(found.type) ? found.type : null;
}

function typeOf(path: string): number {
  return statfsSync(path).type;
}

function readMounts(): string {
  try {
    return readFileSync("/proc/self/mounts", "utf8");
  } catch {
    return "";
  }
}
