import { randomBytes, randomUUID } from "node:crypto";
import {
  closeSync,
  existsSync,
  fsyncSync,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { Alive } from "../../alive.ts";
import { networkFileSystem } from "../../sqlite/open.ts";

/** Where processes of one host and one user prove their lives to each other. */
export interface Place {
  /** No other folder has it, wherever it is and whatever it is called. */
  id: string;
  /** For the files of those who have this database open. */
  folder: string;
}

/** What is in the first outlives a reboot, so that a process can tell that there was one. */
const BASES = process.platform === "win32" ? [tmpdir()] : ["/var/tmp", tmpdir()];

/**
 * A host's name does not say which host it is: containers share names, and paths, but not what is under them. So the
 * folder itself holds a name that was drawn for it. Another user's files could not be locked, so each user has a
 * folder, and is to the others like a user on another host. Null where there is no folder that can be trusted.
 */
export function findPlace(databaseId: string, bases: readonly string[] = basesOf(process.env)): Place | null {
  for (const base of bases) {
    const own = join(base, `holdfast-${process.getuid?.() ?? "here"}`);
    try {
      if (!existsSync(own)) mkdirSync(own, { mode: 0o700 });
    } catch {
      // Another process made it just now, or none may.
    }
    try {
      if (isOurs(own) && networkFileSystem(own) === null) return { id: identityOf(own), folder: join(own, databaseId) };
    } catch {
      // It is not there, or cannot be written.
    }
  }
  return null;
}

/** Who says where it is means there and nowhere else: two that look in different places would be strangers. */
function basesOf({ HOLDFAST_ALIVE: given }: NodeJS.ProcessEnv): readonly string[] {
  return given ? [resolve(given)] : BASES;
}

/** Folders of databases that no process has opened or closed for so long are removed, in milliseconds. */
const FORGOTTEN = 30 * 86_400_000;

/** Removes folders of other databases, whose last processes died: no other process cleans up after them. */
export function sweepOld(place: Place, now: number): void {
  const here = dirname(place.folder);
  for (const name of readdirSync(here)) {
    try {
      if (name !== basename(place.folder) && isForgotten(join(here, name), now)) rmSync(join(here, name), { recursive: true });
    } catch {
      // Another process removes it at this instant.
    }
  }
}

function isForgotten(folder: string, now: number): boolean {
  const stat = statSync(folder);
  if (!stat.isDirectory() || now - stat.mtimeMs < FORGOTTEN) return false;
  const alive = new Alive(folder, "node:sqlite");
  const tokens = readdirSync(folder).flatMap((file) => (file.endsWith(".lock") ? [file.slice(0, -".lock".length)] : []));
  const isLeft = tokens.every((token) => alive.probe(token) === "dead");
  alive.close();
  return isLeft;
}

/** Every user can make a folder of that name there. A user who can write into it could make processes look dead. */
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
