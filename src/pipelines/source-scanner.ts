import type { Artifacts } from "../artifacts/artifacts.ts";
import { toJobError } from "../core/jobs/job.ts";
import { type Fingerprint, type StoredValue, MembersHash, needsHash, NO_VALUE } from "../core/pipelines/context-hash.ts";
import { type FilesSource, type ItemsSource, OnlyTargets } from "../core/pipelines/source.ts";
import { checkTargetId, gatherSegment, type Segment } from "../core/pipelines/work.ts";
import type { Clock } from "../core/text/duration.ts";
import { compareIds } from "../core/text/ids.ts";
import { SettleAs } from "../engine/attempt.ts";
import type { TargetRow } from "../store/work.ts";
import type { BuildContext, LiveTargets } from "./stage-input.ts";
import { snapshotFile } from "./sources/file-target.ts";
import { type ListedFile, listFiles } from "./sources/files.ts";
import { fingerprintFile } from "./sources/fingerprint-file.ts";
import { type ListedItem, listItems } from "./sources/items.ts";
import type { SkippedFile } from "./sources/root.ts";
import { TARGET_BATCH_SIZE, type Found, type TargetRegister } from "./target-writer.ts";
import type { Values } from "./values.ts";

const READ_AT_ONCE = 16;

/** A plan reads at most this many bytes of the first files, plus the file that exceeds it. */
const MAX_PLAN_READ_BYTES = 16 * 1024 * 1024;

/** Delay before a released listing can be claimed again, so that this process does not claim it at once. */
const RELIST_DELAY_MS = 200;

/** Where an interrupted listing continues; null: at the start. Undefined: nothing was written yet. */
type Cursor = string | null | undefined;

type ListedItems = { found: Found; cursor: string | null }[];

export interface Folders {
  cwd: string;
  skip: readonly string[];
}

export interface ListerParts {
  buildContext: BuildContext;
  register: TargetRegister;
  targets: LiveTargets;
  values: Values;
  clock: Clock;
  artifacts: () => Promise<Artifacts>;
  folders: Folders;
  signal: AbortSignal;
  /** The process is about to release the build, and the next orchestrator continues after the cursor. */
  isLeaving?: () => boolean;
  /** A plan: takes no snapshots. */
  dry?: boolean;
  /** Called for each file that is skipped because it is an open database. */
  onSkipped?: (file: SkippedFile) => void;
}

/**
 * Lists the targets of a round: those of the source, or the groups of a gather. It commits in batches and continues after
 * its cursor after a crash; it then checks the earlier targets again, because they may have changed or be gone.
 */
export class SourceScanner {
  readonly #parts: ListerParts;
  readonly #only: OnlyTargets;
  #listed = 0;

  constructor(parts: ListerParts) {
    this.#parts = parts;
    const { settings, model } = parts.buildContext;
    this.#only = new OnlyTargets(
      settings.only.targets,
      model.definition.stages.map(({ name }) => name),
    );
  }

  async source(cursor: Cursor): Promise<void> {
    const { buildContext, register } = this.#parts;
    const { source } = buildContext.model.definition;
    const segment = buildContext.model.segments[0] as Segment;
    // A cursor is written only after every target named by `only` was found.
    if (cursor !== undefined) this.#only.markAllMet();
    if (source.kind === "files") {
      await this.#files(source, segment, cursor ?? undefined);
      if (typeof cursor === "string") await this.#filesAgain(source, segment, cursor);
    } else {
      await this.#items(source, segment, cursor);
    }
    // Targets outside of `only` still exist.
    if (this.#only.isAll) await register.gone(segment);
  }

  async first(most: number): Promise<void> {
    const { buildContext, folders } = this.#parts;
    const { source } = buildContext.model.definition;
    const segment = buildContext.model.segments[0] as Segment;
    if (source.kind === "files") {
      const wanted: ListedFile[] = [];
      let size = 0;
      for await (const file of this.#some(listFiles(source, folders))) {
        size += file.stat.size;
        if (wanted.push(file) >= most || size > MAX_PLAN_READ_BYTES) break;
      }
      if (wanted.length > 0) await this.#someFiles(source, segment, wanted);
    } else {
      const wanted: ListedItems = [];
      for await (const item of this.#some(listItems(source)))
        if (wanted.push({ found: await this.#item(segment, item), cursor: null }) >= most) break;
      if (wanted.length > 0) await this.#someItems(segment, wanted);
    }
  }

  async *#some<T extends { id: string }>(listed: AsyncIterable<T>): AsyncIterable<T> {
    let looked = 0;
    for await (const one of listed) {
      this.refuseLeaving();
      if (this.#only.includes(one.id)) yield one;
      if (++looked >= TARGET_BATCH_SIZE) return;
    }
  }

  /** Lists one target for each group of members at the end of the segment before. */
  async groups(round: number, failed: number): Promise<void> {
    const { buildContext, register } = this.#parts;
    const segment = gatherSegment(buildContext.model.segments, round) as Segment;
    const [gather] = segment.stages as [Segment["stages"][number]];
    let group: { id: string; members: MembersHash } | null = gather.by === null ? this.#group(gather.name) : null;
    let found: Found[] = [];
    const there = new Set<string>();
    const end = (): void => {
      if (group === null) return;
      there.add(group.id);
      found.push(this.#parts.targets.plain(segment, group.id, group.members.end(failed), NO_VALUE));
    };
    for await (const row of this.#members(segment.index - 1)) {
      const id = row.group ?? gather.name;
      if (group?.id !== id) {
        end();
        group = this.#group(id);
      }
      group.members.add(row.path, row.member as string);
      if (found.length >= TARGET_BATCH_SIZE) found = await this.#groupsListed(segment, found);
    }
    end();
    await this.#groupsListed(segment, found);
    await register.gone(segment);
    // The build may have listed groups earlier whose members have moved to other groups.
    await register.goneSince(segment, there);
  }

  async #groupsListed(segment: Segment, found: Found[]): Promise<Found[]> {
    const { register } = this.#parts;
    const rows = await register.rows(
      segment,
      found.map(({ path }) => path),
    );
    await register.addTargets(segment, found, rows);
    return [];
  }

  #group(id: string): { id: string; members: MembersHash } {
    return { id, members: new MembersHash() };
  }

  async *#members(segment: number): AsyncIterable<TargetRow> {
    const { buildContext } = this.#parts;
    for (let last: TargetRow | undefined; ;) {
      this.refuseLeaving();
      const after = last === undefined ? {} : { after: { group: last.group, path: last.path } };
      const page = await buildContext.store.work.targets({
        members: true,
        pipeline: buildContext.model.name,
        segment,
        limit: 1_000,
        ...after,
      });
      yield* page;
      last = page.at(-1);
      if (last === undefined) return;
    }
  }

  async #files(source: FilesSource, segment: Segment, after: string | undefined): Promise<void> {
    const { folders, onSkipped = () => {} } = this.#parts;
    let batch: ListedFile[] = [];
    for await (const file of listFiles(source, { ...folders, onSkipped, ...(after === undefined ? {} : { after }) })) {
      if (this.#only.includes(file.id)) batch.push(file);
      if (this.#isFull(batch)) batch = await this.#filesListed(source, segment, batch);
    }
    this.#only.rejectMissing();
    await this.#filesListed(source, segment, batch);
  }

  async #filesListed(source: FilesSource, segment: Segment, files: ListedFile[]): Promise<ListedFile[]> {
    for (let at = 0; at < files.length; at += TARGET_BATCH_SIZE) {
      const some = files.slice(at, at + TARGET_BATCH_SIZE);
      await this.#someFiles(source, segment, some, some.at(-1)?.id);
    }
    return [];
  }

  /** Lists the files up to the cursor again: they may have changed or be gone since. */
  async #filesAgain(source: FilesSource, segment: Segment, cursor: string): Promise<void> {
    const { folders, register } = this.#parts;
    let after: string | undefined;
    let batch: ListedFile[] = [];
    const look = async (upTo: string): Promise<void> => {
      const found = await this.#someFiles(source, segment, batch);
      const there = new Set(found.map(({ path }) => path));
      // Targets outside of `only` still exist.
      if (this.#only.isAll) await register.goneSince(segment, there, { after, upTo });
      after = upTo;
      batch = [];
    };
    for await (const file of listFiles(source, folders)) {
      if (compareIds(file.id, cursor) > 0) break;
      if (this.#only.includes(file.id)) batch.push(file);
      if (this.#isFull(batch)) await look(file.id);
    }
    await look(cursor);
  }

  async #someFiles(source: FilesSource, segment: Segment, files: ListedFile[], cursor?: string): Promise<Found[]> {
    const { register } = this.#parts;
    this.refuseLeaving();
    const rows = await register.rows(
      segment,
      files.map(({ id }) => id),
    );
    const found: Found[] = [];
    for (let at = 0; at < files.length; at += READ_AT_ONCE) {
      const some = files.slice(at, at + READ_AT_ONCE);
      const read = await Promise.all(some.map((file) => this.#file(source, file, rows.get(file.id))));
      found.push(...read.filter((one) => one !== null));
    }
    await register.addTargets(segment, found, rows, cursor === undefined ? undefined : JSON.stringify(cursor));
    return found;
  }

  /** Null: the file disappeared during the listing. */
  async #file(source: FilesSource, { id, path, stat }: ListedFile, row: TargetRow | undefined): Promise<Found | null> {
    const { targets, clock, artifacts, dry } = this.#parts;
    const before = row?.fingerprint ? (JSON.parse(row.fingerprint) as Fingerprint) : null;
    if (before !== null && !needsHash(before, stat)) return targets.file(id, before, row?.fingerprint ?? undefined);
    if (!source.snapshot || dry) {
      const fingerprint = await fingerprintFile(path, stat, clock);
      return fingerprint === null ? null : targets.file(id, fingerprint);
    }
    const fingerprint = await snapshotFile(await artifacts(), path, stat, clock);
    if (fingerprint === null) return null;
    const { hash, size } = fingerprint;
    return Object.assign(targets.file(id, fingerprint), { artifacts: [{ name: "snapshot", hash, size }] });
  }

  async #items(source: ItemsSource, segment: Segment, cursor: Cursor): Promise<void> {
    let batch: ListedItems = [];
    // A listing that continues after a cursor sees only later targets; one without a cursor sees all.
    const there = cursor === null && this.#only.isAll ? new Set<string>() : null;
    for await (const item of listItems(source, cursor ?? undefined)) {
      there?.add(item.id);
      if (this.#only.includes(item.id)) batch.push({ found: await this.#item(segment, item), cursor: item.cursor });
      if (this.#isFull(batch)) batch = await this.#itemsListed(segment, batch);
    }
    this.#only.rejectMissing();
    await this.#itemsListed(segment, batch);
    if (there !== null) await this.#parts.register.goneSince(segment, there);
  }

  async #item(segment: Segment, { id, hash, value: text }: ListedItem): Promise<Found> {
    const { values, targets } = this.#parts;
    // Only the item's version, or its content, counts for reuse.
    const value: StoredValue = { ...(await values.keepText(text)), hash: `item:${hash}` };
    const plain = targets.plain(segment, checkTargetId(id, "The id of an item"), hash, value);
    return value.artifact === null ? plain : { ...plain, artifacts: [{ name: "value", hash: value.artifact, size: value.size }] };
  }

  async #itemsListed(segment: Segment, items: ListedItems): Promise<ListedItems> {
    this.refuseLeaving();
    for (let at = 0; at < items.length; at += TARGET_BATCH_SIZE)
      await this.#someItems(segment, items.slice(at, at + TARGET_BATCH_SIZE));
    return [];
  }

  async #someItems(segment: Segment, batch: ListedItems): Promise<void> {
    const { register } = this.#parts;
    this.refuseLeaving();
    const last = batch.at(-1) as ListedItems[number];
    // Duplicates in one batch are equal.
    const byPath = new Map(batch.map(({ found }) => [found.path, found]));
    const rows = await register.rows(segment, [...byPath.keys()]);
    await register.addTargets(segment, [...byPath.values()], rows, JSON.stringify(last.cursor));
  }

  /** Nothing is written until all targets named by `only` were found, so that a typing error starts no work. */
  #isFull(batch: readonly unknown[]): boolean {
    if (++this.#listed % TARGET_BATCH_SIZE === 0) this.refuseLeaving();
    return this.#only.isMet && batch.length >= TARGET_BATCH_SIZE;
  }

  /** Throws when this process is about to leave the build: another process continues the listing. */
  refuseLeaving(): void {
    const { signal, isLeaving } = this.#parts;
    signal.throwIfAborted();
    if (isLeaving?.() !== true) return;
    throw new SettleAs({ kind: "later", delay: RELIST_DELAY_MS, error: toJobError(new Error("the build is left as it is")) });
  }
}
