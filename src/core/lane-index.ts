import type { ClaimSource } from "./claiming.ts";
import type { Lane } from "./queue.ts";

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
