import { randomBytes, randomUUID } from "node:crypto";
import {
  closeSync,
  existsSync,
  fsyncSync,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { networkFileSystem } from "../sqlite/file-system.ts";

/** Where processes of one host and one user prove their lives to each other. */
export interface Place {
  /** No other folder has it, wherever it is and whatever it is called. */
  id: string;
  /** For the files of those who have this database open. */
  folder: string;
}

/** What is in the first outlives a reboot, so that whoever comes after one can tell that there was one. */
const BASES = process.platform === "win32" ? [tmpdir()] : ["/var/tmp", tmpdir()];

/**
 * A host's name does not say which host it is: containers share names, and paths, but not what is under them. So the
 * folder itself holds a name that was drawn for it. Another user's files could not be locked, so each has a folder of
 * his own, and is to the others like somebody on another host. Null where there is no folder that can be trusted.
 */
export function findPlace(databaseId: string, bases: readonly string[] = BASES): Place | null {
  for (const base of bases) {
    const own = join(base, `holdfast-${process.getuid?.() ?? "here"}`);
    try {
      if (!existsSync(own)) mkdirSync(own, { mode: 0o700 });
    } catch {
      // Somebody else made it just now, or nobody may.
    }
    try {
      if (isOurs(own) && networkFileSystem(own) === null) return { id: identityOf(own), folder: join(own, databaseId) };
    } catch {
      // It is not there, or cannot be written.
    }
  }
  return null;
}

/** Everybody can make a folder of that name there. Whoever can write into it could make others look dead. */
function isOurs(folder: string): boolean {
  const stat = lstatSync(folder);
  if (process.getuid === undefined) return stat.isDirectory();
  return stat.isDirectory() && stat.uid === process.getuid() && (stat.mode & 0o022) === 0;
}

/** Of two who come first, one's is taken: a link is made whole, or not at all. */
function identityOf(folder: string): string {
  const file = join(folder, "place");
  if (!existsSync(file)) {
    const draft = join(folder, `place-${randomBytes(8).toString("hex")}`);
    const handle = openSync(draft, "wx", 0o600);
    try {
      writeSync(handle, randomUUID());
      fsyncSync(handle);
    } finally {
      closeSync(handle);
    }
    try {
      linkSync(draft, file);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    } finally {
      rmSync(draft, { force: true });
    }
  }
  const id = readFileSync(file, "utf8");
  if (!/^[0-9a-f-]{36}$/.test(id)) throw new Error(`${file} is not what it was.`);
  return id;
}
