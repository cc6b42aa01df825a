import { type ClaimSource, type Lane, LaneIndex, laneText, type MatchedLanes } from "../../core/jobs/claiming.ts";
import type { Policy } from "../../core/jobs/retry.ts";
import { policyText, type QueueRow, type RuleRow, toSettings } from "../queues.ts";
import { listOf, lists, type Rows } from "./connection/driver.ts";
import type { Tx } from "./transactions/transaction.ts";
import type { OrderedLock, QueueLocks } from "./transactions/mutexes.ts";
import {
  type Declaration,
  DeclarationCache,
  declarationChanges,
  NO_SETTINGS,
  type SettingsView,
} from "../../core/limits/settings.ts";
import { limitsText } from "../../core/limits/limit-gate.ts";
import type { NewJob } from "../store.ts";
import { runAsync } from "../sql/script.ts";
import { SettingsRows } from "../sql/queues.ts";
import { dialectOf, named } from "./scripts.ts";

type LaneRow = [id: number, queue: string, name: string, version: number];

/** Lanes and policies are few and never change, so job rows hold their ids. The count shows new lanes of other processes. */
export class Catalog {
  /** The number of lanes when they were last counted; -1 if unknown. */
  counted = -1;
  readonly #sql: Record<"counted" | "lanes" | "addLanes" | "countLanes" | "policies" | "addPolicies", string>;
  readonly #counter: OrderedLock;
  readonly #lanes = new Map<number, Lane>();
  #index = new LaneIndex();
  readonly #laneIds = new Map<string, number>();
  readonly #policies = new Map<number, Policy>();
  readonly #policyIds = new Map<string, number>();
  /** Definitions reuse their policy object, so most look-ups need no text. */
  #policyIdOf = new WeakMap<Policy, number>();
  /** All lanes up to this id are known: adding lanes locks the counter until the commit, so ids rise with commits. */
  #readTo = 0;

  constructor(s: string, counter: OrderedLock) {
    this.#counter = counter;
    this.#sql = {
      counted: `select lanes from ${s}.counter where id = 1`,
      lanes: `select id, queue, name, version from ${s}.lanes where id > $1 order by id`,
      addLanes: `
        insert into ${s}.lanes (queue, name, version)
        select queue, name, version from unnest($1::text[], $2::text[], $3::integer[]) as lane (queue, name, version)
        order by 1, 2, 3
        returning id, queue, name, version`,
      countLanes: `update ${s}.counter set lanes = lanes + $1 where id = 1 returning lanes`,
      policies: `select id, body from ${s}.policies where body = any($1::text[]) or id = any($2::integer[])`,
      addPolicies: `insert into ${s}.policies (body) select unnest($1::text[]) order by 1 on conflict do nothing returning id, body`,
    };
  }

  copy(s: string, counter: OrderedLock): Catalog {
    const copy = new Catalog(s, counter);
    for (const lane of this.#lanes.values()) copy.#learn([lane.id, lane.queue, lane.name, lane.version]);
    copy.#readTo = this.#readTo;
    for (const [body, id] of this.#policyIds) copy.#learnPolicy(id, body);
    return copy;
  }

  async know(tx: Tx, jobs: readonly (Omit<Lane, "id"> & { policy: Policy })[]): Promise<void> {
    const lanes = new Map<string, Omit<Lane, "id">>();
    const bodies = new Set<string>();
    for (const job of jobs) {
      if (this.#find(job) === undefined) lanes.set(laneText(job), job);
      if (this.#policyIdOf.has(job.policy)) continue;
      const body = policyText(job.policy);
      const id = this.#policyIds.get(body);
      if (id === undefined) bodies.add(body);
      else this.#policyIdOf.set(job.policy, id);
    }
    if (lanes.size > 0) await this.#addLanes(tx, [...lanes.values()]);
    if (bodies.size > 0) await this.#addPolicies(tx, [...bodies]);
  }

  laneOf(job: Omit<Lane, "id">): number {
    return this.#find(job) as number;
  }

  #find(lane: Omit<Lane, "id">): number | undefined {
    return this.#laneIds.get(laneText(lane));
  }

  policyIdOf(policy: Policy): number {
    let id = this.#policyIdOf.get(policy);
    if (id === undefined) this.#policyIdOf.set(policy, (id = this.#policyIds.get(policyText(policy)) as number));
    return id;
  }

  isKnown(jobs: readonly (Omit<Lane, "id"> & { policy: Policy })[]): boolean {
    return jobs.every((job) => this.#policyIdOf.has(job.policy) && this.#find(job) !== undefined);
  }

  lane(id: number): Lane {
    return this.#lanes.get(id) as Lane;
  }

  lanesOf(queue: string): readonly Lane[] {
    return this.#index.of(queue);
  }

  lanes(): Iterable<Lane> {
    return this.#lanes.values();
  }

  matching(from: readonly ClaimSource[]): MatchedLanes {
    return this.#index.matching(from);
  }

  knowsPolicy(id: number): boolean {
    return this.#policies.has(id);
  }

  policy(id: number): Policy {
    return this.#policies.get(id) as Policy;
  }

  async knowLanes(rows: Rows, ids: Iterable<number>): Promise<void> {
    for (const id of ids) if (!this.#lanes.has(id)) return this.reload(rows);
  }

  over(rows: Rows) {
    return {
      reload: () => this.reload(rows),
      know: (ids: readonly number[]) => this.knowLanes(rows, ids),
      lane: (id: number) => this.lane(id),
      all: () => this.lanes(),
    };
  }

  async knowPolicies(rows: Rows, ids: Iterable<number>): Promise<void> {
    const unknown = [...new Set(ids)].filter((id) => !this.#policies.has(id));
    if (unknown.length === 0) return;
    for (const [id, body] of await rows<[number, string]>(this.#sql.policies, "{}", listOf(unknown))) this.#learnPolicy(id, body);
  }

  async count(rows: Rows): Promise<void> {
    const [row] = await rows<[number]>(this.#sql.counted);
    await this.reload(rows);
    this.counted = (row as [number])[0];
  }

  forgetCount(): void {
    this.counted = -1;
  }

  forget(): void {
    this.#lanes.clear();
    this.#index = new LaneIndex();
    this.#laneIds.clear();
    this.#policies.clear();
    this.#policyIds.clear();
    this.#policyIdOf = new WeakMap();
    this.#readTo = 0;
    this.counted = -1;
  }

  async reload(rows: Rows): Promise<void> {
    const index = this.#index;
    const added = await rows<LaneRow>(this.#sql.lanes, this.#readTo);
    for (const row of added) this.#learn(row);
    if (index === this.#index) this.#readTo = Math.max(this.#readTo, added.at(-1)?.[0] ?? 0);
  }

  async #addLanes(tx: Tx, lanes: readonly Omit<Lane, "id">[]): Promise<void> {
    await this.reload(tx.rows);
    const isMissing = (lane: Omit<Lane, "id">) => !this.#laneIds.has(laneText(lane));
    if (!lanes.some(isMissing)) return;
    // Take the counter's lock first, or two transactions that add several lanes each would deadlock.
    await this.#counter.take(tx);
    await this.reload(tx.rows);
    const missing = lanes.filter(isMissing);
    if (missing.length === 0) return;
    const added = await tx.rows<LaneRow>(this.#sql.addLanes, ...lists(missing, "queue", "name", "version"));
    const [[count]] = (await tx.rows<[number]>(this.#sql.countLanes, added.length)) as [[number]];
    this.counted = -1;
    tx.assume("lanes", count - added.length, count);
    for (const row of added) this.#learn(row);
    tx.onUndo(() => {
      for (const [id] of added) this.#unlearn(id);
    });
    tx.wrote();
  }

  async #addPolicies(tx: Tx, bodies: readonly string[]): Promise<void> {
    const known = await tx.rows<[number, string]>(this.#sql.policies, listOf(bodies), "{}");
    for (const [id, body] of known) this.#learnPolicy(id, body);
    const missing = bodies.filter((body) => !this.#policyIds.has(body));
    if (missing.length === 0) return;
    const added = await tx.rows<[number, string]>(this.#sql.addPolicies, listOf(missing));
    for (const [id, body] of added) this.#learnPolicy(id, body);
    tx.onUndo(() => {
      for (const [id, body] of added) {
        this.#policies.delete(id);
        this.#policyIds.delete(body);
      }
      this.#policyIdOf = new WeakMap();
    });
    if (added.length === missing.length) return;
    for (const [id, body] of await tx.rows<[number, string]>(this.#sql.policies, listOf(missing), "{}"))
      this.#learnPolicy(id, body);
  }

  #learn([id, queue, name, version]: LaneRow): void {
    const lane = { id, queue, name, version };
    if (!this.#lanes.has(id)) this.#index.add(lane);
    this.#lanes.set(id, lane);
    this.#laneIds.set(laneText(lane), id);
  }

  #unlearn(id: number): void {
    const lane = this.#lanes.get(id);
    if (lane === undefined) return;
    this.#lanes.delete(id);
    this.#index = new LaneIndex();
    for (const lane of this.#lanes.values()) this.#index.add(lane);
    this.#laneIds.delete(laneText(lane));
    // A server that crashed may give the id to another lane.
    this.#readTo = 0;
    this.counted = -1;
  }

  #learnPolicy(id: number, body: string): void {
    this.#policies.set(id, JSON.parse(body) as Policy);
    this.#policyIds.set(body, id);
  }
}

type SettingsParts = { canDeclare: boolean; locks: QueueLocks; counter: OrderedLock };

/** Settings of queues, and limits. Every transaction compares the count of their changes, and reads them again if it differs. */
export class Settings {
  view: SettingsView = NO_SETTINGS;
  readonly #sql: Record<"counted" | "count" | "queues" | "rules", string>;
  readonly #rows: SettingsRows;
  readonly #declarations: DeclarationCache;
  readonly #parts: SettingsParts;
  #seen = -1;
  /** Queues that have rules, even if these limit nothing any more, because jobs may still have them in their rows. */
  #ruled = new Set<string>();

  constructor(s: string, parts: SettingsParts) {
    this.#declarations = new DeclarationCache(parts);
    this.#parts = parts;
    this.#rows = new SettingsRows(dialectOf(s));
    this.#sql = {
      counted: `select settings from ${s}.counter where id = 1`,
      count: `update ${s}.counter set settings = settings + 1 where id = 1 returning settings`,
      queues: `select name, paused, events, keep, attempts from ${s}.queues`,
      rules: `select id, queue, job, position, keyed, concurrency, starts, per from ${s}.limits`,
    };
  }

  get isKnown(): boolean {
    return this.#seen !== -1;
  }

  limits(queue: string): boolean {
    return this.#ruled.has(queue);
  }

  forget(): void {
    this.#seen = -1;
    this.#declarations.forget();
  }

  async at(tx: Tx): Promise<SettingsView> {
    if (!this.isKnown) await this.load(tx.rows);
    tx.assume("settings", this.#seen);
    return this.view;
  }

  assumed(tx: Tx): SettingsView {
    tx.assume("settings", this.#seen);
    return this.view;
  }

  /** Reads settings again after a wait for other transactions, which may have changed them, so that no decision is repeated. */
  async refresh(tx: Tx): Promise<void> {
    const [[counted]] = (await tx.rows<[number]>(this.#sql.counted)) as [[number]];
    if (counted !== this.#seen) await this.load(tx.rows);
  }

  async load(rows: Rows): Promise<void> {
    const [[counted]] = (await rows<[number]>(this.#sql.counted)) as [[number]];
    const queues = named<QueueRow>(await rows(this.#sql.queues));
    const rules = named<RuleRow>(await rows(this.#sql.rules));
    this.view = toSettings(queues, rules);
    this.#ruled = new Set(rules.map(({ queue }) => queue));
    this.#seen = counted;
  }

  async pause(tx: Tx, name: string, paused: boolean): Promise<boolean> {
    const view = await this.at(tx);
    if (view.isPaused(name) === paused) return false;
    // Take the lock first, so that two processes that pause several queues do not deadlock.
    await this.#count(tx);
    await runAsync(this.#rows.pause(tx, name, paused));
    await this.load(tx.rows);
    tx.wrote();
    return true;
  }

  async declare(tx: Tx, declaration: Declaration): Promise<readonly number[]> {
    const known = this.#declarations.rulesOf(declaration);
    if (known !== undefined) return known;
    const { rules, changes } = declarationChanges(await this.at(tx), declaration, this.#declarations.isOld(declaration));
    if (changes.length > 0) {
      const wakes = changes.some(({ kind }) => kind === "set-rule" || kind === "drop-rule");
      // Under this lock, no job is parked by the old limits after the parked jobs were woken.
      if (wakes) await this.#parts.locks.take(tx, [declaration.queue]);
      await this.#count(tx);
      await runAsync(this.#rows.write(tx, changes, rules));
      if (wakes) this.#parts.locks.changed(tx, declaration.queue);
      await this.load(tx.rows);
      tx.ready(declaration.queue);
      tx.wrote();
    }
    this.#declarations.add(declaration, rules);
    tx.onUndo(() => this.#declarations.forget());
    tx.onCommit(() => this.#declarations.committed());
    return rules;
  }

  /** Whether everything that the job's definition declares is stored, and it has no limits. */
  isSilent({ declares }: NewJob): boolean {
    return (
      declares === undefined || (this.#declarations.isDeclared(declares) && this.#declarations.rulesOf(declares) !== undefined)
    );
  }

  isDeclared(declaration: Declaration): boolean {
    return this.#declarations.isDeclared(declaration);
  }

  /** Returns the `limits` columns of these jobs, or null if none has any. It stores declarations that are new. */
  async limitsOf(tx: Tx, jobs: readonly NewJob[]): Promise<(string | null)[] | null> {
    const own = new Map<Declaration, readonly number[]>();
    for (const { declares } of jobs) {
      if (declares !== undefined && !own.has(declares)) own.set(declares, await this.declare(tx, declares));
    }
    if (!this.view.hasLimits) return null;
    const texts = jobs.map(({ queue, declares, limitKeys }) => {
      const rules = this.view.rulesFor(queue, declares === undefined ? undefined : own.get(declares));
      return rules.length === 0 ? null : limitsText(rules, limitKeys ?? []);
    });
    return texts.every((text) => text === null) ? null : texts;
  }

  async #count(tx: Tx): Promise<void> {
    await this.#parts.counter.take(tx);
    const [[count]] = (await tx.rows<[number]>(this.#sql.count)) as [[number]];
    tx.assume("settings", count - 1, count);
    tx.onUndo(() => this.forget());
    this.#seen = count;
  }
}
