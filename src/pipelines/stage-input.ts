import {
  type ContextParts,
  type Fingerprint,
  type StoredValue,
  NO_VALUE,
  type ValueHash,
  contextHash,
} from "../core/pipelines/context-hash.ts";
import type { Target } from "../core/pipelines/source.ts";
import { type StageDefinition, stageKey } from "../core/pipelines/stage.ts";
import { type CompletedStages, type Segment, type Step, doneMark, findStep } from "../core/pipelines/work.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Store, WorkStore } from "../store/store.ts";
import type { ResultContext, FoundResult, MemberPage, TargetPage, TargetRow } from "../store/work.ts";
import type { BuildSettings, Model, StagePosition } from "./model.ts";
import { Batcher, type Reader } from "./values.ts";

const LOOKUP_BATCH_SIZE = 500;
/** Targets that are read or written at once. */
export const TARGET_BATCH_SIZE = 500;

export interface LiveTarget {
  readonly segment: number;
  readonly path: string;
  readonly id: string;
  readonly parent: string | null;
  readonly hash: string;
  readonly fingerprint: string | null;
  /** Input of the first stage. */
  readonly value: StoredValue;
  /** The stages that its parents completed. */
  readonly inherited: CompletedStages;
  /** What the pipeline's functions receive. */
  readonly target: Target;
}

export interface Parent extends LiveTarget {
  readonly completed: CompletedStages;
}

/** Turns rows into targets that stages can process. */
export class LiveTargets {
  readonly #model: Model;
  readonly #store: WorkStore;
  readonly #claimFile: (id: string, fingerprint: Fingerprint) => Target;

  constructor(model: Model, store: WorkStore, claimFile: (id: string, fingerprint: Fingerprint) => Target) {
    this.#model = model;
    this.#store = store;
    this.#claimFile = claimFile;
  }

  /** `text`: the stored fingerprint. */
  file(id: string, fingerprint: Fingerprint, text = JSON.stringify(fingerprint)): LiveTarget {
    const { hash } = fingerprint;
    const target = this.#claimFile(id, fingerprint);
    return { segment: 0, path: id, id, parent: null, hash, fingerprint: text, value: NO_VALUE, inherited: [], target };
  }

  plain({ index }: Segment, id: string, hash: string, value: StoredValue): LiveTarget {
    const target = Object.freeze({ id, hash });
    return { segment: index, path: id, id, parent: null, hash, fingerprint: null, value, inherited: [], target };
  }

  child(
    { segment, path, id, hash, value }: Pick<TargetRow, "segment" | "path" | "id" | "hash" | "value">,
    parent: Parent,
  ): LiveTarget {
    const target = Object.freeze({ id, hash, parent: parent.target });
    // Children do not inherit the expand itself.
    const inherited = parent.completed.filter(({ stage }) => !this.#model.isExpand(stage));
    return { segment, path, id, parent: parent.path, hash, fingerprint: null, value, inherited, target };
  }

  async of(row: TargetRow): Promise<Parent> {
    return { ...(await this.#live(row)), completed: row.completed };
  }

  async #live(row: TargetRow): Promise<LiveTarget> {
    if (row.parent !== null) {
      const [above] = await this.#store.targets({ pipeline: this.#model.name, segment: row.segment - 1, paths: [row.parent] });
      if (above !== undefined) return this.child(row, await this.of(above));
    }
    if (row.fingerprint !== null) return this.file(row.id, JSON.parse(row.fingerprint) as Fingerprint, row.fingerprint);
    return this.plain(this.#model.segments[row.segment] as Segment, row.id, row.hash, row.value);
  }
}

/** All targets of a query, page by page. */
export async function* targetPages(store: WorkStore, query: TargetPage | MemberPage): AsyncGenerator<TargetRow[]> {
  for (let page = query; ;) {
    const rows = await store.targets(page);
    const last = rows.at(-1);
    if (last === undefined) return;
    yield rows;
    page = "members" in page ? { ...page, after: { group: last.group, path: last.path } } : { ...page, after: last.path };
  }
}

/** A stage's input, and the hash that decides whether a result can be reused. */
export interface Context {
  hash: string;
  parts: ContextParts;
  input: unknown;
}

/** The last output of this segment, else the value that the target came with. */
export function inputHash({ value, inherited }: LiveTarget, completed: CompletedStages): ValueHash {
  return lastStep(completed, inherited)?.output ?? value.hash;
}

export async function loadInput(live: LiveTarget, completed: CompletedStages, reader: Reader): Promise<unknown> {
  const step = lastStep(completed, live.inherited);
  if (step === undefined) return reader.value(live.value);
  return step.output === "none" ? undefined : reader.output(step);
}

export function contextOf({ stage }: StagePosition, live: LiveTarget, completed: CompletedStages, input: unknown): Context {
  const parts: ContextParts = {
    stage: stage.name,
    version: stage.version,
    key: stageKey(stage, { target: live.target, input }),
    input: inputHash(live, completed),
    uses: Object.fromEntries(stage.uses.map((name) => [name, findStep(completed, name)?.output ?? null])),
    target: { id: live.path, hash: live.hash },
    reuse: stage.reuse,
  };
  return { parts, hash: contextHash(parts), input };
}

function lastStep(completed: CompletedStages, inherited: CompletedStages): Step | undefined {
  return completed.length > inherited.length ? completed.at(-1) : undefined;
}

/** A build as its workers see it. */
export class BuildContext {
  readonly store: Store;
  readonly model: Model;
  readonly build: Pick<BuildRow, "key" | "id" | "budget">;
  readonly settings: BuildSettings;
  readonly #last: number;
  readonly #rerun: ReadonlySet<string>;
  readonly #found: Batcher<ResultContext, FoundResult | null>;
  readonly #marks = new Map<number, string | null>();

  constructor(store: Store, model: Model, build: BuildRow) {
    this.store = store;
    this.model = model;
    this.build = build;
    this.settings = JSON.parse(build.options) as BuildSettings;
    const { stages } = this.settings.only;
    this.#last = stages.length === 0 ? Number.POSITIVE_INFINITY : Math.max(...stages.map((name) => model.place(name).position));
    this.#rerun = new Set(this.settings.rerun);
    this.#found = new Batcher(LOOKUP_BATCH_SIZE, (keys) => store.work.lookUp(model.name, keys));
  }

  /**
   * The newest success for this context; of a stage that is rerun, only this build's own. A stage with `remove` acts outside
   * for each target, so the success of a copy of the file does not count for this target.
   */
  lookUp({ name: stage, reuse, remove }: StageDefinition, hash: string, path: string): Promise<FoundResult | null> {
    const context = reuse === "bytes" && remove === null ? { stage, hash } : { stage, hash, path };
    return this.#found.get(this.reruns(stage) ? { ...context, build: this.build.key } : context);
  }

  /** The stored targets with these paths. */
  async rows({ index }: Segment, paths: readonly string[]): Promise<Map<string, TargetRow>> {
    const rows = await this.store.work.targets({ pipeline: this.model.name, segment: index, paths });
    return new Map(rows.map((row) => [row.path, row]));
  }

  pages({ index }: Segment, which: Pick<TargetPage, "parent" | "unseen" | "after">): AsyncIterable<TargetRow[]> {
    return targetPages(this.store.work, { ...which, pipeline: this.model.name, segment: index, limit: TARGET_BATCH_SIZE });
  }

  /** Cached for targets that inherit nothing, which are nearly all. */
  doneMark(segment: Segment, inherited: CompletedStages): string | null {
    if (inherited.length > 0) return doneMark(segment, inherited);
    let mark = this.#marks.get(segment.index);
    if (mark === undefined) this.#marks.set(segment.index, (mark = doneMark(segment, inherited)));
    return mark;
  }

  get isWhole(): boolean {
    return this.#last === Number.POSITIVE_INFINITY;
  }

  includes({ position }: StagePosition): boolean {
    return position <= this.#last;
  }

  reruns(stage: string): boolean {
    return this.#rerun.has(stage);
  }
}
