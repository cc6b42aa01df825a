import { hash as digest } from "node:crypto";
import type { Artifacts } from "../artifacts/artifacts.ts";
import { ExportNames, LONGEST, LONGEST_APART, namesFor, safePath } from "../artifacts/export-names.ts";
import type { ExportEntry } from "../artifacts/export.ts";
import { toCost } from "../core/pipelines/budget.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import { idsOf, pathText } from "../core/pipelines/work.ts";
import { described, resultPages, unknownStage, viewBuild } from "./outputs.ts";
import { isChildList } from "./values.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Store } from "../store/store.ts";
import { OUTPUT, type StoredResult } from "../store/work.ts";

const PAGE = 200;

interface Exported {
  stage: string;
  target: string;
  ids: string[];
  build: string;
  hash: string;
  cost: { usd: number; tokens: number };
  files: { path: string; name: string; hash: string; size: number }[];
}

/** A file of a result. Its bytes come from an artifact, or from the result's row. */
interface ResultFile {
  name: string;
  hash: string;
  size: number;
  from: { hash: string } | { result: ResultKey };
}

interface Found extends ToPlace {
  result: Omit<Exported, "files">;
  files: ResultFile[];
}

type File = { path: string } & ResultFile["from"];

/** Exports outputs as `<stage>/<target>.json`, or `.bin` for bytes, and artifacts as `<stage>/<target>/<name>`. */
export async function exportBuild(
  parts: { store: Store; artifacts: Artifacts },
  build: BuildRow,
  dir: string,
  stages: readonly string[] | undefined,
): Promise<string> {
  const known = described(build).stages.map(({ name }) => name);
  const unknown = stages?.find((stage) => !known.includes(stage));
  if (unknown !== undefined) throw unknownStage(build, unknown);
  const chosen = known.filter((name) => stages === undefined || stages.includes(name));
  const places = new ExportPlaces(known);
  const files: File[] = [];
  const results: Exported[] = [];
  for (const stage of chosen) {
    const found: Found[] = [];
    for await (const page of resultPages(parts.store.work, build.id, stage)) {
      found.push(...(await Promise.all(page.map((result) => foundOf(parts.store, result)))));
    }
    const placed = places.stage(stage, found);
    for (const one of found) {
      const { output, artifacts } = placed.get(one) as Placed;
      const paths = output === null ? artifacts : [output, ...artifacts];
      const written = one.files.map(({ name, hash, size }, i) => ({ path: paths[i] as string, name, hash, size }));
      results.push({ ...one.result, files: written });
      files.push(...one.files.map(({ from }, i) => Object.assign({ path: paths[i] as string }, from)));
    }
  }
  const { token: _, ...view } = await viewBuild(parts.store, build);
  const entries = entriesOf(parts.store, build, files);
  const { path } = await parts.artifacts.exportTo(dir, entries, { build: view, stages: chosen, targets: results });
  return path;
}

async function foundOf(store: Store, result: StoredResult): Promise<Found> {
  const { key, stage, path, build, hash, cost, output } = result;
  const artifacts = (await store.work.artifacts(result)).filter(({ name }) => name !== OUTPUT);
  const files = artifacts.map(({ name, hash, size }): ResultFile => ({ name, hash, size, from: { hash } }));
  const { artifact, size } = output;
  // The children of an expand are targets, and their outputs are exported.
  const isNone = output.hash === "none" || isChildList(output);
  if (artifact !== null && !isNone) files.unshift({ name: "", hash: artifact, size, from: { hash: artifact } });
  else if (!isNone) files.unshift({ name: "", hash: digest("sha256", output.text ?? ""), size, from: { result: key } });
  return {
    path,
    ending: isNone ? null : output.hash.startsWith("bytes:") ? ".bin" : ".json",
    names: artifacts.map(({ name }) => name),
    result: { stage, target: pathText(path), ids: idsOf(path), build, hash, cost: toCost(cost) },
    files,
  };
}

/** Reads values from rows again, page by page, because all of them together may not fit in memory. */
async function* entriesOf(store: Store, build: BuildRow, files: readonly File[]): AsyncIterable<ExportEntry> {
  for (let at = 0; at < files.length; at += PAGE) {
    const page = files.slice(at, at + PAGE);
    const keys = page.flatMap((file) => ("result" in file ? [file.result] : []));
    const results = keys.length === 0 ? [] : await store.work.results({ keys: keys });
    const texts = new Map(results.map(({ key, output }) => [key, output.text]));
    for (const file of page) {
      if ("hash" in file) yield file;
      else yield { path: file.path, text: texts.get(file.result) ?? lost(build) };
    }
  }
}

function lost({ id }: BuildRow): never {
  throw new HoldfastError(
    "EXPORT_OUTDATED",
    `Build ${id} progressed during the export, so nothing was exported.`,
    "Export again when the build has ended.",
  );
}

export interface ToPlace {
  path: string;
  ending: string | null;
  names: readonly string[];
}

interface Placed {
  output: string | null;
  artifacts: string[];
}

/** Chooses paths by ids, names and stages alone. Plain ids are placed first, at their path; others and collisions get a hash. */
export class ExportPlaces {
  readonly #files = new ExportNames();
  readonly #folders = new Map<string, string>();

  /** Stages that are not exported reserve their folders, too, so that a stage has the same folder in every export. */
  constructor(stages: readonly string[]) {
    const taken = new ExportNames();
    for (const stage of plainFirst(stages, (name) => name)) {
      this.#folders.set(
        stage,
        choose(stage, stage, (name) => taken.takeAll([name])),
      );
    }
  }

  stage<T extends ToPlace>(stage: string, results: readonly T[]): Map<T, Placed> {
    const folder = this.#folders.get(stage) ?? stage;
    const placed = new Map<T, Placed>();
    for (const one of plainFirst(results, ({ path }) => pathText(path))) placed.set(one, this.#place(folder, one));
    return placed;
  }

  #place(folder: string, { path, ending, names }: ToPlace): Placed {
    const own = namesWithin(names, LONGEST - Buffer.byteLength(folder) - LONGEST_APART - 2);
    const at = (place: string): Placed => ({
      output: ending === null ? null : `${folder}/${place}${ending}`,
      artifacts: own.map((name) => `${folder}/${place}/${name}`),
    });
    const filesAt = (place: string): string[] => {
      const { output, artifacts } = at(place);
      return output === null ? artifacts : [output, ...artifacts];
    };
    return at(choose(pathText(path), path, (place) => this.#files.takeAll(filesAt(place))));
  }
}

function namesWithin(names: readonly string[], longest: number): string[] {
  const taken = new ExportNames();
  const chosen = new Map<string, string>();
  for (const name of plainFirst(names, (one) => one)) {
    const fits = (one: string) => Buffer.byteLength(one) <= longest && taken.takeAll([`-/${one}`]);
    chosen.set(name, choose(name, name, fits));
  }
  return names.map((name) => chosen.get(name) as string);
}

function choose(text: string, identity: string, take: (name: string) => boolean): string {
  for (const name of namesFor(text, identity)) if (take(name)) return name;
  throw new Error(`no name for ${JSON.stringify(text)}`);
}

function plainFirst<T>(all: readonly T[], textOf: (one: T) => string): T[] {
  const isPlain = (one: T) => safePath(textOf(one)) === textOf(one);
  return [...all.filter(isPlain), ...all.filter((one) => !isPlain(one))];
}
