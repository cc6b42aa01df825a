import type { ProcessId } from "../../src/core/text/ids.ts";
import { NO_COUNTS, type RecoveryCounts } from "../../src/core/recovery/recovery-report.ts";
import type {
  DeadProcess,
  OwnReport,
  Found,
  Judgement,
  Left,
  RecoveredProcess,
  Recovering,
  StoredReport,
} from "../../src/store/recoveries.ts";
import type { Model } from "./model.ts";
import { must, mustEqual } from "./violation.ts";

interface ModelReport {
  id: number;
  owner: ProcessId | null;
  named: Set<ProcessId>;
  counts: RecoveryCounts;
}

/** What is done about the dead: one report at a time, and in it exactly what was done. */
export class ModelRecoveries {
  readonly #model: Model;
  #open: ModelReport | null = null;
  #last = 0;

  constructor(model: Model) {
    this.#model = model;
  }

  begin({ dead, by }: Found, answer: Recovering | null): void {
    const entered = dead.map(({ id }) => id).filter((id) => this.#isEntered(id));
    if (entered.length === 0 && this.#open === null) return mustEqual(answer, null, "a recovery without a dead process");
    const open = this.#open;
    const isGone = open !== null && open.owner !== null && (entered.includes(open.owner) || !this.#isEntered(open.owner));
    if (entered.length === 0 && open !== null && open.owner !== null && open.owner !== by && !isGone) {
      return mustEqual(answer, null, "a recovery of another process");
    }
    must(answer !== null, "there is something to recover, and nothing is begun");
    if (open === null) {
      must(answer.report > this.#last, () => `reports are numbered on from ${this.#last}: ${answer.report}`);
      this.#last = answer.report;
    }
    const report = (this.#open ??= { id: answer.report, owner: by, named: new Set(), counts: NO_COUNTS });
    const continued = open !== null && open.owner !== by && (open.owner === null || isGone);
    if (report.owner === null || isGone) report.owner = by;
    for (const id of entered) {
      if (report.named.has(id)) continue;
      report.named.add(id);
      report.counts = addCounts(report.counts, { jobsRunningBeforeCrash: this.#inHand(id).length });
    }
    const { left, ...rest } = answer;
    mustEqual(rest, { report: report.id, owned: report.owner === by, continued }, "whose report it is");
    mustEqual(idsOf(left), this.#left(report), "who is to be buried");
  }

  /** The leases that are taken, for a caller that wants to judge that. */
  taken({ report, process, as }: { report: number; process: ProcessId; as: "crashed" | "interrupted" }): Judgement[] {
    if (!this.#isOpen(report, process)) return [];
    return this.#inHand(process).map(({ jobKey, lease }) => {
      const { fence, holder, expiresAt } = lease;
      return { job: jobKey as NonNullable<typeof jobKey>, fence, holder, expiresAt, lease: lease.lease, verdict: as };
    });
  }

  reclaimFrom(at: number, dead: DeadProcess, answer: RecoveredProcess): void {
    const { report, process, as: kind, limit, spent } = dead;
    const locks: string[] = [];
    const held = { builds: [], locks, orchestratorLocks: [] };
    const expected = { entries: 0, quarantined: 0, failed: 0, replaced: 0, ...held, isDone: true, isUnregistered: false };
    if (!this.#isOpen(report, process)) return mustEqual(answer, expected, "reclaiming what another process has reclaimed");
    expected.isUnregistered = true;
    const taken = this.taken(dead);
    must(taken.length <= limit, () => `${taken.length} jobs are more than the model reclaims at once`);
    for (const judgement of taken) {
      const job = this.#model.judged(judgement);
      must(job !== undefined, "what is in hand runs");
      const { fence } = job.lease;
      this.#model.takeBack(at, job, { kind });
      expected.entries++;
      if (job.state === "quarantined") expected.quarantined++;
      if (job.state === "failed") expected.failed++;
      locks.push(...this.#model.locks.freeBound(job, fence));
    }
    const freed = this.#model.locks.freeOf(process, at);
    for (const name of freed) this.#model.ready.add(name);
    locks.push(...freed);
    this.#model.processes.delete(process);
    locks.sort();
    mustEqual({ ...answer, locks: answer.locks.toSorted() }, expected, "what was reclaimed from the dead");
    const { entries } = expected;
    if (entries + locks.length > 0) this.#recovered(at, { entries, locks: locks.length });
    this.#add({
      jobsRecovered: expected.entries,
      jobsQuarantined: expected.quarantined,
      jobsResetToPending: expected.entries - expected.quarantined - expected.failed,
      locksReleased: locks.length,
      recoveryDurationMs: spent,
    });
  }

  close(at: number, { report, by, ending }: OwnReport, answer: { closed: StoredReport[]; left: Left[] }): void {
    const open = this.#open;
    const nothing = { closed: [], left: [] };
    if (open?.id !== report || open.owner !== by) return mustEqual(answer, nothing, "the end of another process's report");
    if (ending === null) {
      open.owner = null;
      return mustEqual(answer, nothing, "a report that its owner gives up");
    }
    const left = this.#left(open);
    mustEqual(idsOf(answer.left), left, "who is to be buried before a report is ended");
    if (left.length > 0) return mustEqual(answer.closed, [], "a report that names processes that are not buried");
    const [ended] = answer.closed;
    must(ended !== undefined, "a report is ended by its owner");
    const counts = Object.fromEntries(Object.keys(NO_COUNTS).map((name) => [name, ended[name as keyof RecoveryCounts]]));
    mustEqual(counts, { ...open.counts }, "what a report counts");
    const { state, crashed } = ended;
    mustEqual([state, crashed.length, ended.jobsPending], ["completed", open.named.size, ending.jobsPending], "a report");
    this.#open = null;
    this.#model.events.tell(at, "recovery.completed");
  }

  #recovered(at: number, { entries, locks }: { entries: number; locks: number }): void {
    this.#model.reclaims.recovered.entries += entries;
    this.#model.reclaims.recovered.locks += locks;
    this.#model.events.tell(at, "recovery.reclaimed");
  }

  #add(counts: Partial<RecoveryCounts>): void {
    if (this.#open !== null) this.#open.counts = addCounts(this.#open.counts, counts);
  }

  #isOpen(report: number, process: ProcessId): boolean {
    return this.#open?.id === report && this.#open.named.has(process) && this.#isEntered(process);
  }

  #isEntered(id: ProcessId): boolean {
    return this.#model.processes.has(id);
  }

  #inHand(process: ProcessId) {
    return this.#model.running().filter(({ lease }) => lease.holder === process);
  }

  #left({ named }: ModelReport): ProcessId[] {
    return [...named].filter((id) => this.#isEntered(id)).sort((a, b) => a - b);
  }
}

function idsOf(left: readonly Left[]): ProcessId[] {
  return left.map(({ id }) => id);
}

function addCounts(counts: RecoveryCounts, more: Partial<RecoveryCounts>): RecoveryCounts {
  const sum = { ...counts };
  for (const name of Object.keys(NO_COUNTS) as (keyof RecoveryCounts)[]) sum[name] += more[name] ?? 0;
  return sum;
}
