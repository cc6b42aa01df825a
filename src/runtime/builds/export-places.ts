import { ExportNames, LONGEST, LONGEST_APART, namesFor, safePath } from "../../artifacts/export-names.ts";
import { sayPath } from "../../core/target-id.ts";

/** What one result has to be written: its output as a file that ends so, and artifacts of these names. */
export interface ToPlace {
  /** Of its target. */
  path: string;
  /** ".json" or ".bin"; null: it has none. */
  ending: string | null;
  names: readonly string[];
}

/** Where that is written: the output's path, and those of the artifacts, in the order of their names. */
export interface Placed {
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
