import type { Keep, QueueSettings } from "../jobs/claiming.ts";
import { DEFAULT_ATTEMPTS_KEPT } from "../jobs/attempts.ts";
import { FINISHED_STATES, type FinishedState } from "../jobs/job.ts";
import { refillMs, type LimitRule } from "./limit.ts";

/** Settings and limits that a definition declares for its queue; the last declaration wins. */
export interface Declaration {
  queue: string;
  name: string;
  /** Set for an older process, whose declaration applies only if no newer process has declared anything. */
  old?: boolean;
  settings?: QueueSettings;
  limits: readonly LimitRule[];
}

export interface SetQueue extends QueueSettings {
  name: string;
  paused: boolean;
}

/** A stored limit. `job` is "" for a limit of the whole queue. */
export interface SetRule {
  id: number;
  queue: string;
  job: string;
  rule: LimitRule;
}

export class SettingsView {
  readonly queues: ReadonlyMap<string, SetQueue>;
  readonly rules: ReadonlyMap<number, SetRule>;
  readonly hasLimits: boolean;
  readonly longestRefillMs: number;
  readonly hasEvents: boolean;
  readonly hasRetention: boolean;
  /** Limits without a key, which hold for every job of the queue, whatever its definition says. */
  readonly #queueRules = new Map<string, number[]>();

  constructor(queues: Iterable<SetQueue>, rules: Iterable<SetRule>) {
    this.queues = new Map(Array.from(queues, (queue) => [queue.name, queue]));
    this.rules = new Map(Array.from(rules, (rule) => [rule.id, rule]));
    const set = [...this.queues.values()];
    this.hasEvents = set.some(({ events }) => events);
    this.hasRetention = set.some(({ keep }) => Object.keys(keep).length > 0);
    this.hasLimits = this.rules.size > 0;
    let longest = 0;
    for (const { id, queue, job, rule } of this.rules.values()) {
      if (rule.rate !== null) longest = Math.max(longest, refillMs(rule.rate));
      if (job === "" && !rule.keyed && isInForce(rule)) this.#queueRules.set(queue, [...this.queueRules(queue), id]);
    }
    this.longestRefillMs = longest;
  }

  isPaused(queue: string): boolean {
    return this.queues.get(queue)?.paused ?? false;
  }

  recordsEvents(queue: string): boolean {
    return this.hasEvents && (this.queues.get(queue)?.events ?? false);
  }

  keep(queue: string, state: FinishedState): Keep | undefined {
    return this.hasRetention ? this.queues.get(queue)?.keep[state] : undefined;
  }

  attemptsKept(queue: string): number {
    return this.queues.get(queue)?.attempts ?? DEFAULT_ATTEMPTS_KEPT;
  }

  rule(id: number): LimitRule {
    return this.rules.get(id)?.rule ?? UNLIMITED;
  }

  queueRules(queue: string): readonly number[] {
    return this.#queueRules.get(queue) ?? NONE;
  }

  rulesFor(queue: string, own: readonly number[] = NONE): readonly number[] {
    const ofQueue = this.hasLimits ? this.queueRules(queue) : NONE;
    return ofQueue.length === 0 ? own : [...own, ...ofQueue.filter((rule) => !own.includes(rule))];
  }
}

export const NO_SETTINGS = new SettingsView([], []);

const NONE: readonly number[] = [];
const UNLIMITED: LimitRule = { of: "job", position: 0, keyed: false, concurrency: null, rate: null };

/** Whether the rule still limits anything. A rule that its definition no longer has does not. */
function isInForce({ concurrency, rate }: LimitRule): boolean {
  return concurrency !== null || rate !== null;
}

/** What a store writes for a declaration. It then rechecks the counters of changed and dropped rules. */
export type SettingsChange =
  /** Jobs that finished before are backfilled from the first on. If `keep` is null, all jobs are kept. */
  | { kind: "set-queue"; name: string; events: boolean; keep: QueueSettings["keep"] | null; attempts?: number }
  | { kind: "add-rule"; at: number; queue: string; job: string; rule: LimitRule }
  | { kind: "set-rule"; id: number; rule: LimitRule }
  | { kind: "drop-rule"; id: number };

export interface DeclarationChanges {
  rules: number[];
  changes: SettingsChange[];
}

export function declarationChanges(
  view: SettingsView,
  { queue, name, settings, limits }: Declaration,
  old: boolean,
): DeclarationChanges {
  const changes: SettingsChange[] = [];
  const set = view.queues.get(queue);
  if (settings !== undefined && !(old && set !== undefined) && !isAlreadySet(set, settings)) {
    const keep = Object.keys(settings.keep).length === 0 ? null : settings.keep;
    const { events, attempts } = settings;
    changes.push({ kind: "set-queue", name: queue, events, keep, ...(attempts === undefined ? {} : { attempts }) });
  }
  const rules = limits.map((rule, at) => {
    const job = rule.of === "job" ? name : "";
    const known = findRule(view, queue, job, rule.position);
    if (known === undefined) changes.push({ kind: "add-rule", at, queue, job, rule });
    else if (!old && !isSameRule(known.rule, rule)) changes.push({ kind: "set-rule", id: known.id, rule });
    return known?.id ?? 0;
  });
  if (!old) {
    dropRules(view, changes, queue, name, limits.filter((rule) => rule.of === "job").length);
    if (settings !== undefined) dropRules(view, changes, queue, "", limits.filter((rule) => rule.of === "queue").length);
  }
  return { rules, changes };
}

function isAlreadySet(set: SetQueue | undefined, { events, keep, attempts }: QueueSettings): boolean {
  if ((set?.events ?? false) !== events || set?.attempts !== attempts) return false;
  return FINISHED_STATES.every((state) => {
    const was = set?.keep[state];
    const is = keep[state];
    return (was === undefined) === (is === undefined) && was?.age === is?.age && was?.count === is?.count;
  });
}

function findRule(view: SettingsView, queue: string, job: string, position: number): SetRule | undefined {
  for (const set of view.rules.values()) {
    if (set.queue === queue && set.job === job && set.rule.position === position) return set;
  }
  return undefined;
}

function isSameRule(a: LimitRule, b: LimitRule): boolean {
  return (
    a.keyed === b.keyed && a.concurrency === b.concurrency && a.rate?.starts === b.rate?.starts && a.rate?.per === b.rate?.per
  );
}

function dropRules(view: SettingsView, changes: SettingsChange[], queue: string, job: string, from: number): void {
  for (const { id, rule, ...of } of view.rules.values()) {
    if (of.queue === queue && of.job === job && rule.position >= from && isInForce(rule)) changes.push({ kind: "drop-rule", id });
  }
}

/** Remembers declarations. A committed one is not written again, because a newer process may have declared something else. */
export class DeclarationCache {
  /** False for a user's transaction, because this process never learns whether it commits. */
  readonly #canDeclare: boolean;
  readonly #committed = new WeakSet<Declaration>();
  #uncommitted: Declaration[] = [];
  #rules = new WeakMap<Declaration, readonly number[]>();

  constructor(options: { canDeclare: boolean }) {
    this.#canDeclare = options.canDeclare;
  }

  rulesOf(declaration: Declaration): readonly number[] | undefined {
    return this.#rules.get(declaration);
  }

  isOld(declaration: Declaration): boolean {
    return !this.#canDeclare || this.isDeclared(declaration);
  }

  isDeclared(declaration: Declaration): boolean {
    return declaration.old === true || this.#committed.has(declaration);
  }

  add(declaration: Declaration, rules: readonly number[]): void {
    this.#rules.set(declaration, rules);
    this.#uncommitted.push(declaration);
  }

  committed(): void {
    for (const declaration of this.#uncommitted) this.#committed.add(declaration);
    this.#uncommitted = [];
  }

  forget(): void {
    this.#rules = new WeakMap();
    this.#uncommitted = [];
  }
}
