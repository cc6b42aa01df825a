import { readdirSync, readFileSync, readlinkSync, type Stats, statSync } from "node:fs";
import { HoldfastError } from "../../../core/text/errors.ts";
import { connect, type Connection, type DriverName } from "../driver.ts";

interface OpenFile {
  fd: number;
  id: string;
  isReadWrite: boolean;
  locks: { from: number; to: number }[];
}

/** Identifies a file on this host; null on a file system without inode numbers. */
export function fileId({ dev, ino }: Pick<Stats, "dev" | "ino">): string | null {
  return ino === 0 ? null : `${dev}:${ino}`;
}

/** Lists the regular files that this process has open, with its POSIX locks. Opens no file. Null: the system is not Linux. */
export function openFiles(): OpenFile[] | null {
  let fds: string[];
  try {
    fds = readdirSync("/proc/self/fd");
  } catch {
    return null;
  }
  return fds.map((fd) => openFile(Number(fd))).filter((file) => file !== null);
}

function openFile(fd: number): OpenFile | null {
  try {
    // Do not use `fstat`, because Deno's descriptors are numbers of its own.
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
    // A sandbox may hide this file.
  }
  const flags = Number.parseInt(/^flags:\s*(\d+)/m.exec(info)?.[1] ?? "0", 8);
  const locks = [...info.matchAll(/^lock:\s*\d+: POSIX .* (\d+) (\d+|EOF)$/gm)].map(([, from, to]) => ({
    from: Number(from),
    to: to === "EOF" ? Infinity : Number(to),
  }));
  return { isReadWrite: (flags & ACCESS_MODE) === READ_WRITE, locks };
}

const ACCESS_MODE = 0o3;
const READ_WRITE = 0o2;

/** Bytes that SQLite locks: in a database in WAL mode, in its `-shm` file, and in a write transaction. */
export const SHARED_BYTE = 0x4000_0002;
export const SHM_BYTE = 128;
export const RESERVED_BYTE = 0x4000_0001;

/** Returns a check for lost locks. Closing any descriptor of a file drops them, so that others take this process for dead. */
export function watchLocks(wanted: readonly { path: string; byte: number }[]): () => string[] {
  const files = openFiles() ?? [];
  const held = wanted.flatMap(({ path, byte }) => {
    const id = lookUp(path) ?? null;
    const fd = files.find((file) => file.id === id && hasLocked(file, byte))?.fd;
    return fd === undefined ? [] : [{ path, byte, id, fd }];
  });
  const isHeld = (lock: (typeof held)[number]): boolean => {
    const isIt = (file: OpenFile | null): boolean => file?.id === lock.id && hasLocked(file, lock.byte);
    if (!isIt(openFile(lock.fd))) lock.fd = openFiles()?.find(isIt)?.fd ?? NO_FILE;
    return lock.fd !== NO_FILE;
  };
  return () => held.filter((lock) => !isHeld(lock)).map(({ path }) => path);
}

const NO_FILE = -1;

function hasLocked({ locks }: OpenFile, byte: number): boolean {
  return locks.some(({ from, to }) => from <= byte && byte <= to);
}

export function locksOn(path: string): { pid: number; from: number; to: number }[] {
  const stat = statSync(path, { throwIfNoEntry: false });
  if (stat === undefined) return [];
  const device = deviceOf(stat.dev);
  // Some file systems report another device in `stat`; then the inode alone decides.
  const isMounted = read("/proc/self/mountinfo").includes(` ${device.mounted} `);
  return read("/proc/locks")
    .split("\n")
    .flatMap((line) => {
      const match = /^\d+: POSIX +\S+ +\S+ +(\d+) (\w+:\w+):(\d+) (\d+) (\d+|EOF)/.exec(line);
      if (match === null || match[3] !== String(stat.ino) || (isMounted && match[2] !== device.locked)) return [];
      return [{ pid: Number(match[1]), from: Number(match[4]), to: match[5] === "EOF" ? Infinity : Number(match[5]) }];
    });
}

function deviceOf(dev: number): { mounted: string; locked: string } {
  const [major, minor] = [(dev >>> 8) & 0xfff, (dev & 0xff) | ((dev >>> 12) & 0xfff00)];
  const [majorHex, minorHex] = [major, minor].map((part) => part.toString(16).padStart(2, "0"));
  return { mounted: `${major}:${minor}`, locked: `${majorHex}:${minorHex}` };
}

function read(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

const OPEN = new Set<DatabaseFiles>();

/** Detects by inode that the files were replaced. This process would commit into files that no other process sees. */
export class DatabaseFiles {
  readonly #path: string;
  readonly #ids: readonly (string | null)[];
  /** Links of open files; null if the system is not Linux. Unlike `stat`, reading them costs a commit no 60 µs (Linux 6.13). */
  #links: OpenLink[] | null;
  #checkedAt = Number.NEGATIVE_INFINITY;
  #isClosed = false;

  constructor(path: string) {
    this.#path = path;
    this.#ids = namesOf(path).map((name) => {
      const id = lookUp(name);
      if (id === null) throw goneError(path, `${name} was removed`);
      return id ?? null;
    });
    const files = openFiles();
    const ids = new Set(files?.map(({ id }) => id));
    if (files !== null && this.#ids.some((id) => id !== null && !ids.has(id))) {
      throw goneError(path, "another file was put there while it was being opened");
    }
    this.#links = this.#findLinks(files ?? []);
    OPEN.add(this);
  }

  /** Returns why other processes do not see this process's commits, or null. It looks at most every `maxAgeMs`. */
  difference(maxAgeMs: number): HoldfastError | null {
    const now = performance.now();
    if (this.#isClosed || now - this.#checkedAt < maxAgeMs) return null;
    this.#checkedAt = now;
    if (this.#links !== null && this.#links.every(({ fd, link }) => linkOf(fd) === link)) return null;
    for (const [i, name] of namesOf(this.#path).entries()) {
      const id = lookUp(name);
      if (id === null) return goneError(this.#path, `${name} was removed`);
      // Without inode numbers, only a missing name reveals a replaced file.
      if (id !== undefined && this.#ids[i] !== null && id !== this.#ids[i]) {
        return goneError(this.#path, `another file is at ${name}`);
      }
    }
    if (this.#links !== null) this.#links = this.#findLinks(openFiles() ?? []);
    return null;
  }

  #findLinks(files: readonly OpenFile[]): OpenLink[] | null {
    const links = this.#ids.map((id) => {
      const fd = files.find((file) => file.id === id)?.fd;
      const link = fd === undefined ? null : linkOf(fd);
      return fd === undefined || link === null ? null : { fd, link };
    });
    return links.includes(null) ? null : (links as OpenLink[]);
  }

  close(): void {
    this.#isClosed = true;
    OPEN.delete(this);
  }

  static openIds(): string[] {
    return [...OPEN].flatMap((files) => files.#ids.filter((id) => id !== null));
  }
}

interface OpenLink {
  fd: number;
  link: string;
}

function linkOf(fd: number): string | null {
  try {
    return readlinkSync(`/proc/self/fd/${fd}`);
  } catch {
    return null;
  }
}

function namesOf(path: string): string[] {
  return [path, `${path}-wal`];
}

/** Returns the id of a file. Null: there is no such file. Undefined: its inode is unknown. */
function lookUp(name: string): string | null | undefined {
  try {
    const stat = statSync(name, { throwIfNoEntry: false });
    return stat === undefined ? null : (fileId(stat) ?? undefined);
  } catch {
    // A file that cannot be looked up now (EACCES, EIO) has not been replaced.
    return undefined;
  }
}

// Closes a connection whose log was removed. As the last one, it would copy that log over what other processes have written
// since. SQLite does not copy while this process holds the shared lock by another connection, nor for a read-only one.
export function closeWithoutCheckpoint(db: Connection, path: string, driver: DriverName): void {
  let guard: Connection | null = null;
  try {
    guard = connect(driver, path, { busyTimeout: 0, readOnly: true });
    guard.exec("begin");
    guard.prepare("select count(*) from sqlite_schema").row();
  } catch {
    // The path is gone, or leads to another file, and SQLite does not copy into a file that was moved.
  }
  db.close();
  guard?.close();
}

function goneError(path: string, what: string): HoldfastError {
  return new HoldfastError(
    "DATABASE_GONE",
    `The files of ${path} were replaced while it was open: ${what}. Other processes do not see what this one writes, so nothing was acknowledged and the handle is read-only.`,
    "Restart this process. Do not remove, move or read the files of a live database; `holdfast backup` copies it.",
  );
}
