import { type ClaimSource, type Lane, LaneIndex, laneText, type MatchedLanes } from "../../../core/jobs/claiming.ts";
import type { Policy } from "../../../core/jobs/retry.ts";
import type { LimitRule } from "../../../core/limits/limit.ts";
import {
  type Declaration,
  declared,
  NOTHING_SET,
  type SettingsChange,
  type SettingsView,
  Words,
} from "../../../core/limits/settings.ts";
import { damagedRow } from "../../../core/text/errors.ts";
import { policyText, type QueueRow, type RuleRow, toSettings } from "../../queues.ts";
import type { Connection, Statement, Value } from "../driver.ts";
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

/**
 * What is set for queues, and which limits there are. Read again only when the database's count of such changes has
 * moved, which every transaction sees anyway: where nothing is set, it costs nothing.
 */
export class Settings {
  readonly #allQueues: Statement;
  readonly #allRules: Statement;
  readonly #counted: Statement;
  readonly #count: Statement;
  readonly #pause: Statement;
  readonly #set: Statement;
  readonly #addRule: Statement;
  readonly #setRule: Statement;
  readonly #dropRule: Statement;
  readonly #wakeCounters: Statement;
  readonly #words: Words;
  #seen = -1;
  #view = NOTHING_SET;

  constructor(db: Connection, options: { speaks: boolean }) {
    this.#words = new Words(options);
    this.#allQueues = db.prepare("select name, paused, events, keep from holdfast_queues");
    this.#allRules = db.prepare("select id, queue, job, position, keyed, concurrency, starts, per from holdfast_limits");
    this.#counted = db.prepare("select settings from holdfast_counter where id = 1");
    this.#count = db.prepare("update holdfast_counter set settings = settings + 1 where id = 1");
    this.#pause = db.prepare(
      `insert into holdfast_queues (name, paused) values (:name, :paused)
       on conflict (name) do update set paused = excluded.paused where paused <> excluded.paused`,
    );
    // Jobs that ended before anything was said about keeping them are looked up from the first on.
    this.#set = db.prepare(
      `insert into holdfast_queues (name, events, keep, backfill) values (:name, :events, :keep, :backfill)
       on conflict (name) do update set events = excluded.events, keep = excluded.keep, backfill = excluded.backfill`,
    );
    this.#addRule = db.prepare(
      `insert into holdfast_limits (queue, job, position, keyed, concurrency, starts, per)
       values (:queue, :job, :position, :keyed, :concurrency, :starts, :per) returning id`,
    );
    this.#setRule = db.prepare(
      `update holdfast_limits set keyed = :keyed, concurrency = :concurrency, starts = :starts, per = :per where id = :id`,
    );
    this.#dropRule = db.prepare("update holdfast_limits set concurrency = null, starts = null, per = null where id = ?");
    this.#wakeCounters = db.prepare("update holdfast_counters set due_at = 0 where rule = ? and parked > 0");
  }

  /** As it was at the last look, in this transaction or before. */
  get view(): SettingsView {
    return this.#view;
  }

  get limited(): boolean {
    return this.#view.limited;
  }

  get longest(): number {
    return this.#view.longest;
  }

  rule(id: number): LimitRule {
    return this.#view.rule(id);
  }

  /** Called first by code that relies on it; `settings` is the database's count of changes. */
  at(settings: number): SettingsView {
    if (settings !== this.#seen) this.#reload(settings);
    return this.#view;
  }

  /** Outside of a transaction. */
  now(): SettingsView {
    return this.at((this.#counted.row() as [number])[0]);
  }

  /** After an undone transaction. */
  forget(): void {
    this.#seen = -1;
    this.#words.forget();
  }

  /** False when it is so already. */
  pause(tx: Tx, name: string, paused: boolean): boolean {
    if (this.at(tx.settings).isPaused(name) === paused) return false;
    this.#pause.runNamed({ name, paused: paused ? 1 : 0 });
    this.#changed(tx);
    return true;
  }

  /** The numbers of the declared limits, in their order. */
  declare(tx: Tx, declaration: Declaration): readonly number[] {
    const heard = this.#words.heard(declaration);
    if (heard !== undefined) return heard;
    const { rules, changes } = declared(this.at(tx.settings), declaration, this.#words.isOld(declaration));
    for (const change of changes) this.#make(change, rules);
    if (changes.length > 0) {
      this.#changed(tx);
      // More of what waits there may start now.
      tx.ready(declaration.queue);
    }
    this.#words.say(declaration, rules);
    return rules;
  }

  /** Whether this process has said it, for good. */
  isSaid(declaration: Declaration): boolean {
    return this.#words.isSaid(declaration);
  }

  /** After a commit. */
  committed(): void {
    this.#words.committed();
  }

  #make(change: SettingsChange, rules: number[]): void {
    switch (change.kind) {
      case "set-queue": {
        const { name, events, keep } = change;
        const kept = keep === null ? { keep: null, backfill: null } : { keep: JSON.stringify(keep), backfill: 0 };
        this.#set.runNamed({ name, events: events ? 1 : 0, ...kept });
        return;
      }
      case "add-rule": {
        const { queue, job, rule } = change;
        const added = this.#addRule.get<{ id: number }>({ queue, job, position: rule.position, ...valuesOf(rule) });
        rules[change.at] = (added as { id: number }).id;
        return;
      }
      case "set-rule":
        this.#setRule.runNamed({ id: change.id, ...valuesOf(change.rule) });
        this.#wakeCounters.run(change.id);
        return;
      case "drop-rule":
        this.#dropRule.run(change.id);
        this.#wakeCounters.run(change.id);
    }
  }

  #changed(tx: Tx): void {
    this.#count.run();
    this.now();
    tx.wrote();
  }

  #reload(settings: number): void {
    this.#view = toSettings(this.#allQueues.all<QueueRow>(), this.#allRules.all<RuleRow>());
    this.#seen = settings;
  }
}

function valuesOf({ keyed, concurrency, rate }: LimitRule): Record<string, Value> {
  return { keyed: keyed ? 1 : 0, concurrency, starts: rate?.starts ?? null, per: rate?.per ?? null };
}
