import { promisify } from "node:util";
import { deflateRaw, inflateRaw } from "node:zlib";
import {
  type ContextParts,
  type Fingerprint,
  type StoredValue,
  type Member,
  type Members,
  NO_VALUE,
  type ValueHash,
  contextHash,
  toMember,
} from "../core/pipelines/context-hash.ts";
import type { Target } from "../core/pipelines/source.ts";
import { type StageDefinition, stageKey } from "../core/pipelines/stage.ts";
import { type CompletedStages, type Segment, type Step, doneMark, findStep } from "../core/pipelines/work.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Store, WorkStore } from "../store/store.ts";
import type { ResultContext, FoundResult, TargetRow, WorkView } from "../store/work.ts";
import type { BuildSettings, Model, StagePosition } from "./model.ts";
import { Batcher, type Reader } from "./values.ts";

const LOOKUP_BATCH_SIZE = 500;

type MakeFile = (id: string, fingerprint: Fingerprint) => Target;

export interface Parent extends LiveTarget {
  readonly completed: CompletedStages;
}

/** Turns rows into targets that stages can process. */
export class LiveTargets {
  readonly #model: Model;
  readonly #store: WorkStore;
  readonly #makeFile: MakeFile;

  constructor(model: Model, store: WorkStore, makeFile: MakeFile) {
    this.#model = model;
    this.#store = store;
    this.#makeFile = makeFile;
  }

  /** `text`: the stored fingerprint. */
  file(id: string, fingerprint: Fingerprint, text = JSON.stringify(fingerprint)): LiveTarget {
    return new LiveFile(id, fingerprint, text, this.#makeFile);
  }

  plain(segment: Segment, id: string, hash: string, value: StoredValue): LiveTarget {
    const target = Object.freeze({ id, hash });
    return { segment: segment.index, path: id, id, parent: null, hash, fingerprint: null, value, inherited: [], target };
  }

  child({ segment, path, id, hash, value }: Child, parent: Parent): LiveTarget {
    const target = Object.freeze({ id, hash, parent: parent.target });
    // Children do not inherit the expand itself.
    const inherited = parent.completed.filter(({ stage }) => !this.#model.isExpand(stage));
    return { segment, path, id, parent: parent.path, hash, fingerprint: null, value, inherited, target };
  }

  async of(row: TargetRow): Promise<Parent> {
    return asParent(await this.#live(row), row.completed);
  }

  async #live(row: TargetRow): Promise<LiveTarget> {
    const segment = this.#model.segments[row.segment] as Segment;
    if (row.parent !== null) {
      const [above] = await this.#store.targets({ pipeline: this.#model.name, segment: row.segment - 1, paths: [row.parent] });
      if (above !== undefined) return this.child(row, await this.of(above));
    }
    if (row.fingerprint !== null) return this.file(row.id, JSON.parse(row.fingerprint) as Fingerprint, row.fingerprint);
    return this.plain(segment, row.id, row.hash, row.value);
  }
}

export function asParent(live: LiveTarget, completed: CompletedStages): Parent {
  const { segment, path, id, parent, hash, fingerprint, value, inherited, target } = live;
  return { segment, path, id, parent, hash, fingerprint, value, inherited, target, completed };
}

/** Creates the target lazily: most files are compared by their fingerprint only. */
class LiveFile implements LiveTarget {
  readonly segment = 0;
  readonly parent = null;
  readonly value = NO_VALUE;
  readonly inherited: CompletedStages = [];
  readonly path: string;
  readonly id: string;
  readonly hash: string;
  readonly fingerprint: string;
  readonly #make: () => Target;
  #target: Target | null = null;

  constructor(id: string, fingerprint: Fingerprint, text: string, make: MakeFile) {
    this.path = id;
    this.id = id;
    this.hash = fingerprint.hash;
    this.fingerprint = text;
    this.#make = () => make(id, fingerprint);
  }

  get target(): Target {
    return (this.#target ??= this.#make());
  }
}

type Child = Pick<TargetRow, "segment" | "path" | "id" | "hash" | "value">;

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

function contextParts({ stage }: StagePosition, live: LiveTarget, completed: CompletedStages, input: unknown): ContextParts {
  return {
    stage: stage.name,
    version: stage.version,
    key: stageKey(stage, { target: live.target, input }),
    input: inputHash(live, completed),
    uses: Object.fromEntries(stage.uses.map((name) => [name, findStep(completed, name)?.output ?? null])),
    target: { id: live.path, hash: live.hash },
    reuse: stage.reuse,
  };
}

export function contextOf(place: StagePosition, live: LiveTarget, completed: CompletedStages, input: unknown): Context {
  const parts = contextParts(place, live, completed, input);
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

interface GatherParts {
  readonly engine: { readonly store: Store };
  readonly model: Model;
  readonly targets: LiveTargets;
  readonly reader: Reader;
  fileOf(target: Target): { dispose(): Promise<void> } | null;
}

interface GatherTask {
  attempt: { readonly signal: AbortSignal };
  view: WorkView;
  place: StagePosition;
  row: TargetRow;
}

const MEMBER_PAGE_SIZE = 200;

/** The members of a gather's group, ordered by path, read page by page. */
export class Inputs implements AsyncIterable<{ target: unknown; output: unknown; outputs: Record<string, unknown> }> {
  readonly #runtime: GatherParts;
  readonly #task: GatherTask;

  constructor(runtime: GatherParts, task: GatherTask) {
    this.#runtime = runtime;
    this.#task = task;
  }

  async *[Symbol.asyncIterator](): AsyncIterator<{ target: unknown; output: unknown; outputs: Record<string, unknown> }> {
    const { place, row, attempt } = this.#task;
    const group = place.stage.by === null ? null : row.id;
    for (let last: TargetRow | undefined; ;) {
      attempt.signal.throwIfAborted();
      const page = await this.#runtime.engine.store.work.targets({
        members: true,
        pipeline: this.#runtime.model.name,
        segment: place.segment.index - 1,
        group,
        limit: MEMBER_PAGE_SIZE,
        ...(last === undefined ? {} : { after: { group, path: last.path } }),
      });
      const members = await Promise.all(page.map((member) => this.#member(member)));
      yield* members;
      for (const { target } of members) await this.#runtime.fileOf(target as Target)?.dispose();
      last = page.at(-1);
      if (last === undefined) return;
    }
  }

  async #member(row: TargetRow): Promise<{ target: unknown; output: unknown; outputs: Record<string, unknown> }> {
    const live = await this.#runtime.targets.of(row);
    const outputs: Record<string, unknown> = {};
    await Promise.all(
      row.completed.map(async ({ stage, result, output }) => {
        outputs[stage] = output === "none" ? undefined : await this.#runtime.reader.output({ result, output });
      }),
    );
    const last = row.completed.length > live.inherited.length ? row.completed.at(-1) : undefined;
    const output = last === undefined ? await loadInput(live, row.completed, this.#runtime.reader) : outputs[last.stage];
    return { target: live.target, output, outputs };
  }
}

const MEMBERS_PAGE = 1_000;

/** A longer list of members is not stored: this many are a megabyte or two in the result's row. */
const MAX_STORED_MEMBERS = 50_000;

/** The gather's members, compressed, for `why`; null: there are too many. */
export async function memberList(runtime: GatherParts, task: GatherTask): Promise<string | null> {
  const members: Member[] = [];
  for await (const member of membersOf(runtime, task)) if (members.push(member) > MAX_STORED_MEMBERS) return null;
  const kept: Members = { failed: task.view.build.failed, members };
  return (await promisify(deflateRaw)(JSON.stringify(kept))).toString("base64");
}

export async function readMembers(list: string): Promise<Members> {
  return JSON.parse((await promisify(inflateRaw)(Buffer.from(list, "base64"))).toString()) as Members;
}

async function* membersOf({ engine, model }: GatherParts, { place, row, attempt }: GatherTask): AsyncIterable<Member> {
  const { index } = place.segment;
  const own = new Set((model.segments[index - 1] as Segment).stages.map(({ name }) => name));
  const group = place.stage.by === null ? null : row.id;
  for (let last: TargetRow | undefined; ;) {
    attempt.signal.throwIfAborted();
    const after = last === undefined ? {} : { after: { group, path: last.path } };
    const page = await engine.store.work.targets({
      members: true,
      pipeline: model.name,
      segment: index - 1,
      group,
      limit: MEMBERS_PAGE,
      ...after,
    });
    for (const { path, completed, value, member } of page) {
      const output = completed.findLast(({ stage }) => own.has(stage))?.output ?? value.hash;
      yield toMember(path, output, member as string);
    }
    last = page.at(-1);
    if (last === undefined) return;
  }
}
