import { type ClaimSource, type Lane, LaneIndex, type MatchedLanes } from "../../../core/jobs/claiming.ts";
import { damagedRow } from "../../../core/text/errors.ts";
import type { Policy } from "../../../core/jobs/retry.ts";
import { laneText, policyText } from "../../queues.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";

/**
 * Lanes and policies are few and never change, so job rows hold their numbers and this holds what the numbers mean.
 * Lanes that other processes make are noticed by their count, which every transaction reads anyway.
 */
export class Catalog {
  readonly #allLanes: Statement;
  readonly #laneBy: Statement;
  readonly #addLane: Statement;
  readonly #countLane: Statement;
  readonly #policyByBody: Statement;
  readonly #policyById: Statement;
  readonly #addPolicy: Statement;
  #lanes = new Map<number, Lane>();
  #index = new LaneIndex();
  /** False after something was undone, or added: what is known may be less than what is there. */
  #loaded = true;
  #laneIds = new Map<string, number>();
  #policies = new Map<number, Policy>();
  #policyIds = new Map<string, number>();
  /** Definitions reuse their policy object, so most look-ups need no text. */
  #policyIdOf = new WeakMap<Policy, number>();

  constructor(db: Connection) {
    this.#allLanes = db.prepare("select id, queue, name, version from holdfast_lanes order by id");
    // By the table's unique index.
    this.#laneBy = db.prepare("select id from holdfast_lanes where name = ? and version = ? and queue = ?");
    this.#addLane = db.prepare("insert into holdfast_lanes (queue, name, version) values (:queue, :name, :version) returning id");
    this.#countLane = db.prepare("update holdfast_counter set lanes = lanes + 1 where id = 1");
    this.#policyByBody = db.prepare("select id from holdfast_policies where body = :body");
    this.#policyById = db.prepare("select body from holdfast_policies where id = :id");
    this.#addPolicy = db.prepare("insert into holdfast_policies (body) values (:body) returning id");
  }

  /** After an undone transaction: what it added is not there. */
  forget(): void {
    this.#loaded = false;
    this.#lanes.clear();
    this.#index = new LaneIndex();
    this.#laneIds.clear();
    this.#policies.clear();
    this.#policyIds.clear();
    this.#policyIdOf = new WeakMap();
  }

  laneFor(tx: Tx, lane: Omit<Lane, "id">): number {
    const text = laneText(lane);
    const known = this.#laneIds.get(text);
    if (known !== undefined) return known;
    let id = this.#laneBy.row(lane.name, lane.version, lane.queue)?.[0] as number | undefined;
    if (id === undefined) {
      const { queue, name, version } = lane;
      ({ id } = this.#addLane.get<{ id: number }>({ queue, name, version }) as { id: number });
      this.#countLane.run();
      // One more is known, and so the count would hide one that another process has made.
      this.#loaded = false;
      tx.wrote();
    }
    this.#learn({ id, queue: lane.queue, name: lane.name, version: lane.version });
    return id;
  }

  policyFor(tx: Tx, policy: Policy): number {
    const same = this.#policyIdOf.get(policy);
    if (same !== undefined) return same;
    const body = policyText(policy);
    let id = this.#policyIds.get(body) ?? this.#policyByBody.get<{ id: number }>({ body })?.id;
    if (id === undefined) {
      ({ id } = this.#addPolicy.get<{ id: number }>({ body }) as { id: number });
      tx.wrote();
    }
    this.#policyIds.set(body, id);
    this.#policyIdOf.set(policy, id);
    return id;
  }

  lane(id: number): Lane {
    if (!this.#lanes.has(id)) this.reload();
    const lane = this.#lanes.get(id);
    if (lane === undefined) throw damagedRow(`The lane ${id} of a job`);
    return lane;
  }

  policy(id: number): Policy {
    let policy = this.#policies.get(id);
    if (policy === undefined) {
      const found = this.#policyById.get<{ body: string }>({ id });
      if (found === undefined) throw damagedRow(`The policy ${id} of a job`);
      policy = JSON.parse(found.body) as Policy;
      this.#policies.set(id, policy);
    }
    return policy;
  }

  /** Every lane; `count` is how many there must be at least. */
  lanes(count: number): Iterable<Lane> {
    if (!this.#loaded || this.#lanes.size < count) this.reload();
    return this.#lanes.values();
  }

  /** The lanes that these sources name; `count` as above. */
  matching(from: readonly ClaimSource[], count: number): MatchedLanes {
    this.lanes(count);
    return this.#index.matching(from);
  }

  reload(): void {
    for (const lane of this.#allLanes.all<Lane>()) this.#learn(lane);
    this.#loaded = true;
  }

  #learn(lane: Lane): void {
    if (!this.#lanes.has(lane.id)) this.#index.add(lane);
    this.#lanes.set(lane.id, lane);
    this.#laneIds.set(laneText(lane), lane.id);
  }
}
