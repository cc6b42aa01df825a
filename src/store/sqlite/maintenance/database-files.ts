import { readlinkSync, statSync } from "node:fs";
import { HoldfastError } from "../../../core/text/errors.ts";
import { connect, type Connection, type DriverName } from "../driver.ts";
import { fileId, type OpenFile, openFiles } from "./open-files.ts";

/** The databases that this process has open: what sources look up where the platform does not list open files. */
const OPEN = new Set<DatabaseFiles>();

/**
 * The file of an open database and its write-ahead log, by inode. A process whose POSIX locks were dropped, or whose files
 * were removed, would continue to commit into files that no other process can see.
 */
export class DatabaseFiles {
  readonly #path: string;
  readonly #ids: readonly (string | null)[];
  /**
   * The paths at which Linux says that the open files are; null elsewhere. A file that is removed, replaced or moved has another
   * one. `stat` asks for the times of a file, after which its next write journals a new one (Linux 6.13): 60 µs of each commit.
   */
  #links: OpenLink[] | null;
  #checkedAt = Number.NEGATIVE_INFINITY;
  #isClosed = false;

  /** Of a database that this process has just opened. Throws `DATABASE_GONE` when its files were replaced meanwhile. */
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

  /** Why others do not see what is committed here; null: they do. Looks no more often than every `maxAgeMs`. */
  difference(maxAgeMs: number): HoldfastError | null {
    const now = performance.now();
    if (this.#isClosed || now - this.#checkedAt < maxAgeMs) return null;
    this.#checkedAt = now;
    if (this.#links !== null && this.#links.every(({ fd, link }) => linkOf(fd) === link)) return null;
    for (const [i, name] of namesOf(this.#path).entries()) {
      const id = lookUp(name);
      if (id === null) return goneError(this.#path, `${name} was removed`);
      // A file system that numbers no files can only say whether the name exists.
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

  /** The inodes of all databases that this process has opened through Holdfast. */
  static openIds(): string[] {
    return [...OPEN].flatMap((files) => files.#ids.filter((id) => id !== null));
  }
}

interface OpenLink {
  fd: number;
  link: string;
}

/** The path at which an open file is now, as Linux gives it; null: the descriptor is closed, or this is another platform. */
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

/** Null: there is no such file. Undefined: its inode is not known. */
function lookUp(name: string): string | null | undefined {
  try {
    const stat = statSync(name, { throwIfNoEntry: false });
    return stat === undefined ? null : (fileId(stat) ?? undefined);
  } catch {
    // A file that cannot be looked up now (EACCES, EIO) has not been replaced.
    return undefined;
  }
}

/**
 * Closes a connection whose log was removed. As the last connection SQLite would copy that log into the file, which other
 * processes have written since, and remove the log at the path, which is theirs. It does neither while another connection of
 * this process holds the shared lock, and a read-only connection never does.
 */
export function closeWithoutCheckpoint(db: Connection, path: string, driver: DriverName): void {
  let guard: Connection | null = null;
  try {
    guard = connect(driver, path, { busyTimeout: 0, readOnly: true });
    guard.exec("begin");
    guard.prepare("select count(*) from sqlite_schema").row();
  } catch {
    // The path is gone, or another file: SQLite itself does not copy into a file that was moved.
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
