import { hash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { dirname, relative, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { type Pipeline, type PipelineDefinition, pipelineOf } from "../core/pipelines/pipeline.ts";

/** Of `import … from "./x.ts"`, `export … from "./x.ts"` and `import "./x.ts"`: the address, if it is relative. */
const RELATIVE_IMPORT = /\b(?:import|export)\b(?:[^"'`;()]*?\bfrom)?\s*["'](\.\.?\/[^"']+)["']/g;

const modules = new WeakMap<PipelineDefinition, string>();
const hashed = new Map<string, Promise<string>>();

/** Notes the file that a pipeline was loaded from, for one that does not name its `module`. */
export function loadedFrom(pipeline: Pipeline, file: string): void {
  modules.set(pipelineOf(pipeline), resolve(file));
}

/**
 * The hash of the program that builds a pipeline: of the file of its `module`, else of the file it was loaded from, else of the
 * process's main script; and of all that this file imports statically by a relative path, directly or not. "" if there is
 * no such file, as with `node -e`. A process computes it once: later changes of the files are not what it runs.
 */
export function programHash(definition: PipelineDefinition): Promise<string> {
  const { module } = definition;
  const path = module === null ? (modules.get(definition) ?? process.argv[1]) : fileURLToPath(module);
  if (path === undefined) return Promise.resolve("");
  let known = hashed.get(path);
  if (known === undefined) hashed.set(path, (known = hashFiles(path)));
  return known;
}

async function hashFiles(entry: string): Promise<string> {
  const files = new Map<string, string>();
  const read = async (path: string): Promise<void> => {
    if (files.has(path)) return;
    files.set(path, "");
    // What looks like an import may be a text, and name no file.
    const bytes = await readFile(path).catch(() => null);
    if (bytes === null) return void files.delete(path);
    files.set(path, hash("sha256", bytes));
    const imports = bytes.toString().matchAll(RELATIVE_IMPORT);
    await Promise.all([...imports].map(([, address]) => read(fileURLToPath(new URL(address as string, pathToFileURL(path))))));
  };
  await read(entry);
  if (files.size === 0) return "";
  // The same program has the same hash in another folder.
  const named = [...files].map(([path, content]) => [relative(dirname(entry), path).replaceAll("\\", "/"), content]);
  return hash("sha256", JSON.stringify(named.sort(([a = ""], [b = ""]) => (a < b ? -1 : 1))));
}
