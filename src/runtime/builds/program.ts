import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { pipeline } from "node:stream/promises";

let hashed: Promise<string> | null = null;

/** Of the program that runs, not of the Node that runs it: the hash of the script's file. */
export function programHash(): Promise<string> {
  hashed ??= hashOf(process.argv[1]);
  return hashed;
}

async function hashOf(path: string | undefined): Promise<string> {
  if (path === undefined) return "";
  const hash = createHash("sha256");
  try {
    await pipeline(createReadStream(path), hash);
    return hash.digest("hex");
  } catch {
    // It may be a name that only Node resolves. Nothing is decided by it.
    return "";
  }
}
