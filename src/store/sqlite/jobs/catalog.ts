import {
  type ClaimSource,
  type Lane,
  LaneIndex,
  laneText,
  type MatchedLanes,
  type StartVerdict,
} from "../../../core/jobs/claiming.ts";
import type { Policy } from "../../../core/jobs/retry.ts";
import type { ParkedRow, UsageRow } from "../../../core/limits/lane-usage.ts";
import type { Gate, LimitedJob, LimitGate, LimitPair } from "../../../core/limits/limit-gate.ts";
import {
  type Declaration,
  declarationChanges,
  NO_SETTINGS,
  type SettingsView,
  DeclarationCache,
} from "../../../core/limits/settings.ts";
import { damagedRow } from "../../../core/text/errors.ts";
import { policyText, type QueueRow, type RuleRow, toSettings } from "../../queues.ts";
import { LimitRows, type LimitReads, MAX_DUE_COUNTERS, USAGE } from "../../sql/limits.ts";
import { runSync, wait } from "../../sql/script.ts";
import { SettingsRows } from "../../sql/queues.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import { DIALECT } from "../scripts.ts";
import type { JobParts } from "./enqueue.ts";

/** Lanes and policies, by the numbers that job rows have. They are few and never change; a count reveals new lanes. */
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
      // The count now includes this lane, so it would hide a lane that another process has made.
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

  lanesOf(queue: string, count: number): readonly Lane[] {
    if (!this.#loaded || this.#lanes.size < count) this.reload();
    return this.#index.of(queue);
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

/** Settings of queues and limits. It reads them again only when the database's count of their changes has risen. */
export class Settings {
  readonly declarations: DeclarationCache;
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

const MAX_LOADED_LIMITS = 20_000;

export class Limits {
  readonly #parts: JobParts;
  readonly #rows: LimitRows;
  readonly #sql;
  /** Loaded counters are valid until another process writes, a limit changes, or a transaction of this store is rolled back. */
  #tx: Tx | null = null;
  #seen = -1;
  #settingsSeen = -1;

  constructor(db: Connection, parts: JobParts) {
    this.#parts = parts;
    this.#rows = new LimitRows(DIALECT, limitReads(db), (id) => parts.settings.view.rule(id));
    const due = (which: string) =>
      db.prepare(`select rule, key from holdfast_counters where ${which} order by due_at limit ${MAX_DUE_COUNTERS}`);
    this.#sql = {
      due: due("due_at is not null and due_at <= ?"),
      wrong: due("due_at is not null and due_at > ?"),
      version: db.prepare("pragma data_version"),
    };
  }

  admit(tx: Tx, job: LimitedJob): Gate {
    return this.#gate(tx, job.limits).admit(job);
  }

  tryStart(tx: Tx, job: LimitedJob): StartVerdict {
    return this.#gate(tx, job.limits).tryStart(job);
  }

  finish(tx: Tx, lane: number, limits: string, began: boolean): void {
    this.#gate(tx, limits).finish(lane, limits, began);
  }

  withdraw(tx: Tx, jobs: readonly (LimitedJob & { gate: string | null })[]): void {
    this.#begin(tx);
    runSync(this.#rows.withdraw(tx, jobs));
  }

  /** Admits jobs that rates allow by now, and writes the counters. */
  serveDue(tx: Tx): void {
    if (!this.#parts.settings.view.hasLimits) return;
    this.#recheck(tx, this.#sql.due, tx.now);
    // No rate is used up for longer than its period, so a later instant comes from a clock that was set back since.
    this.#recheck(tx, this.#sql.wrong, tx.now + this.#parts.settings.view.longestRefillMs);
    this.write(tx);
  }

  /** Called last in each operation: admits the next jobs and writes the counters. Returns how many jobs became ready. */
  write(tx: Tx): number {
    const changes = this.#tx === tx ? runSync(this.#rows.write(tx)) : null;
    if (changes === null) return 0;
    for (const lane of changes.lanes) tx.ready(this.#parts.catalog.lane(lane).queue);
    return changes.opened.length;
  }

  forget(): void {
    this.#rows.gate.forget();
    this.#seen = -1;
  }

  #recheck(tx: Tx, statement: Statement, at: number): void {
    const pairs = statement.rows(at) as LimitPair[];
    if (pairs.length === 0) return;
    this.#begin(tx);
    runSync(this.#rows.recheck(tx, pairs));
  }

  #gate(tx: Tx, limits: string): LimitGate {
    if (this.#tx !== tx) this.#begin(tx);
    const { gate } = this.#rows;
    if (!gate.isLoaded(limits)) runSync(this.#rows.load(tx, [limits]));
    return gate;
  }

  /** Drops loaded counters that are not valid any more, once in each transaction. */
  #begin(tx: Tx): void {
    if (this.#tx === tx) return;
    this.#tx = tx;
    const [version] = this.#sql.version.row() as [number];
    const isOutdated = version !== this.#seen || tx.settings !== this.#settingsSeen;
    if (isOutdated || this.#rows.gate.size > MAX_LOADED_LIMITS) this.forget();
    this.#seen = version;
    this.#settingsSeen = tx.settings;
    this.#parts.settings.at(tx.settings);
    this.#rows.gate.now = tx.now;
  }
}

/** Reads row by row: a prepared statement with its values takes a third of the time that a list in JSON takes. */
function limitReads(db: Connection): LimitReads {
  const counters = db.prepare(`select ${USAGE} from holdfast_counters where rule = ? and key = ?`);
  const parked = db.prepare(
    "select counter, priority, job, limits from holdfast_parked where counter = ? order by priority desc, job limit ?",
  );
  const lastId = db.prepare("select coalesce(max(id), 0) from holdfast_counters");
  let last = 0;
  return {
    counters: (_tx, pairs) => wait(pairs.flatMap((pair) => counters.all<UsageRow>(...pair))),
    parked: (_tx, usages, most) => wait(usages.flatMap(({ id }) => parked.all<ParkedRow>(id, most))),
    *name(_tx, usages) {
      last = Math.max(last, lastId.row()?.[0] as number);
      for (const usage of usages) usage.id = ++last;
      yield* wait(undefined);
    },
  };
}
