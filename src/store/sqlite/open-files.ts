import { readdirSync, readFileSync, type Stats, statSync } from "node:fs";

/** A regular file that this process has open. */
export interface OpenFile {
  fd: number;
  id: string;
  /** Opened for reading and writing, as SQLite opens a database; `createReadStream` and `createWriteStream` do not. */
  isReadWrite: boolean;
  locks: LockedBytes[];
}

export interface LockedBytes {
  from: number;
  to: number;
}

/** Identifies a file on this host, whatever its name; null on a file system that numbers no files. */
export function fileId({ dev, ino }: Pick<Stats, "dev" | "ino">): string | null {
  return ino === 0 ? null : `${dev}:${ino}`;
}

/** The regular files that this process has open, with its POSIX locks, as Linux lists them. Null elsewhere. No file is opened to find out. */
export function openFiles(): OpenFile[] | null {
  let fds: string[];
  try {
    fds = readdirSync("/proc/self/fd");
  } catch {
    return null;
  }
  return fds.map((fd) => openFile(Number(fd))).filter((file) => file !== null);
}

/** Null: the descriptor is closed, or of a socket, a pipe or a folder. */
export function openFile(fd: number): OpenFile | null {
  try {
    // Not `fstat`: Deno's descriptors are numbers of its own.
    const stat = statSync(`/proc/self/fd/${fd}`);
    const id = stat.isFile() ? fileId(stat) : null;
    return id === null ? null : { fd, id, ...infoOf(fd) };
  } catch {
    return null;
  }
}

function infoOf(fd: number): Pick<OpenFile, "isReadWrite" | "locks"> {
  let info = "";
  try {
    info = readFileSync(`/proc/self/fdinfo/${fd}`, "utf8");
  } catch {
    // A sandbox may hide it.
  }
  const flags = Number.parseInt(/^flags:\s*(\d+)/m.exec(info)?.[1] ?? "0", 8);
  const locks = [...info.matchAll(/^lock:\s*\d+: POSIX .* (\d+) (\d+|EOF)$/gm)].map(([, from, to]) => ({
    from: Number(from),
    to: to === "EOF" ? Infinity : Number(to),
  }));
  return { isReadWrite: (flags & ACCESS_MODE) === READ_WRITE, locks };
}

/** Of `flags` in fdinfo. */
const ACCESS_MODE = 0o3;
const READ_WRITE = 0o2;
