import type { JobKey } from "../text/ids.ts";
import { byTurn, type FinishedState } from "./job.ts";

/** Delayed jobs that become claimable in one transaction; the rest follows with the next claim. */
export const PROMOTED = 1_000;
/** How often one claim reads on behind jobs that their limits hold back, each time further; the rest is left to the next. */
export const ROUNDS = 20;
/** And how many times more than is wanted is read then. */
const MOST_AHEAD = 128;

/** Jobs of a queue, or of a name in some version. */
export interface ClaimSource {
  queue?: string;
  name?: string;
  version?: number;
  /** At most this many of it, e.g. because of the definition's own `concurrency`. */
  max?: number;
  lease: number;
}

/** A lane that may be claimed from. */
export interface LaneShare {
  lane: Lane;
  lease: number;
  /** How many more of its source may be taken; lanes of one source share it. */
  budget: { left: number };
}

/** A job that may be next; `suspect`: it was running when a worker died. */
export interface Candidate {
  key: JobKey;
  priority: number;
  share: LaneShare;
  suspect: boolean;
}

/**
 * What becomes of one whose turn it is. "held": a limit holds it back. "last": it starts, and was the last of its key
 * that stood ready, while more of them could start.
 */
export type Start = "started" | "last" | "held";

/** The shares of one claim: lanes of one source share its budget; a queue that is paused, or whose lock is held, has none. */
export class Shares {
  readonly #isPaused: (queue: string) => boolean;
  readonly #locked: ReadonlySet<string>;
  readonly #budgets = new Map<ClaimSource, { left: number }>();

  constructor(settings: { isPaused: (queue: string) => boolean }, locked: Iterable<string>) {
    this.#isPaused = (queue) => settings.isPaused(queue);
    this.#locked = new Set(locked);
  }

  /** Null where nothing may be claimed. */
  of({ lane, source }: MatchedLane): LaneShare | null {
    if (source.max === 0 || this.#locked.has(lane.queue) || this.#isPaused(lane.queue)) return null;
    let budget = this.#budgets.get(source);
    if (budget === undefined) this.#budgets.set(source, (budget = { left: source.max ?? Number.MAX_SAFE_INTEGER }));
    return { lane, lease: source.lease, budget };
  }

  /** Queue by queue. */
  byQueue(lanes: Iterable<MatchedLane>): LaneShare[][] {
    const queues = new Map<string, LaneShare[]>();
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

/** The only queue that may be claimed from; null: there are several, or none. */
export function onlyQueue(lanes: Iterable<MatchedLane>, settings: { isPaused: (queue: string) => boolean }): string | null {
  let only: string | null = null;
  for (const { lane, source } of lanes) {
    if (lane.queue === only || source.max === 0 || settings.isPaused(lane.queue)) continue;
    if (only !== null) return null;
    only = lane.queue;
  }
  return only;
}

/** Which queue is served first: the one that has waited longest for it, so that a worker of one job at a time serves all of them. */
export class Turns {
  /** When each queue was last the first, in claims. */
  readonly #served = new Map<string, number>();

  /** `random` is in [0, 1): among those that have waited equally long, each may be the first. */
  order(queues: LaneShare[][], random: () => number): LaneShare[][] {
    if (queues.length < 2) return queues;
    const start = Math.floor(random() * queues.length);
    const turn = (lanes: LaneShare[]) => this.#served.get(queueOf(lanes)) ?? 0;
    return [...queues.slice(start), ...queues.slice(0, start)].sort((a, b) => turn(a) - turn(b));
  }

  /** The claim of this number has taken from this queue first. */
  served(lanes: LaneShare[], claim: number): void {
    this.#served.set(queueOf(lanes), claim);
  }
}

/** The queue of these lanes. */
export function queueOf(lanes: readonly LaneShare[]): string {
  return (lanes[0] as LaneShare).lane.queue;
}

/**
 * How many jobs a claim takes from each queue, pass by pass: an equal share first, so that a long queue does not shut out
 * the others; then the rest from queues that have more.
 */
export function quotas(max: number, queues: number): number[] {
  return queues === 1 ? [max] : [Math.max(1, Math.ceil(max / queues)), max];
}

/**
 * Whether a claim may take a job that was running when a worker died. A process holds one such at a time, or one poison
 * job would take its neighbours along into quarantine; a claim by hand is a process by itself.
 */
export function maySuspect(holder: number | null, holdsOne: (holder: number) => boolean): boolean {
  return holder === null || !holdsOne(holder);
}

/**
 * The next jobs of a queue over its lanes, at most one of them a suspect. Of a lane the first were read, in turn;
 * `ends` has the last of those that may have more. `start` is asked of each whose turn it is, in turn, and what it
 * answers has happened.
 */
export function choose<C extends Candidate>(
  candidates: C[],
  ends: ReadonlyMap<LaneShare, C>,
  max: number,
  start: (candidate: C) => Start,
): { chosen: C[]; held: number } {
  candidates.sort(byTurn);
  const chosen: C[] = [];
  let suspected = false;
  let held = 0;
  let end: C | undefined;
  for (const candidate of candidates) {
    if (chosen.length === max) break;
    // What a lane has behind those that are held was not read yet, and may come before this one.
    if (end !== undefined && byTurn(end, candidate) < 0) break;
    if (candidate.share.budget.left === 0 || (candidate.suspect && suspected)) continue;
    const verdict = start(candidate);
    if (verdict === "held") {
      held++;
      const last = candidate.suspect ? candidate : ends.get(candidate.share);
      if (last !== undefined && (end === undefined || byTurn(last, end) < 0)) end = last;
      continue;
    }
    candidate.share.budget.left -= 1;
    suspected ||= candidate.suspect;
    chosen.push(candidate);
    // Those of its key that pass now may come before the ones that were read.
    if (verdict === "last") break;
  }
  return { chosen, held };
}

/** How many times more than is wanted is read in the next round: further each time, as long as most are held back. */
export function readAhead(ahead: number, { chosen, held }: { chosen: readonly unknown[]; held: number }): number {
  return held > chosen.length ? Math.min(MOST_AHEAD, ahead * 2) : 1;
}

/** What there is to claim. */
export interface Outlook {
  ready: boolean;
  /** Milliseconds until there may be more, by the store's clock; null: unknown. */
  nextIn: number | null;
}

/** If there is nothing now, there is at the soonest of these instants. */
export function outlookOf(ready: boolean, instants: Iterable<number | null>, now: number): Outlook {
  let soonest: number | null = null;
  for (const at of instants) if (at !== null && (soonest === null || at < soonest)) soonest = at;
  const nextIn = soonest === null ? null : Math.max(0, soonest - now);
  return { ready: ready || nextIn === 0, nextIn };
}

/** A lane with the first of the sources that names it. */
export interface MatchedLane {
  lane: Lane;
  source: ClaimSource;
}

/** The lanes that a list of sources names. */
export class MatchedLanes {
  readonly all: MatchedLane[] = [];
  readonly byId = new Map<number, MatchedLane>();
  readonly byQueue = new Map<string, MatchedLane[]>();
  /** How many of the index's lanes were compared with the sources. */
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

/** A queue with more lanes than this is claimed from only by those of its lanes that have jobs. */
const WIDE_QUEUE_LANES = 8;

/** The lanes of the next `max` queues that have jobs: what a claim of `max` jobs reads when it may take from many lanes. */
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

  /** Adds the queue of a lane that has jobs. Returns whether the batch has all queues that it needs. */
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

/**
 * All lanes, by name and by queue. A worker claims with the same list of sources each time, so what the list matches is
 * kept, and a claim compares only the lanes that are new since the claim before. Sources are compared by their queue,
 * name and version, which must not change.
 */
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

  /** Looks the lanes of each source up, so that neither the other lanes nor the other sources count. */
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

/** Jobs of a queue, name and version. Job rows hold its number. */
export interface Lane {
  id: number;
  queue: string;
  name: string;
  version: number;
}

/** What the number of a lane is looked up by: lanes are few, and job rows hold only their numbers. */
export function laneText({ name, version, queue }: Omit<Lane, "id">): string {
  return `${name}\n${version}\n${queue}`;
}

/** How many finished jobs of a state are kept, and how long; what neither names is kept for ever. */
export interface Keep {
  age?: number;
  count?: number;
}

/** What a definition says about its queue. */
export interface QueueSettings {
  events: boolean;
  keep: Partial<Record<FinishedState, Keep>>;
}
