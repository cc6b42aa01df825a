import { ArtifactWatch } from "../../work/artifact-watch.ts";
import { Turn } from "../builds/turn.ts";
import { Catalog } from "../catalog.ts";
import { Counter } from "../counter.ts";
import { Decisions } from "../limits/decisions.ts";
import { Endings } from "../settling/endings.ts";
import { Enqueue } from "../enqueue.ts";
import { Events, JobEvents } from "../news/events.ts";
import { Expiring } from "../settling/expiring.ts";
import { Limits } from "../limits/limits.ts";
import { QueueLocks } from "../limits/queue-locks.ts";
import { Settings } from "../settings.ts";
import { Tally } from "../settling/tally.ts";
import { Waits } from "../settling/waits.ts";
import { Sheets } from "../work/sheets.ts";
import type { Tx } from "./transaction.ts";

/** What it takes to put jobs in: over the store's own connection, or a user's. */
export class Intake {
  readonly catalog: Catalog;
  readonly settings: Settings;
  readonly tally: Tally;
  readonly events: Events;
  readonly waits: Waits;
  readonly jobEvents: JobEvents;
  readonly limits: Limits;
  readonly expiring: Expiring;
  readonly endings: Endings;
  readonly enqueue: Enqueue;
  readonly turn: Turn;
  /** What builds work on. */
  readonly sheets: Sheets;
  readonly #counter: Counter;

  /** `knows`: what is committed for sure, and need not be looked up again. */
  constructor(s: string, options: { speaks: boolean; random: () => number; knows?: Catalog; watch?: ArtifactWatch }) {
    const counter = (this.#counter = new Counter(s));
    const catalog = (this.catalog = options.knows?.copy(s, counter) ?? new Catalog(s, counter));
    const decisions = new Decisions(s);
    const locks = new QueueLocks(s, decisions);
    this.turn = new Turn(s);
    const settings = (this.settings = new Settings(s, { ...options, locks, decisions, counter }));
    const tally = (this.tally = new Tally(s, { apart: !options.speaks, random: options.random }));
    this.events = new Events(s);
    const waits = (this.waits = new Waits(s));
    const events = (this.jobEvents = new JobEvents(s, { catalog, settings, events: this.events }));
    const limits = (this.limits = new Limits(s, { catalog, settings, locks, decisions }));
    const expiring = (this.expiring = new Expiring(s, { catalog, settings, tally }));
    const sheets = (this.sheets = new Sheets(s, { catalog, settings, limits, watch: options.watch ?? new ArtifactWatch() }));
    const endings = (this.endings = new Endings(s, { catalog, tally, waits, limits, expiring, events, sheets }));
    const parts = { catalog, settings, limits, waits, endings, events, sheets };
    this.enqueue = new Enqueue(s, { ...parts, patient: !options.speaks });
  }

  /** What comes before everything else in a transaction: null when it is nothing. */
  first(tx: Tx, queues: readonly string[]): Promise<void> | null {
    const locked = this.limits.lockWanted(tx, queues);
    const turned = this.turn.takeWanted(tx);
    const held = this.#counter.holdWanted(tx);
    // From here on nothing is waited for that comes before it.
    if (turned !== null) tx.isLate = true;
    return locked === null && turned === null && held === null ? null : Promise.all([locked, turned, held]).then(() => {});
  }

  /** Others have changed what is known here, and what relied on it was undone. */
  forget(): void {
    this.#counter.missed();
    this.catalog.forgetCount();
    this.settings.forget();
  }

  /** The database has gone back: nothing of what is known is sure. */
  forgetAll(): void {
    this.catalog.forget();
    this.settings.forget();
    this.limits.forget();
  }
}
