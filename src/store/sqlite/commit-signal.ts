import { closeSync, constants, openSync, writeSync } from "node:fs";
import { join } from "node:path";
import { aliveFolder } from "../alive.ts";
import { createFile, modeLike } from "./modes.ts";

const BYTE = Buffer.from("\n");

/** The file that each commit writes a byte to, so that processes which watch it wake up. It lies in `-alive`. */
export function signalFile(path: string): string {
  return join(aliveFolder(path), "commits");
}

/** Creates the file where it is missing, so that it can be watched. */
export function hasSignalFile(path: string): boolean {
  const file = openSignalFile(path);
  if (file !== null) closeSync(file);
  return file !== null;
}

/** Announces commits to the processes that watch the signal file. Errors are ignored: those processes also look by themselves. */
export class CommitSignal {
  readonly #path: string;
  #file: number | null = null;

  constructor(path: string) {
    this.#path = path;
  }

  /** Call it once the commit is visible to other connections. The byte is overwritten in place, so the file never grows. */
  send(): void {
    this.#file ??= openSignalFile(this.#path);
    if (this.#file === null) return;
    try {
      writeSync(this.#file, BYTE, 0, 1, 0);
    } catch {
      this.close();
    }
  }

  close(): void {
    if (this.#file === null) return;
    closeSync(this.#file);
    this.#file = null;
  }
}

/** Null where the file cannot be opened, e.g. because `-alive` was removed. It has the mode of the database. */
function openSignalFile(path: string): number | null {
  try {
    createFile(signalFile(path), modeLike(path));
    return openSync(signalFile(path), constants.O_RDWR | constants.O_CREAT);
  } catch {
    return null;
  }
}
