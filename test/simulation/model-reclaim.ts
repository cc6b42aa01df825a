import type { ProcessId } from "../../src/core/text/ids.ts";
import type { StaleLease } from "../../src/core/jobs/lease.ts";
import type { CleanedLocks } from "../../src/store/queues.ts";
import type { Judgement } from "../../src/store/recoveries.ts";
import type { Reclaimed } from "../../src/store/store.ts";
import { type Model, sayLease } from "./model.ts";
import { must, mustEqual } from "./violation.ts";

/** What is found of the dead and the late, and what becomes of it. */
export class ModelReclaim {
  readonly #model: Model;
  /** In all. */
  readonly recovered = { entries: 0, locks: 0 };

  constructor(model: Model) {
    this.#model = model;
  }

  /** The leases that a healer is shown. */
  stale(at: number, query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }, answer: readonly StaleLease[]): void {
    const stale = this.#model.running().filter(({ lease: { expiresAt, lease, holder } }) => {
      if (expiresAt <= at || (query.skewed && expiresAt > at + lease)) return true;
      return holder !== null && query.dead.includes(holder);
    });
    must(answer.length === Math.min(query.limit, stale.length), () => `${stale.length} leases are stale, ${answer.length} shown`);
    for (const shown of answer) {
      const job = stale.find((one) => one.jobKey === shown.job);
      must(job !== undefined, () => `${sayLease(shown)} is no stale lease`);
      const { fence, holder, expiresAt, lease } = job.lease;
      mustEqual(
        { ...shown },
        { job: shown.job, fence, holder, expiresAt, lease, left: expiresAt - at },
        `the stale lease of ${job.id}`,
      );
    }
  }

  reclaim(at: number, judgements: readonly Judgement[], answer: Reclaimed & { shortened: number }): void {
    const expected = { entries: 0, quarantined: 0, failed: 0, replaced: 0, shortened: 0 };
    for (const judgement of judgements) {
      const job = this.#model.judged(judgement);
      if (job === undefined) continue;
      if (judgement.verdict === "cut") {
        job.lease.expiresAt = at + job.lease.lease;
        expected.shortened++;
        continue;
      }
      this.#model.takeBack(at, job, { kind: judgement.verdict });
      expected.entries++;
      if (job.state === "quarantined") expected.quarantined++;
      if (job.state === "failed") expected.failed++;
    }
    this.recovered.entries += expected.entries;
    if (expected.entries > 0) this.#model.events.tell(at, "recovery.reclaimed");
    mustEqual(answer, expected, "what was reclaimed");
  }

  cleanLocks(at: number, { removed, shortened }: CleanedLocks): void {
    const answer = { removed: removed.toSorted(), shortened: shortened.toSorted() };
    mustEqual(answer, this.#model.locks.clean(at), "which locks were cleaned");
    this.recovered.locks += removed.length;
    if (removed.length > 0) this.#model.events.tell(at, "recovery.reclaimed");
  }

  unregister(id: ProcessId, answer: boolean): void {
    const holdsAny = this.#model.running().some(({ lease }) => lease.holder === id);
    mustEqual(answer, this.#model.processes.has(id) && !holdsAny, `forgetting process ${id}`);
    if (answer) this.#model.processes.delete(id);
  }
}
