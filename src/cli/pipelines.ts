import { existsSync } from "node:fs";
import type { Command } from "commander";
import { HoldfastError } from "../core/errors.ts";
import { isPipeline, type Pipeline, pipelineOf } from "../core/pipeline.ts";
import { loadedFrom } from "../runtime/builds/program.ts";
import { configOf, modulesOf } from "./config.ts";
import { load } from "./modules.ts";

/** A pipeline, and the file that exports it. */
export interface FoundPipeline {
  pipeline: Pipeline;
  file: string;
}

/** A file's default export, or, by its name, one that the config's modules export. */
export async function findPipeline(given: string, command: Command): Promise<FoundPipeline> {
  if (existsSync(given) || isPath(given)) return { pipeline: await defaultOf(given), file: given };
  const config = configOf(command);
  if (config === null) {
    const file = [".ts", ".js", ".mts", ".mjs"].map((ending) => given + ending).find((name) => existsSync(name));
    throw new HoldfastError(
      "USAGE",
      `There is no file ${given}, and no config here that could know a pipeline of that name.`,
      file === undefined
        ? "Give the path of a module whose default export is a pipeline, or list it in holdfast.config.ts."
        : `Did you mean ${file}? Give the path of the module.`,
    );
  }
  return pipelineNamed(given, modulesOf(config), config.file);
}

/** What these modules export under this name; `whose` they are, for the error. */
export async function pipelineNamed(name: string, files: readonly string[], whose: string): Promise<FoundPipeline> {
  const all = await pipelinesIn(files);
  const found = all.find(({ pipeline }) => pipeline.name === name);
  if (found !== undefined) return found;
  const names = all.map(({ pipeline }) => pipeline.name).join(", ");
  throw new HoldfastError(
    "USAGE",
    `No module of ${whose} exports a pipeline "${name}".`,
    names === "" ? "There is none at all: export what pipeline(name).source(…) answers." : `There is ${names}.`,
  );
}

/** Every pipeline that these modules export, one for each name: the default export before others, the longest of those. */
export async function pipelinesIn(files: readonly string[]): Promise<FoundPipeline[]> {
  const found = new Map<string, FoundPipeline & { rank: number }>();
  for (const file of files) {
    const exported = await load(file);
    for (const [key, value] of Object.entries(exported).flatMap(([key, value]) => [value].flat().map((one) => [key, one]))) {
      if (!isPipeline(value)) continue;
      // The beginnings of a pipeline are pipelines, too.
      const rank = key === "default" ? Number.POSITIVE_INFINITY : pipelineOf(value).stages.length;
      const known = found.get(value.name);
      if (known === undefined || rank > known.rank) found.set(value.name, { pipeline: value, file, rank });
    }
  }
  for (const { pipeline, file } of found.values()) loadedFrom(pipeline, file);
  return [...found.values()].map(({ pipeline, file }) => ({ pipeline, file }));
}

async function defaultOf(file: string): Promise<Pipeline> {
  const { default: given, ...others } = await load(file);
  if (isPipeline(given)) {
    loadedFrom(given, file);
    return given;
  }
  const named = Object.entries(others).filter(([, value]) => isPipeline(value));
  const what = given === undefined ? "has no default export" : "has a default export that is no pipeline";
  throw new HoldfastError(
    "MODULE_INVALID",
    `${file} ${what}.`,
    named.length === 0 ? "Write export default pipeline(name).source(…).stage(…)." : `Write export default ${named[0]?.[0]}.`,
  );
}

function isPath(given: string): boolean {
  return /[/\\]|\.[cm]?[jt]s$/.test(given);
}
