import { howMany, settle } from "../../../core/pipelines/budget.ts";
import { type Amount, NOTHING } from "../../../core/pipelines/cost.ts";
import type { Fate, LeaseRef } from "../../../core/jobs/lease.ts";
import type { Beginning } from "../../work.ts";
import { type Answer, type Script, type Settings, together, type Tx, wait } from "../script.ts";
import { type BuildSpend, isSame } from "./build-totals.ts";
import type { WorkItem } from "./item-batch.ts";
import type { WorkBatches } from "./work-batches.ts";

interface Start {
  place: number;
  item: WorkItem;
  estimate: Amount;
}

interface Parts {
  batches: WorkBatches;
  settings: Settings;
  settle: { fates(tx: Tx, leases: readonly LeaseRef[]): Answer<Fate[]> };
}

/** Reserves budget for attempts before they start, and saves the costs that they report. */
export class CostLedger {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** The locks of the items' queues are held. */
  *begin(tx: Tx, starts: readonly (LeaseRef & { estimate: Amount })[]): Script<Beginning[]> {
    const { batches, settings } = this.#parts;
    const answers = starts.map((): Beginning => "lost");
    const jobs = starts.map(({ job }) => job);
    const [totals, held] = yield* together(batches.totals.load(tx, [], jobs), batches.items.held(tx, starts));
    const reserved: { item: WorkItem; wanted: Amount }[] = [];
    const exhausted: string[] = [];
    for (const [build, group] of Map.groupBy(held, ({ item }) => item.build)) {
      const spend = totals.of(build);
      const asked = group.map(({ place, item }) => ({ place, item, estimate: (starts[place] as { estimate: Amount }).estimate }));
      const begun = begin(spend, asked);
      reserved.push(...begun.reserved);
      if (begun.isExhausted) exhausted.push(spend.queue);
      for (const [i, { place }] of asked.entries()) answers[place] = begun.answers[i] as Beginning;
    }
    yield* together(batches.items.reserve(tx, reserved), batches.totals.write(tx, totals));
    for (const queue of exhausted) yield* wait(settings.pause(tx, queue, true));
    return answers;
  }

  *saveCosts(tx: Tx, reports: readonly (LeaseRef & { cost: Amount })[]): Script<Fate[]> {
    const saved = yield* this.#parts.batches.items.saveCosts(tx, reports);
    if (saved.size === reports.length) return reports.map(() => "held");
    return yield* wait(this.#parts.settle.fates(tx, reports));
  }
}

interface Begun {
  /** One for each start. */
  answers: Beginning[];
  /** The reservations that change. */
  reserved: { item: WorkItem; wanted: Amount }[];
  /** No attempt of this build starts any more: its queue pauses. */
  isExhausted: boolean;
}

/** Decides which of these attempts of one build may start, in their order, and reserves their estimates in the build. */
function begin(spend: BuildSpend, starts: readonly Start[]): Begun {
  if (spend.state !== "ACTIVE") return { answers: starts.map(() => "pause"), reserved: [], isExhausted: false };
  // A caller that lost the first answer asks again; its estimate is reserved once.
  for (const { item } of starts) spend.ledger = settle(spend.ledger, item.estimate, NOTHING);
  const estimates = starts.map(({ estimate }) => estimate);
  const { start, ledger, next } = howMany(spend.ledger, estimates);
  spend.ledger = ledger;
  const reserved = starts.flatMap(({ item, estimate }, i) => {
    const wanted = i < start ? estimate : NOTHING;
    return isSame(item.estimate, wanted) ? [] : [{ item, wanted }];
  });
  const isExhausted = next.kind === "pause";
  if (isExhausted) spend.blocked = { reason: next.reason, refused: estimates[start] as Amount };
  return { answers: starts.map((_, i) => (i < start ? "start" : next.kind)), reserved, isExhausted };
}
