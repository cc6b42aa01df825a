import type { Clock } from "../../core/clock.ts";
import { type Amount, type Cost, NOTHING, plus, toAmount } from "../../core/cost.ts";
import type { LeaseRef } from "../../core/lease.ts";
import type { Store } from "../../store/store.ts";
import type { Log } from "../log.ts";
import { said } from "../trouble.ts";

/** What a running attempt has reported is on the disk this soon; what ends sooner is written with its end. */
const SOON = 50;

/** Counts what attempts say that they cost, and writes it down while they run: after a crash somebody has to know it. */
export class Meters {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: Log;
  #unsaved = new Map<Meter, LeaseRef>();
  #saving = false;

  constructor(parts: { store: Store; clock: Clock; log: Log }) {
    this.#store = parts.store;
    this.#clock = parts.clock;
    this.#log = parts.log;
  }

  open(lease: LeaseRef, stage: string): Meter {
    return new Meter(`A cost of stage "${stage}"`, (meter) => {
      this.#unsaved.set(meter, lease);
      if (this.#saving) return;
      this.#saving = true;
      this.#clock.after(SOON, () => this.#save());
    });
  }

  #save(): void {
    this.#saving = false;
    const reports = [...this.#unsaved]
      .filter(([meter]) => !meter.closed)
      .map(([{ total }, { job, fence }]) => ({ job, fence, cost: total }));
    this.#unsaved = new Map();
    if (reports.length === 0) return;
    this.#store.work
      .saveCosts(reports)
      .catch((error: unknown) => this.#log.warn("costs were not written; they go with the attempt's end", said(error)));
  }
}

/** Of one attempt. */
export class Meter {
  total: Amount = NOTHING;
  /** The attempt is over: its end says what it cost. */
  closed = false;
  readonly #what: string;
  readonly #onChange: (meter: Meter) => void;

  constructor(what: string, onChange: (meter: Meter) => void) {
    this.#what = what;
    this.#onChange = onChange;
  }

  add(cost: Cost): void {
    this.total = plus(this.total, toAmount(cost, this.#what));
    if (!this.closed) this.#onChange(this);
  }
}
