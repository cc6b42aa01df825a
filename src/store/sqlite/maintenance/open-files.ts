import { readdirSync, readFileSync, type Stats, statSync } from "node:fs";

/** A regular file that this process has open. */
export interface OpenFile {
  fd: number;
  id: string;
  /** Opened for reading and writing, as SQLite opens a database; `createReadStream` and `createWriteStream` do not. */
  isReadWrite: boolean;
  locks: LockedBytes[];
}

interface LockedBytes {
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
function openFile(fd: number): OpenFile | null {
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

/** A byte that SQLite keeps locked for as long as a connection is open. */
interface WatchedLock {
  path: string;
  byte: number;
}

/** SQLite's shared lock on a database in WAL mode, its lock on the `-shm` file, and the lock of an open write transaction. */
export const SHARED_BYTE = 0x4000_0002;
export const SHM_BYTE = 128;
export const RESERVED_BYTE = 0x4000_0001;

/**
 * The POSIX locks that this process holds on a database. Closing any descriptor of a file drops them all, and SQLite does not
 * notice: other processes then take this one for closed or dead. Linux lists them; elsewhere none is watched.
 */
export class OwnLocks {
  readonly #held: { path: string; byte: number; id: string; fd: number }[] = [];

  /** Watches those of `wanted` that this process holds now. */
  constructor(wanted: readonly WatchedLock[]) {
    const files = openFiles() ?? [];
    for (const { path, byte } of wanted) {
      const stat = statSync(path, { throwIfNoEntry: false });
      const id = stat === undefined ? null : fileId(stat);
      const file = files.find((one) => one.id === id && hasLocked(one, byte));
      if (id !== null && file !== undefined) this.#held.push({ path, byte, id, fd: file.fd });
    }
  }

  /** The files on which this process held a lock after opening, and holds none now. */
  vanished(): string[] {
    return this.#held.filter((one) => !this.#holds(one)).map(({ path }) => path);
  }

  #holds(held: { byte: number; id: string; fd: number }): boolean {
    const isIt = (file: OpenFile | null): file is OpenFile => file?.id === held.id && hasLocked(file, held.byte);
    if (isIt(openFile(held.fd))) return true;
    // Another connection of this process may have taken it over, through a descriptor of its own.
    const other = (openFiles() ?? []).find(isIt);
    if (other !== undefined) held.fd = other.fd;
    return other !== undefined;
  }
}

function hasLocked({ locks }: OpenFile, byte: number): boolean {
  return locks.some(({ from, to }) => from <= byte && byte <= to);
}

/** A lock on some bytes of a file. */
interface ByteLock {
  pid: number;
  from: number;
  to: number;
}

/** Who has locked which bytes of a file, as Linux says; elsewhere nobody does. The file itself is not opened. */
export function locksOn(path: string): ByteLock[] {
  const stat = statSync(path, { throwIfNoEntry: false });
  if (stat === undefined) return [];
  const device = deviceOf(stat.dev);
  // Some file systems say another device here than there; then the file's number has to do.
  const isSaid = read("/proc/self/mountinfo").includes(` ${device.said} `);
  return read("/proc/locks")
    .split("\n")
    .flatMap((line) => {
      const match = /^\d+: POSIX +\S+ +\S+ +(\d+) (\w+:\w+):(\d+) (\d+) (\d+|EOF)/.exec(line);
      if (match === null || match[3] !== String(stat.ino) || (isSaid && match[2] !== device.locked)) return [];
      return [{ pid: Number(match[1]), from: Number(match[4]), to: match[5] === "EOF" ? Infinity : Number(match[5]) }];
    });
}

/** A device as mounts and as locks spell it. */
function deviceOf(dev: number): { said: string; locked: string } {
  const [major, minor] = [(dev >>> 8) & 0xfff, (dev & 0xff) | ((dev >>> 12) & 0xfff00)];
  return { said: `${major}:${minor}`, locked: `${hex(major)}:${hex(minor)}` };
}

function hex(part: number): string {
  return part.toString(16).padStart(2, "0");
}

function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}
