import { hash as digest } from "node:crypto";
import { lstat, mkdir, rename, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { HoldfastError } from "../core/text/errors.ts";
import { toJson } from "../core/text/json.ts";
import { CHECKSUMS, ExportNames, invalidPath, MANIFEST } from "./export-names.ts";
import {
  explain,
  faultOf,
  isAbsent,
  type Layout,
  makeFolder,
  nameFor,
  passArtifactPoint,
  syncFolder,
  writeNew,
} from "./folder.ts";
import { RECORD, STAGING_PREFIX } from "./sweep.ts";

export type ExportEntry = { path: string } & ({ hash: string } | { text: string });

export interface Exported {
  path: string;
  files: number;
  bytes: number;
}

interface Parts {
  layout: Layout;
  token: string;
  pieces: (hash: string) => AsyncIterable<Buffer>;
}

/** Exports all or nothing: it renames a temporary folder once. A record lets another process remove that after a crash. */
export async function exportTo(
  parts: Parts,
  dir: string,
  entries: AsyncIterable<ExportEntry> | Iterable<ExportEntry>,
  manifest: object,
): Promise<Exported> {
  const target = resolve(dir);
  const [folder, name] = [dirname(target), basename(target)];
  const text = manifestText(manifest);
  let staging: string | null = null;
  let record: string | null = null;
  try {
    await refuseTaken(target, name);
    await makeFolder(folder);
    const id = nameFor(parts.token);
    staging = join(folder, STAGING_PREFIX + id);
    record = join(parts.layout.temporary, id + RECORD);
    await writeFile(record, staging, { flag: "wx", flush: true, mode: parts.layout.mode });
    await syncFolder(parts.layout.temporary);
    // Other users must not be able to add files or links to this folder.
    await mkdir(staging, 0o700);
    passArtifactPoint("export:begun");
    const done = await stage(join(staging, "files"), parts.pieces, entries, text);
    passArtifactPoint("export:synced");
    await rename(join(staging, "files"), target).catch(refuseExisting(target));
    await syncFolder(folder);
    passArtifactPoint("export:renamed");
    return { path: target, ...done };
  } catch (error) {
    throw explain(error, target);
  } finally {
    if (staging !== null) await rm(staging, { recursive: true, force: true });
    if (record !== null) await rm(record, { force: true });
  }
}

/** A disk syncs several files in the time that it takes for one. */
const AT_ONCE = 16;

/** Writes the files into a new folder, so that no link in it can lead out of it. */
async function stage(
  root: string,
  pieces: Parts["pieces"],
  entries: AsyncIterable<ExportEntry> | Iterable<ExportEntry>,
  manifest: string,
): Promise<{ files: number; bytes: number }> {
  const names = new ExportNames();
  const folders = new Set([root]);
  const checksums: string[] = [];
  let bytes = 0;
  await mkdir(root);
  await eachAtOnce(entries, async (entry, i) => {
    const { path } = entry;
    const parts = names.take(path);
    const hash = "hash" in entry ? entry.hash : digest("sha256", entry.text);
    checksums[i] = checksumLine(hash, path);
    try {
      await makeFolders(root, parts.slice(0, -1), folders);
      const written = await writeNew(join(root, ...parts), "hash" in entry ? pieces(hash) : [Buffer.from(entry.text)]);
      bytes += written;
    } catch (error) {
      throw faultOf(error) === "ENAMETOOLONG" ? invalidPath(path, "is too long for this disk") : error;
    }
    passArtifactPoint("export:copied");
  });
  const files = checksums.length;
  await writeNew(join(root, MANIFEST), [Buffer.from(manifest)]);
  checksums.push(checksumLine(digest("sha256", manifest), MANIFEST));
  await writeNew(join(root, CHECKSUMS), inPieces(checksums));
  await eachAtOnce(folders, (folder) => syncFolder(folder));
  return { files, bytes };
}

/** Calls `write` for several items at once. After an error it waits for the others, so that no write follows the rejection. */
async function eachAtOnce<T>(all: AsyncIterable<T> | Iterable<T>, write: (one: T, i: number) => Promise<void>): Promise<void> {
  const running = new Set<Promise<void>>();
  const failures: unknown[] = [];
  let i = 0;
  try {
    for await (const one of all) {
      const done = write(one, i++)
        .catch((error: unknown) => void failures.push(error))
        .finally(() => running.delete(done));
      running.add(done);
      if (running.size >= AT_ONCE) await Promise.race(running);
      if (failures.length > 0) break;
    }
  } finally {
    await Promise.all(running);
  }
  if (failures.length > 0) throw failures[0];
}

async function makeFolders(root: string, parts: string[], made: Set<string>): Promise<void> {
  let folder = root;
  for (const part of parts) {
    folder = join(folder, part);
    if (made.has(folder)) continue;
    // On a disk that ignores case, the folder may exist in another spelling.
    await mkdir(folder, { recursive: true });
    made.add(folder);
  }
}

function* inPieces(lines: readonly string[]): Generator<Buffer> {
  for (let at = 0; at < lines.length; at += 1_000) yield Buffer.from(lines.slice(at, at + 1_000).join(""));
}

function manifestText(manifest: object): string {
  // Reject values that JSON would change silently.
  toJson(manifest, "The manifest");
  return `${JSON.stringify(manifest, null, 2)}\n`;
}

async function refuseTaken(target: string, name: string): Promise<void> {
  if (name === "" || name.startsWith(STAGING_PREFIX)) {
    throw new HoldfastError(
      "EXPORT_NAME_INVALID",
      `Cannot export to ${target}.`,
      "Give a folder that is not the root or the current one.",
    );
  }
  try {
    await lstat(target);
  } catch (error) {
    if (isAbsent(error)) return;
    throw error;
  }
  throw taken(target);
}

function refuseExisting(target: string): (error: unknown) => never {
  return (error) => {
    throw ["EEXIST", "ENOTEMPTY", "ENOTDIR", "EPERM"].includes(faultOf(error) ?? "") ? taken(target, error) : error;
  };
}

function taken(target: string, cause?: unknown): HoldfastError {
  return new HoldfastError(
    "EXPORT_EXISTS",
    `${target} exists already, and was not changed.`,
    "Export to a new folder, or move the existing one away.",
    { cause },
  );
}

/** Formats a line for `sha256sum -c`, which escapes backslashes and line breaks, and takes `-` for standard input. */
function checksumLine(hash: string, name: string): string {
  const plain = name === "-" ? "./-" : name;
  const escaped = plain.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\r", "\\r");
  return `${escaped === plain ? "" : "\\"}${hash}  ${escaped}\n`;
}
