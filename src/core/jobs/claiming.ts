import type { JobKey } from "../text/ids.ts";
import { byClaimOrder, type FinishedState } from "./job.ts";

/** Delayed jobs that one transaction promotes. The next claim promotes the others. */
export const MAX_PROMOTED_JOBS = 1_000;
/** Reads of one claim past jobs that their limits hold back. The next claim continues. */
export const MAX_CLAIM_READS = 1_000;
const MAX_READ_FACTOR = 128;
/** A commit costs as much as some dozen jobs, so larger batches would save little. */
export const MAX_CLAIM_BATCH = 512;
/** Jobs that a worker claims beyond its concurrency: while one batch runs, the store claims the next. */
export const MAX_PREFETCH = 2 * MAX_CLAIM_BATCH;
/** A worker that claims ahead finishes the jobs that it holds within about this time. */
const MAX_HELD_MS = 100;

/** Returns how many jobs to claim ahead, by the attempts that ended in one turn. A single one shows no pace. */
export function nextPrefetch(prefetch: number, concurrency: number, ended: { count: number; longestMs: number }): number {
  if (ended.count === 1 && concurrency > 1) return prefetch >> 1;
  const finishSoon = Math.floor((MAX_HELD_MS * ended.count) / ended.longestMs);
  return Math.max(0, Math.min(MAX_PREFETCH, prefetch * 2 + concurrency, finishSoon - concurrency));
}

export interface ClaimSource {
  queue?: string;
  name?: string;
  version?: number;
  max?: number;
  lease: number;
}

export interface ClaimableLane {
  lane: Lane;
  lease: number;
  budget: { left: number };
}

/** A job that a claim may start. It is a suspect if it was running when a worker died. */
export interface Candidate {
  key: JobKey;
  priority: number;
  claimable: ClaimableLane;
  suspect: boolean;
}

/** What limits decide about a job. "last": it starts as the last ready job of its key, while more of the key could start. */
export type StartVerdict = "started" | "last" | "held";

export class ClaimableLanes {
  readonly #settings: { isPaused: (queue: string) => boolean };
  readonly #locked: ReadonlySet<string>;
  readonly #budgets = new Map<ClaimSource, { left: number }>();

  constructor(settings: { isPaused: (queue: string) => boolean }, locked: Iterable<string>) {
    this.#settings = settings;
    this.#locked = new Set(locked);
  }

  of({ lane, source }: MatchedLane): ClaimableLane | null {
    if (source.max === 0 || this.#locked.has(lane.queue) || this.#settings.isPaused(lane.queue)) return null;
    let budget = this.#budgets.get(source);
    if (budget === undefined) this.#budgets.set(source, (budget = { left: source.max ?? Number.MAX_SAFE_INTEGER }));
    return { lane, lease: source.lease, budget };
  }

  byQueue(lanes: Iterable<MatchedLane>): ClaimableLane[][] {
    const queues = new Map<string, ClaimableLane[]>();
    for (const matched of lanes) {
      const share = this.of(matched);
      if (share === null) continue;
      const shares = queues.get(matched.lane.queue);
      if (shares === undefined) queues.set(matched.lane.queue, [share]);
      else shares.push(share);
    }
    return [...queues.values()];
  }
}

export function onlyQueue(lanes: Iterable<MatchedLane>, settings: { isPaused: (queue: string) => boolean }): string | null {
  let only: string | null = null;
  for (const { lane, source } of lanes) {
    if (lane.queue === only || source.max === 0 || settings.isPaused(lane.queue)) continue;
    if (only !== null) return null;
    only = lane.queue;
  }
  return only;
}

/** Orders queues so that the one that has waited longest is served first: a worker with one slot serves all queues. */
export class QueueRotation {
  readonly #served = new Map<string, number>();

  order(queues: ClaimableLane[][], random: () => number): ClaimableLane[][] {
    if (queues.length < 2) return queues;
    const start = Math.floor(random() * queues.length);
    const turn = (lanes: ClaimableLane[]) => this.#served.get(queueOf(lanes)) ?? 0;
    return [...queues.slice(start), ...queues.slice(0, start)].sort((a, b) => turn(a) - turn(b));
  }

  recordServed(lanes: ClaimableLane[], claim: number): void {
    this.#served.set(queueOf(lanes), claim);
  }
}

export function queueOf(lanes: readonly ClaimableLane[]): string {
  return (lanes[0] as ClaimableLane).lane.queue;
}

/** Jobs per queue of each pass: first an equal part, so that a long queue does not starve the others; then the rest. */
export function quotas(max: number, queues: number): number[] {
  return queues === 1 ? [max] : [Math.max(1, Math.ceil(max / queues)), max];
}

/** Whether a process may claim a suspect: it holds one at a time, or one poison job would take its neighbours into quarantine. */
export function canClaimSuspect(holder: number | null, holdsOne: (holder: number) => boolean): boolean {
  return holder === null || !holdsOne(holder);
}

/** Chooses the jobs to start, and calls `start` in claim order. `ends` has the last candidate of each lane that may have more. */
export function chooseCandidates<C extends Candidate>(
  candidates: C[],
  ends: ReadonlyMap<ClaimableLane, C>,
  max: number,
  start: (candidate: C) => StartVerdict,
): { chosen: C[]; held: number } {
  candidates.sort(byClaimOrder);
  const chosen: C[] = [];
  let suspected = false;
  let held = 0;
  let end: C | undefined;
  for (const candidate of candidates) {
    if (chosen.length === max) break;
    // The lane may have unread jobs behind the held ones that come before this candidate.
    if (end !== undefined && byClaimOrder(end, candidate) < 0) break;
    if (candidate.claimable.budget.left === 0 || (candidate.suspect && suspected)) continue;
    const verdict = start(candidate);
    if (verdict === "held") {
      held++;
      const last = candidate.suspect ? candidate : ends.get(candidate.claimable);
      if (last !== undefined && (end === undefined || byClaimOrder(last, end) < 0)) end = last;
      continue;
    }
    candidate.claimable.budget.left -= 1;
    suspected ||= candidate.suspect;
    chosen.push(candidate);
    // Jobs of its key that pass now may come before the candidates that were read.
    if (verdict === "last") break;
  }
  return { chosen, held };
}

export function nextReadFactor(ahead: number, { chosen, held }: { chosen: readonly unknown[]; held: number }): number {
  return held > chosen.length ? Math.min(MAX_READ_FACTOR, ahead * 2) : 1;
}

export interface ClaimOutlook {
  ready: boolean;
  /** Milliseconds by the store's clock until there may be more; null if unknown. */
  nextIn: number | null;
}

export function outlookOf(ready: boolean, instants: Iterable<number | null>, now: number): ClaimOutlook {
  let soonest: number | null = null;
  for (const at of instants) if (at !== null && (soonest === null || at < soonest)) soonest = at;
  const nextIn = soonest === null ? null : Math.max(0, soonest - now);
  return { ready: ready || nextIn === 0, nextIn };
}

export interface MatchedLane {
  lane: Lane;
  source: ClaimSource;
}

export class MatchedLanes {
  readonly all: MatchedLane[] = [];
  readonly byId = new Map<number, MatchedLane>();
  readonly byQueue = new Map<string, MatchedLane[]>();
  compared = 0;

  add(matched: MatchedLane): void {
    const { id, queue } = matched.lane;
    this.all.push(matched);
    this.byId.set(id, matched);
    const same = this.byQueue.get(queue);
    if (same === undefined) this.byQueue.set(queue, [matched]);
    else same.push(matched);
  }
}

/** A queue with more lanes than this is claimed from only by its lanes that have jobs. */
const WIDE_QUEUE_LANES = 8;

/** The lanes of the next `max` queues that have jobs, which a claim of `max` jobs reads if it may take from many lanes. */
export class LaneBatch {
  readonly queues = new Set<string>();
  readonly #lanes = new Set<MatchedLane>();
  readonly #matched: MatchedLanes;
  readonly #max: number;
  #hasWide = false;

  constructor(matched: MatchedLanes, max: number) {
    this.#matched = matched;
    this.#max = max;
  }

  get lanes(): MatchedLane[] {
    return [...this.#lanes];
  }

  add(one: MatchedLane): boolean {
    const { queue } = one.lane;
    const siblings = this.#matched.byQueue.get(queue) as MatchedLane[];
    const isWide = siblings.length > WIDE_QUEUE_LANES;
    for (const sibling of isWide ? [one] : siblings) this.#lanes.add(sibling);
    this.queues.add(queue);
    // A job of a later lane may come before the others of its queue, so a wide queue needs every lane that has jobs.
    this.#hasWide ||= isWide;
    return !this.#hasWide && this.queues.size >= this.#max;
  }
}

/** Finds the lanes of a claim. It caches matches per list of sources, which must not change, and compares only new lanes. */
export class LaneIndex {
  readonly #lanes: Lane[] = [];
  readonly #byName = new Map<string, Lane[]>();
  readonly #byQueue = new Map<string, Lane[]>();
  readonly #matched = new WeakMap<readonly ClaimSource[], MatchedLanes>();

  add(lane: Lane): void {
    this.#lanes.push(lane);
    push(this.#byName, lane.name, lane);
    push(this.#byQueue, lane.queue, lane);
  }

  of(queue: string): readonly Lane[] {
    return this.#byQueue.get(queue) ?? [];
  }

  matching(from: readonly ClaimSource[]): MatchedLanes {
    let matched = this.#matched.get(from);
    if (matched === undefined) this.#matched.set(from, (matched = this.#match(from)));
    for (; matched.compared < this.#lanes.length; matched.compared++) {
      const lane = this.#lanes[matched.compared] as Lane;
      const source = from.find((one) => matches(one, lane));
      if (source !== undefined) matched.add({ lane, source });
    }
    return matched;
  }

  #match(from: readonly ClaimSource[]): MatchedLanes {
    const found = new Map<Lane, ClaimSource>();
    for (const source of from) {
      for (const lane of this.#candidates(source)) {
        if (!found.has(lane) && matches(source, lane)) found.set(lane, source);
      }
    }
    const matched = new MatchedLanes();
    for (const [lane, source] of [...found].sort(([a], [b]) => a.id - b.id)) matched.add({ lane, source });
    matched.compared = this.#lanes.length;
    return matched;
  }

  #candidates({ queue, name }: ClaimSource): readonly Lane[] {
    if (name !== undefined) return this.#byName.get(name) ?? [];
    return queue === undefined ? this.#lanes : (this.#byQueue.get(queue) ?? []);
  }
}

function push(lanes: Map<string, Lane[]>, key: string, lane: Lane): void {
  const same = lanes.get(key);
  if (same === undefined) lanes.set(key, [lane]);
  else same.push(lane);
}

function matches(source: ClaimSource, lane: Lane): boolean {
  if (source.queue !== undefined && source.queue !== lane.queue) return false;
  if (source.name !== undefined && source.name !== lane.name) return false;
  return source.version === undefined || source.version === lane.version;
}

export interface Lane {
  id: number;
  queue: string;
  name: string;
  version: number;
}

export function laneText({ name, version, queue }: Omit<Lane, "id">): string {
  return `${name}\n${version}\n${queue}`;
}

/** How many finished jobs of a state are kept, and for how long. An absent part is unlimited. */
export interface Keep {
  age?: number;
  count?: number;
}

export interface QueueSettings {
  events: boolean;
  keep: Partial<Record<FinishedState, Keep>>;
  /** How many attempts that did not succeed are kept of each job. */
  attempts?: number;
}
