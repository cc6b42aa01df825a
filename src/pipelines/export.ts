import { hash as digest } from "node:crypto";
import type { Artifacts } from "../artifacts/artifacts.ts";
import { ExportNames, LONGEST, LONGEST_APART, namesFor, safePath } from "../artifacts/export-names.ts";
import type { ExportEntry } from "../artifacts/export.ts";
import { toCost } from "../core/pipelines/cost.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { ResultKey } from "../core/text/ids.ts";
import type { PipelineDescription } from "../core/pipelines/pipeline.ts";
import { idsOf, sayPath } from "../core/pipelines/work.ts";
import { viewBuild } from "./outputs.ts";
import { isChildList } from "./values.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Store } from "../store/store.ts";
import { OUTPUT, type NamedArtifact, type StoredResult } from "../store/work.ts";

const PAGE = 200;

/** What is written of one result into the manifest. */
interface Exported {
  stage: string;
  target: string;
  /** Of the target, behind those of its parents. */
  ids: string[];
  build: string;
  hash: string;
  cost: { usd: number; tokens: number };
  files: { path: string; name: string; hash: string; size: number }[];
}

/** A result that is to be exported, without what it may have in its row. */
interface Found extends ToPlace {
  key: ResultKey;
  result: Omit<Exported, "files">;
  /** `kept`: in the artifact store; else in the row. */
  output: { hash: string; size: number; kept: boolean } | null;
  artifacts: NamedArtifact[];
}

/** A file, and where its bytes are: in an artifact, or in the row of this result. */
type File = { path: string } & ({ hash: string } | { result: ResultKey });

/**
 * All that the stages of a build have made, as files in a folder: an output as `<stage>/<target>.json`, or `.bin` where it is
 * bytes, and an artifact under its own name as `<stage>/<target>/<name>`. Nothing is stored for it anywhere else.
 */
export async function exportBuild(
  parts: { store: Store; artifacts: Artifacts },
  build: BuildRow,
  dir: string,
  stages: readonly string[] | undefined,
): Promise<string> {
  const known = stagesOf(build);
  const chosen = chosenStages(build, known, stages);
  const places = new ExportPlaces(known);
  const files: File[] = [];
  const results: Exported[] = [];
  for (const stage of chosen) {
    const found: Found[] = [];
    for await (const result of resultsOf(parts.store, build, stage)) found.push(await foundOf(parts.store, result));
    const placed = places.stage(stage, found);
    for (const one of found) {
      const place = placed.get(one) as Placed;
      results.push({ ...one.result, files: writtenOf(one, place) });
      files.push(...filesOf(one, place));
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
  // What an expand has yielded are targets, whose outputs are exported.
  const isNone = output.hash === "none" || isChildList(output);
  const kept = output.artifact !== null;
  const text = output.text ?? "";
  return {
    key,
    path,
    ending: isNone ? null : output.hash.startsWith("bytes:") ? ".bin" : ".json",
    names: artifacts.map(({ name }) => name),
    result: { stage, target: sayPath(path), ids: idsOf(path), build, hash, cost: toCost(cost) },
    output: isNone ? null : { hash: output.artifact ?? digest("sha256", text), size: output.size, kept },
    artifacts,
  };
}

function writtenOf({ output, artifacts }: Found, place: Placed): Exported["files"] {
  const files: Exported["files"] = [];
  if (output !== null && place.output !== null)
    files.push({ path: place.output, name: "", hash: output.hash, size: output.size });
  for (const [i, { name, hash, size }] of artifacts.entries())
    files.push({ path: place.artifacts[i] as string, name, hash, size });
  return files;
}

function filesOf({ key, output, artifacts }: Found, place: Placed): File[] {
  const files: File[] = artifacts.map(({ hash }, i) => ({ path: place.artifacts[i] as string, hash }));
  if (output === null || place.output === null) return files;
  return [output.kept ? { path: place.output, hash: output.hash } : { path: place.output, result: key }, ...files];
}

/** What is in rows is read again, a page at a time: of all results together it may be much. */
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

async function* resultsOf(store: Store, build: BuildRow, stage: string): AsyncIterable<StoredResult> {
  for (let after: string | undefined; ;) {
    const page = await store.work.results({ build: build.id, stage, limit: PAGE, ...(after === undefined ? {} : { after }) });
    yield* page;
    after = page.at(-1)?.path;
    if (after === undefined) return;
  }
}

function stagesOf({ description }: BuildRow): string[] {
  return (JSON.parse(description) as PipelineDescription).stages.map(({ name }) => name);
}

function chosenStages(build: BuildRow, known: readonly string[], stages: readonly string[] | undefined): string[] {
  for (const stage of stages ?? []) {
    if (known.includes(stage)) continue;
    throw new HoldfastError("STAGE_UNKNOWN", `Build ${build.id} has no stage "${stage}".`, `Its stages are ${known.join(", ")}.`);
  }
  return known.filter((name) => stages === undefined || stages.includes(name));
}

/** Another result has taken its place since. */
function lost({ id }: BuildRow): never {
  throw new HoldfastError(
    "EXPORT_OUTDATED",
    `Build ${id} progressed during the export, so nothing was exported.`,
    "Export again when the build has ended.",
  );
}

/** What one result has to be written: its output as a file that ends so, and artifacts of these names. */
export interface ToPlace {
  /** Of its target. */
  path: string;
  /** ".json" or ".bin"; null: it has none. */
  ending: string | null;
  names: readonly string[];
}

/** Where that is written: the output's path, and those of the artifacts, in the order of their names. */
interface Placed {
  output: string | null;
  artifacts: string[];
}

/**
 * Where the files of an export are. A target whose id is a plain path is at that path; any other, and of two that would be
 * at one place the later in the order of ids, is at a place with a hash of its id in its name. What is plain is placed
 * first, so that no other takes its name. All of it depends on nothing but the ids, the names, and the pipeline's stages.
 */
export class ExportPlaces {
  readonly #files = new ExportNames();
  readonly #folders = new Map<string, string>();

  /** All stages of the pipeline: also those that are not exported have their folders. */
  constructor(stages: readonly string[]) {
    const taken = new ExportNames();
    for (const stage of plainFirst(stages, (name) => name)) {
      this.#folders.set(
        stage,
        choose(stage, stage, (name) => taken.takeAll([name])),
      );
    }
  }

  /** All results of a stage, in the order of their targets' paths. */
  stage<T extends ToPlace>(stage: string, results: readonly T[]): Map<T, Placed> {
    const folder = this.#folders.get(stage) ?? stage;
    const placed = new Map<T, Placed>();
    for (const one of plainFirst(results, ({ path }) => sayPath(path))) placed.set(one, this.#place(folder, one));
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
    return at(choose(sayPath(path), path, (place) => this.#files.takeAll(filesAt(place))));
  }
}

/** Of a target's artifacts, in their order, in the folder that is theirs. */
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
