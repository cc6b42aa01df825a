import { toJobError } from "../core/jobs/job.ts";
import {
  type Fingerprint,
  type StoredValue,
  MembersHash,
  needsHash,
  NO_VALUE,
  gatherSegment,
  type Segment,
} from "../core/pipelines/work.ts";
import { type FilesSource, OnlyTargets } from "../core/pipelines/source.ts";
import { compareIds } from "../core/text/ids.ts";
import { SettleAs } from "../engine/attempt.ts";
import type { TargetRow } from "../store/work.ts";
import type { PipelineRuntime } from "./pipeline-runtime.ts";
import { type BuildContext, TARGET_BATCH_SIZE, targetPages } from "./stage-planner.ts";
import { snapshotFile } from "./sources/file-target.ts";
import { type ListedFile, listFiles } from "./sources/files.ts";
import { fingerprintFile } from "./sources/fingerprint-file.ts";
import { type ListedItem, listItems } from "./sources/items.ts";
import type { SkippedFile } from "./sources/root.ts";
import { type Found, pathsOf, type TargetRegister } from "./target-writer.ts";
import type { Values } from "./values.ts";

const READ_AT_ONCE = 16;
const MEMBERS_PER_PAGE = 1_000;

/** A plan reads at most this many bytes of the first files, plus the file that exceeds it. */
const MAX_PLAN_READ_BYTES = 16 * 1024 * 1024;

/** Delay before a released listing can be claimed again, so that this process does not claim it at once. */
const RELIST_DELAY_MS = 200;

/** Where an interrupted listing continues: null for the start, undefined if nothing was written yet. */
type Cursor = string | null | undefined;

interface Listed {
  id: string;
  cursor: string | null;
  size: number;
  find: (row: TargetRow | undefined) => Promise<Found | null>;
}

export interface ScannerParts {
  runtime: PipelineRuntime;
  buildContext: BuildContext;
  register: TargetRegister;
  values: Values;
  signal: AbortSignal;
  /** Whether the process is about to release the build. The next orchestrator continues after the cursor. */
  isLeaving?: () => boolean;
  /** True for a plan, which takes no snapshots. */
  dry?: boolean;
  onSkipped?: (file: SkippedFile) => void;
}

/** Lists a round's targets in batches. After a crash it continues after its cursor, and checks again what came before it. */
export class SourceScanner {
  readonly #parts: ScannerParts;
  readonly #segment: Segment;
  readonly #only: OnlyTargets;
  #listed = 0;

  constructor(parts: ScannerParts) {
    this.#parts = parts;
    const { settings, model } = parts.buildContext;
    this.#segment = model.segments[0] as Segment;
    this.#only = new OnlyTargets(
      settings.only.targets,
      model.definition.stages.map(({ name }) => name),
    );
  }

  async source(cursor: Cursor): Promise<void> {
    const { runtime, register } = this.#parts;
    const isFiles = runtime.model.definition.source.kind === "files";
    // A cursor is written only after every target named by `only` was found.
    if (cursor !== undefined) this.#only.markAllMet();
    // A listing that continues after a cursor sees only later targets; one of items without a cursor sees all.
    const there = !isFiles && cursor === null && this.#only.isAll ? new Set<string>() : null;
    let batch: Listed[] = [];
    for await (const one of this.#list(cursor ?? undefined)) {
      there?.add(one.id);
      if (this.#only.includes(one.id)) batch.push(one);
      if (this.#isFull(batch)) batch = await this.#addAll(batch);
    }
    this.#only.rejectMissing();
    await this.#addAll(batch);
    if (there !== null) await register.goneSince(this.#segment, there);
    if (isFiles && typeof cursor === "string") await this.#listAgain(cursor);
    // With `only`, targets that were not listed still exist, so none is gone.
    if (this.#only.isAll) await register.gone(this.#segment);
  }

  /** Finds the first targets, whose estimates are checked. */
  async first(most: number): Promise<void> {
    const wanted: Listed[] = [];
    let [looked, size] = [0, 0];
    for await (const one of this.#list()) {
      this.refuseLeaving();
      if (this.#only.includes(one.id)) {
        size += one.size;
        wanted.push(one);
      }
      if (wanted.length >= most || size > MAX_PLAN_READ_BYTES || ++looked >= TARGET_BATCH_SIZE) break;
    }
    if (wanted.length > 0) await this.#add(wanted);
  }

  /** Lists one target for each group of members at the end of the segment before. */
  async groups(round: number, failed: number): Promise<void> {
    const { buildContext, runtime, register } = this.#parts;
    const { store, model } = buildContext;
    const segment = gatherSegment(model.segments, round) as Segment;
    const [gather] = segment.stages as [Segment["stages"][number]];
    let group = gather.by === null ? { id: gather.name, members: new MembersHash() } : null;
    let found: Found[] = [];
    const there = new Set<string>();
    const end = (): void => {
      if (group === null) return;
      there.add(group.id);
      found.push(runtime.targets.plain(segment, group.id, group.members.end(failed), NO_VALUE));
    };
    const query = { members: true, pipeline: model.name, segment: segment.index - 1, limit: MEMBERS_PER_PAGE } as const;
    for await (const page of targetPages(store.work, query)) {
      this.refuseLeaving();
      for (const row of page) {
        const id = row.group ?? gather.name;
        if (group?.id !== id) {
          end();
          group = { id, members: new MembersHash() };
        }
        group.members.add(row.path, row.member as string);
      }
      if (found.length >= TARGET_BATCH_SIZE) await register.addTargets(segment, found.splice(0));
    }
    end();
    await register.addTargets(segment, found);
    await register.gone(segment);
    // The build may have listed groups earlier whose members have moved to other groups since.
    await register.goneSince(segment, there);
  }

  async *#list(after?: string): AsyncGenerator<Listed> {
    const { folders, model } = this.#parts.runtime;
    const { source } = model.definition;
    if (source.kind === "items") {
      for await (const item of listItems(source, after))
        yield { id: item.id, cursor: item.cursor, size: 0, find: () => this.#findItem(item) };
      return;
    }
    const { onSkipped = () => {} } = this.#parts;
    for await (const file of listFiles(source, { ...folders, after, onSkipped }))
      yield { id: file.id, cursor: file.id, size: file.stat.size, find: (row) => this.#findFile(source, file, row) };
  }

  /** Lists the files up to the cursor again, because they may have changed or disappeared since. */
  async #listAgain(cursor: string): Promise<void> {
    let after: string | undefined;
    let batch: Listed[] = [];
    const look = async (upTo: string): Promise<void> => {
      const found = await this.#add(batch.splice(0), false);
      if (this.#only.isAll) await this.#parts.register.goneSince(this.#segment, new Set(pathsOf(found)), { after, upTo });
      after = upTo;
    };
    for await (const file of this.#list()) {
      if (compareIds(file.id, cursor) > 0) break;
      if (this.#only.includes(file.id)) batch.push(file);
      if (this.#isFull(batch)) await look(file.id);
    }
    await look(cursor);
  }

  async #addAll(batch: readonly Listed[]): Promise<Listed[]> {
    for (let at = 0; at < batch.length; at += TARGET_BATCH_SIZE) await this.#add(batch.slice(at, at + TARGET_BATCH_SIZE));
    return [];
  }

  async #add(batch: readonly Listed[], movesCursor = true): Promise<Found[]> {
    const { buildContext, register } = this.#parts;
    this.refuseLeaving();
    // Duplicates of one item are equal, so any of them will do.
    const unique = [...new Map(batch.map((one) => [one.id, one])).values()];
    const rows = await buildContext.rows(
      this.#segment,
      unique.map(({ id }) => id),
    );
    const found: Found[] = [];
    for (let at = 0; at < unique.length; at += READ_AT_ONCE) {
      const some = await Promise.all(unique.slice(at, at + READ_AT_ONCE).map(({ id, find }) => find(rows.get(id))));
      found.push(...some.filter((one) => one !== null));
    }
    const last = movesCursor ? batch.at(-1) : undefined;
    await register.addTargets(this.#segment, found, { rows, cursor: last && JSON.stringify(last.cursor) });
    return found;
  }

  async #findFile(source: FilesSource, { id, path, stat }: ListedFile, row: TargetRow | undefined): Promise<Found | null> {
    const { runtime, dry } = this.#parts;
    const { targets } = runtime;
    const { clock } = runtime.engine;
    const before = row?.fingerprint ? (JSON.parse(row.fingerprint) as Fingerprint) : null;
    if (before !== null && !needsHash(before, stat)) return targets.file(id, before, row?.fingerprint ?? undefined);
    if (!source.snapshot || dry) {
      const fingerprint = await fingerprintFile(path, stat, clock);
      return fingerprint === null ? null : targets.file(id, fingerprint);
    }
    const fingerprint = await snapshotFile(await runtime.artifacts(), path, stat, clock);
    if (fingerprint === null) return null;
    const { hash, size } = fingerprint;
    return { ...targets.file(id, fingerprint), artifacts: [{ name: "snapshot", hash, size }] };
  }

  async #findItem({ id, hash, value: text }: ListedItem): Promise<Found> {
    const { values, runtime } = this.#parts;
    // Only the item's version, or its content, counts for reuse.
    const value: StoredValue = { ...(await values.keepText(text)), hash: `item:${hash}` };
    const plain = runtime.targets.plain(this.#segment, id, hash, value);
    return value.artifact === null ? plain : { ...plain, artifacts: [{ name: "value", hash: value.artifact, size: value.size }] };
  }

  /** Whether to write the batch. Nothing is written before all targets in `only` are found: a typing error starts no work. */
  #isFull(batch: readonly unknown[]): boolean {
    if (++this.#listed % TARGET_BATCH_SIZE === 0) this.refuseLeaving();
    return this.#only.isMet && batch.length >= TARGET_BATCH_SIZE;
  }

  /** Throws if this process is about to leave the build, because another process continues the listing. */
  refuseLeaving(): void {
    const { signal, isLeaving } = this.#parts;
    signal.throwIfAborted();
    if (isLeaving?.() !== true) return;
    throw new SettleAs({ kind: "later", delay: RELIST_DELAY_MS, error: toJobError(new Error("the build is left as it is")) });
  }
}
