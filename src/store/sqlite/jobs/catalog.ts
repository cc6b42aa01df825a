import { type ClaimSource, type Lane, LaneIndex, laneText, type MatchedLanes } from "../../../core/jobs/claiming.ts";
import type { Policy } from "../../../core/jobs/retry.ts";
import {
  type Declaration,
  declarationChanges,
  NO_SETTINGS,
  type SettingsView,
  DeclarationCache,
} from "../../../core/limits/settings.ts";
import { damagedRow } from "../../../core/text/errors.ts";
import { policyText, type QueueRow, type RuleRow, toSettings } from "../../queues.ts";
import { runSync } from "../../sql/script.ts";
import { SettingsRows } from "../../sql/queues.ts";
import type { Connection } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import { DIALECT } from "../scripts.ts";

/** Lanes and policies are few and never change, so job rows hold their numbers. Each transaction compares the count of lanes. */
export class Catalog {
  readonly #sql;
  #lanes = new Map<number, Lane>();
  #index = new LaneIndex();
  /** False after a rollback or an insert: the catalog may lack lanes of other processes. */
  #loaded = true;
  #laneIds = new Map<string, number>();
  #policies = new Map<number, Policy>();
  #policyIds = new Map<string, number>();
  /** Definitions reuse their policy object, so most look-ups need no text. */
  #policyIdOf = new WeakMap<Policy, number>();

  constructor(db: Connection) {
    this.#sql = {
      allLanes: db.prepare("select id, queue, name, version from holdfast_lanes order by id"),
      laneBy: db.prepare("select id from holdfast_lanes where name = ? and version = ? and queue = ?"),
      addLane: db.prepare("insert into holdfast_lanes (queue, name, version) values (:queue, :name, :version) returning id"),
      countLane: db.prepare("update holdfast_counter set lanes = lanes + 1 where id = 1"),
      policyByBody: db.prepare("select id from holdfast_policies where body = :body"),
      policyById: db.prepare("select body from holdfast_policies where id = :id"),
      addPolicy: db.prepare("insert into holdfast_policies (body) values (:body) returning id"),
    };
  }

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
    const known = this.#laneIds.get(laneText(lane));
    if (known !== undefined) return known;
    const { queue, name, version } = lane;
    let id = this.#sql.laneBy.row(name, version, queue)?.[0] as number | undefined;
    if (id === undefined) {
      ({ id } = this.#sql.addLane.get<{ id: number }>({ queue, name, version }) as { id: number });
      this.#sql.countLane.run();
      // The count now includes this lane, and would hide one that another process has made.
      this.#loaded = false;
      tx.wrote();
    }
    this.#learn({ id, queue, name, version });
    return id;
  }

  policyFor(tx: Tx, policy: Policy): number {
    const same = this.#policyIdOf.get(policy);
    if (same !== undefined) return same;
    const body = policyText(policy);
    let id = this.#policyIds.get(body) ?? this.#sql.policyByBody.get<{ id: number }>({ body })?.id;
    if (id === undefined) {
      ({ id } = this.#sql.addPolicy.get<{ id: number }>({ body }) as { id: number });
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
      const found = this.#sql.policyById.get<{ body: string }>({ id });
      if (found === undefined) throw damagedRow(`The policy ${id} of a job`);
      policy = JSON.parse(found.body) as Policy;
      this.#policies.set(id, policy);
    }
    return policy;
  }

  all(count = 0): Iterable<Lane> {
    if (!this.#loaded || this.#lanes.size < count) this.reload();
    return this.#lanes.values();
  }

  matching(from: readonly ClaimSource[], count: number): MatchedLanes {
    if (!this.#loaded || this.#lanes.size < count) this.reload();
    return this.#index.matching(from);
  }

  reload(): void {
    for (const lane of this.#sql.allLanes.all<Lane>()) this.#learn(lane);
    this.#loaded = true;
  }

  #learn(lane: Lane): void {
    if (!this.#lanes.has(lane.id)) this.#index.add(lane);
    this.#lanes.set(lane.id, lane);
    this.#laneIds.set(laneText(lane), lane.id);
  }
}

/** Settings of queues and limits, read again only when the database's count of their changes has moved. */
export class Settings {
  readonly declarations: DeclarationCache;
  /** As they were when `at` or `now` was called last. */
  view = NO_SETTINGS;
  readonly #rows = new SettingsRows(DIALECT);
  readonly #sql;
  #seen = -1;

  constructor(db: Connection, options: { canDeclare: boolean }) {
    this.declarations = new DeclarationCache(options);
    this.#sql = {
      allQueues: db.prepare("select name, paused, events, keep, attempts from holdfast_queues"),
      allRules: db.prepare("select id, queue, job, position, keyed, concurrency, starts, per from holdfast_limits"),
      counted: db.prepare("select settings from holdfast_counter where id = 1"),
      count: db.prepare("update holdfast_counter set settings = settings + 1 where id = 1"),
    };
  }

  at(settings: number): SettingsView {
    if (settings !== this.#seen) this.#reload(settings);
    return this.view;
  }

  now(): SettingsView {
    return this.at((this.#sql.counted.row() as [number])[0]);
  }

  forget(): void {
    this.#seen = -1;
    this.declarations.forget();
  }

  pause(tx: Tx, name: string, paused: boolean): boolean {
    if (this.at(tx.settings).isPaused(name) === paused) return false;
    runSync(this.#rows.pause(tx, name, paused));
    this.#changed(tx);
    return true;
  }

  declare(tx: Tx, declaration: Declaration): readonly number[] {
    const known = this.declarations.rulesOf(declaration);
    if (known !== undefined) return known;
    const { rules, changes } = declarationChanges(this.at(tx.settings), declaration, this.declarations.isOld(declaration));
    if (changes.length > 0) {
      runSync(this.#rows.write(tx, changes, rules));
      this.#changed(tx);
      tx.ready(declaration.queue);
    }
    this.declarations.add(declaration, rules);
    return rules;
  }

  #changed(tx: Tx): void {
    this.#sql.count.run();
    this.now();
    tx.wrote();
  }

  #reload(settings: number): void {
    this.view = toSettings(this.#sql.allQueues.all<QueueRow>(), this.#sql.allRules.all<RuleRow>());
    this.#seen = settings;
  }
}
