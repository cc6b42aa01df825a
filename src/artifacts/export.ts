import { hash as digest } from "node:crypto";
import { type FileHandle, lstat, mkdir, open, rename, rm, writeFile } from "node:fs/promises";
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

/**
 * Writes everything into a temporary folder beside the target and renames it once: other processes see a complete export or none.
 * A record in the artifacts' folder names the temporary folder, so that it is removed if this process dies.
 */
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
    // Other users must not be able to add files or links to it.
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

async function stage(
  root: string,
  pieces: Parts["pieces"],
  entries: AsyncIterable<ExportEntry> | Iterable<ExportEntry>,
  manifest: string,
): Promise<{ files: number; bytes: number }> {
  await using staging = await Staging.make(root, pieces);
  for await (const entry of entries) await staging.add(entry);
  return await staging.finish(manifest);
}

/** A new folder: no link in it can lead out of it. */
class Staging implements AsyncDisposable {
  readonly #root: string;
  readonly #pieces: Parts["pieces"];
  readonly #names = new ExportNames();
  readonly #folders = new Set<string>();
  readonly #checksums: FileHandle;
  #lines: string[] = [];
  #files = 0;
  #bytes = 0;

  private constructor(root: string, pieces: Parts["pieces"], checksums: FileHandle) {
    this.#root = root;
    this.#pieces = pieces;
    this.#checksums = checksums;
    this.#folders.add(root);
  }

  static async make(root: string, pieces: Parts["pieces"]): Promise<Staging> {
    await mkdir(root);
    return new Staging(root, pieces, await open(join(root, CHECKSUMS), "wx"));
  }

  async add(entry: ExportEntry): Promise<void> {
    const { path } = entry;
    const parts = this.#names.take(path);
    const hash = "hash" in entry ? entry.hash : digest("sha256", entry.text);
    const pieces = "hash" in entry ? this.#pieces(hash) : [Buffer.from(entry.text)];
    try {
      await this.#makeFolders(parts.slice(0, -1));
      this.#bytes += await writeNew(join(this.#root, ...parts), pieces);
    } catch (error) {
      throw faultOf(error) === "ENAMETOOLONG" ? invalidPath(path, "is too long for this disk") : error;
    }
    this.#files++;
    await this.#note(hash, path);
    passArtifactPoint("export:copied");
  }

  async finish(manifest: string): Promise<{ files: number; bytes: number }> {
    await writeNew(join(this.#root, MANIFEST), [Buffer.from(manifest)]);
    await this.#note(digest("sha256", manifest), MANIFEST);
    await this.#flush();
    await this.#checksums.sync();
    for (const folder of this.#folders) await syncFolder(folder);
    return { files: this.#files, bytes: this.#bytes };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#checksums.close();
  }

  async #makeFolders(parts: string[]): Promise<void> {
    let folder = this.#root;
    for (const part of parts) {
      folder = join(folder, part);
      if (this.#folders.has(folder)) continue;
      // On a disk without case it may exist in another spelling.
      await mkdir(folder, { recursive: true });
      this.#folders.add(folder);
    }
  }

  async #note(hash: string, path: string): Promise<void> {
    this.#lines.push(checksumLine(hash, path));
    if (this.#lines.length >= 1_000) await this.#flush();
  }

  async #flush(): Promise<void> {
    const lines = this.#lines.splice(0);
    if (lines.length > 0) await this.#checksums.writeFile(lines.join(""));
  }
}

function manifestText(manifest: object): string {
  // JSON would change some values silently.
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

/** A line for `sha256sum -c`: a name with a backslash or a line break is escaped, and `-` alone would be standard input. */
function checksumLine(hash: string, name: string): string {
  const plain = name === "-" ? "./-" : name;
  const escaped = plain.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\r", "\\r");
  return `${escaped === plain ? "" : "\\"}${hash}  ${escaped}\n`;
}
