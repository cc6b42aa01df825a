import { lasts, type LimitRule } from "../../core/limit.ts";
import type { Keep, QueueSettings } from "../../core/queue.ts";
import type { FinishedState } from "../../core/job.ts";
import type { Declaration } from "../store.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";

interface Queue {
  paused: boolean;
  events: boolean;
  keep: QueueSettings["keep"];
}

interface QueueRow {
  name: string;
  paused: 0 | 1;
  events: 0 | 1;
  keep: string | null;
}

interface RuleRow {
  id: number;
  queue: string;
  job: string;
  position: number;
  keyed: 0 | 1;
  concurrency: number | null;
  starts: number | null;
  per: number | null;
}

const NOTHING: Queue = { paused: false, events: false, keep: {} };

/**
 * What is set for queues, and which limits there are. Read again only when the database's count of such changes has
 * moved, which every transaction sees anyway: where nobody sets anything, it costs nothing.
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
  readonly #dropRules: Statement;
  readonly #wakeCounters: Statement;
  #seen = -1;
  #queues = new Map<string, Queue>();
  #rules = new Map<number, RuleRow & { rule: LimitRule }>();
  /** Limits that hold for every job of a queue, whatever its own definition says. */
  #ofQueue = new Map<string, number[]>();
  #declared = new WeakMap<Declaration, readonly number[]>();
  /** Whether a word of this handle's counts. In a user's transaction it does not: whether that commits is never known. */
  readonly #speaks: boolean;
  /** What this process has said, for good: it counts no second time, since somebody newer may have spoken since. */
  readonly #said = new WeakSet<Declaration>();
  /** What was said in a transaction that is not committed yet. */
  #saying: Declaration[] = [];

  constructor(db: Connection, options: { speaks: boolean }) {
    this.#speaks = options.speaks;
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
    // A definition that has fewer limits than before: what is left of the others limits nothing.
    this.#dropRules = db.prepare(
      `update holdfast_limits set concurrency = null, starts = null, per = null
       where queue = :queue and job = :job and position >= :from and (concurrency is not null or starts is not null)
       returning id`,
    );
    this.#wakeCounters = db.prepare("update holdfast_counters set due_at = 0 where rule = ? and parked > 0");
  }

  /** Whether there are any limits at all. */
  get limited(): boolean {
    return this.#rules.size > 0;
  }

  /** Of all limits by rate, the longest time that one lasts. */
  get longest(): number {
    return this.#longest;
  }
  #longest = 0;

  /** Whether some queue asks for events. */
  get telling(): boolean {
    return this.#telling;
  }
  #telling = false;

  /** Whether some queue does not keep its finished jobs for ever. */
  get forgetting(): boolean {
    return this.#forgetting;
  }
  #forgetting = false;

  /** Called first by whoever relies on it; `settings` is the database's count of changes. */
  at(settings: number): this {
    if (settings !== this.#seen) this.#reload(settings);
    return this;
  }

  /** Outside of a transaction. */
  now(): this {
    return this.at(this.#changes());
  }

  /** After an undone transaction. */
  forget(): void {
    this.#seen = -1;
    this.#declared = new WeakMap();
    this.#saying = [];
  }

  isPaused(queue: string): boolean {
    return this.#of(queue).paused;
  }

  tells(queue: string): boolean {
    return this.#telling && this.#of(queue).events;
  }

  keep(queue: string, state: FinishedState): Keep | undefined {
    return this.#forgetting ? this.#of(queue).keep[state] : undefined;
  }

  /** Queues with something set, by name. */
  queues(): ReadonlyMap<string, Queue> {
    return this.#queues;
  }

  rule(id: number): LimitRule {
    return this.#rules.get(id)?.rule ?? UNLIMITED;
  }

  queueOfRule(id: number): string {
    return this.#rules.get(id)?.queue ?? "";
  }

  /** Limits without a key that hold for the whole queue. */
  ofQueue(queue: string): readonly number[] {
    return this.#ofQueue.get(queue) ?? [];
  }

  /** False when it is so already. */
  pause(tx: Tx, name: string, paused: boolean): boolean {
    if (this.isPaused(name) === paused) return false;
    this.#pause.runNamed({ name, paused: paused ? 1 : 0 });
    this.#changed(tx);
    return true;
  }

  /** The numbers of the declared limits, in their order. The first word of a process about a definition is written down. */
  declare(tx: Tx, declaration: Declaration): readonly number[] {
    const known = this.#declared.get(declaration);
    if (known !== undefined) return known;
    const { queue, name, settings, limits } = declaration;
    const old = declaration.old === true || !this.#speaks || this.#said.has(declaration);
    let changed = settings !== undefined && !(old && this.#queues.has(queue)) && this.#declareQueue(queue, settings);
    const ids = limits.map((rule) => {
      const { id, isNew } = this.#declareRule(queue, rule.of === "job" ? name : "", rule, old);
      changed ||= isNew;
      return id;
    });
    if (this.limited && !old) {
      const count = (of: "job" | "queue") => limits.filter((rule) => rule.of === of).length;
      if (this.#trim(queue, name, count("job"))) changed = true;
      if (settings !== undefined && this.#trim(queue, "", count("queue"))) changed = true;
    }
    if (changed) {
      this.#changed(tx);
      // More of what waits there may start now.
      tx.ready(queue);
    }
    this.#declared.set(declaration, ids);
    this.#saying.push(declaration);
    return ids;
  }

  /** Whether this process has said it, for good. */
  isSaid(declaration: Declaration): boolean {
    return declaration.old === true || this.#said.has(declaration);
  }

  /** After a commit. */
  committed(): void {
    for (const declaration of this.#saying) this.#said.add(declaration);
    this.#saying = [];
  }

  #declareQueue(name: string, settings: QueueSettings): boolean {
    const keep = Object.keys(settings.keep).length === 0 ? null : JSON.stringify(settings.keep);
    const old = this.#of(name);
    if (old.events === settings.events && JSON.stringify(old.keep) === (keep ?? "{}")) return false;
    this.#set.runNamed({ name, events: settings.events ? 1 : 0, keep, backfill: keep === null ? null : 0 });
    return true;
  }

  #declareRule(queue: string, job: string, rule: LimitRule, isOld: boolean): { id: number; isNew: boolean } {
    const { position, concurrency } = rule;
    const values = {
      keyed: rule.keyed ? 1 : 0,
      concurrency,
      starts: rule.rate?.starts ?? null,
      per: rule.rate?.per ?? null,
    };
    const known = [...this.#rules.values()].find((one) => one.queue === queue && one.job === job && one.position === position);
    if (known === undefined) {
      const { id } = this.#addRule.get<{ id: number }>({ queue, job, position, ...values }) as { id: number };
      return { id, isNew: true };
    }
    const same =
      known.keyed === values.keyed &&
      known.concurrency === concurrency &&
      known.starts === values.starts &&
      known.per === values.per;
    if (same || isOld) return { id: known.id, isNew: false };
    this.#setRule.runNamed({ id: known.id, ...values });
    this.#wakeCounters.run(known.id);
    return { id: known.id, isNew: true };
  }

  #trim(queue: string, job: string, from: number): boolean {
    const dropped = this.#dropRules.all<{ id: number }>({ queue, job, from });
    for (const { id } of dropped) this.#wakeCounters.run(id);
    return dropped.length > 0;
  }

  #changes(): number {
    return (this.#counted.row() as [number])[0];
  }

  #changed(tx: Tx): void {
    this.#count.run();
    this.now();
    tx.wrote();
  }

  #of(queue: string): Queue {
    return this.#queues.get(queue) ?? NOTHING;
  }

  #reload(settings: number): void {
    this.#queues = new Map(
      this.#allQueues.all<QueueRow>().map(({ name, paused, events, keep }) => {
        const kept = keep === null ? {} : (JSON.parse(keep) as QueueSettings["keep"]);
        return [name, { paused: paused === 1, events: events === 1, keep: kept }];
      }),
    );
    this.#rules = new Map(this.#allRules.all<RuleRow>().map((row) => [row.id, { ...row, rule: toRule(row) }]));
    this.#longest = Math.max(0, ...[...this.#rules.values()].map(({ rule }) => (rule.rate === null ? 0 : lasts(rule.rate))));
    this.#ofQueue = new Map();
    for (const { id, queue, job, rule } of this.#rules.values()) {
      if (job === "" && !rule.keyed && (rule.concurrency !== null || rule.rate !== null))
        this.#ofQueue.set(queue, [...this.ofQueue(queue), id]);
    }
    const queues = [...this.#queues.values()];
    this.#telling = queues.some(({ events }) => events);
    this.#forgetting = queues.some(({ keep }) => Object.keys(keep).length > 0);
    this.#seen = settings;
  }
}

const UNLIMITED: LimitRule = { of: "job", position: 0, keyed: false, concurrency: null, rate: null };

function toRule({ job, position, keyed, concurrency, starts, per }: RuleRow): LimitRule {
  const rate = starts === null || per === null ? null : { starts, per };
  return { of: job === "" ? "queue" : "job", position, keyed: keyed === 1, concurrency, rate };
}
