import { rejectedFollowUp } from "../../../core/jobs/admission.ts";
import { attemptEnding } from "../../../core/jobs/attempts.ts";
import { EVENT_OF } from "../../../core/jobs/event.ts";
import { isFinished } from "../../../core/jobs/job.ts";
import type { LeaseRef, LeaseState } from "../../../core/jobs/lease.ts";
import { decide, hasBegun, isDelayed, type Next, type Outcome } from "../../../core/jobs/retry.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { slotOf } from "../../job-row.ts";
import { type EndedAttempt, heldAttempt, type RunningJob } from "../../sql/attempts.ts";
import { LeaseStates } from "../../sql/notes.ts";
import { type ReclaimedLease, runAsync } from "../../sql/script.ts";
import type { Added, NewJob, Settlement } from "../../store.ts";
import type { WorkEnd } from "../../work.ts";
import { dialectOf, named } from "../scripts.ts";
import { endedSql, HELD } from "../claims/leases.ts";
import { listOf, lists } from "../connection/driver.ts";
import { SettleSuccesses } from "./settle-successes.ts";
import type { Tx } from "../transactions/transaction.ts";
import { NotSingle, type SingleRoute } from "../transactions/write-queue.ts";
import type { FollowingJob, WorkBatch } from "../../sql/work/work-batch.ts";
import type { JobParts } from "../store-parts.ts";

export interface AttemptEnd extends LeaseRef {
  outcome: Outcome;
  /** If set, the lease must still end at this instant, or it is not the lease that was judged. */
  expiresAt?: number;
  isOwn?: boolean | undefined;
  work?: WorkEnd | undefined;
}

export type SettleResult = { next: Next; outcome: Outcome } | null;

type SettleParts = Pick<
  JobParts,
  "catalog" | "settings" | "limits" | "events" | "effects" | "enqueue" | "batches" | "attempts" | "dependents" | "cancel"
> & { random: () => number };

/** Ends attempts. Job, fence and `running` guard every write, so a late settle changes nothing. */
export class Settle {
  readonly states: LeaseStates;
  readonly #parts: SettleParts;
  readonly #successes: SettleSuccesses;
  readonly #sql: Record<"holders" | "hold" | "history" | "judged" | "move" | "dropCheckpoints", string>;

  constructor(s: string, parts: SettleParts) {
    this.#parts = parts;
    this.states = new LeaseStates(dialectOf(s));
    this.#successes = new SettleSuccesses(s, parts);
    const held = heldAttempt(dialectOf(s));
    const history = `
      select job.key, job.lane, job.policy, job.errors, job.crashes, job.expires_at as "expiresAt", job.priority, job.limits,
        ${held.columns} from ${held.from}
      where job.key = any($1::bigint[]) and coalesce(job.state, '') = 'running' order by job.key for update of job`;
    this.#sql = {
      holders: `select key, reserved from ${s}.jobs where reserved = any($1::text[])`,
      hold: `select 1 from ${s}.jobs where key = any($1::bigint[]) order by key for update`,
      history,
      // A locked row is being settled or renewed, or a user's transaction holds it. Its lease is judged later, without waiting.
      judged: `${history} skip locked`,
      move: `
        with moved as (
        update ${s}.jobs as job set
          state = asked.state, gate = asked.gate, run_at = coalesce(asked.run_at, job.run_at), attempt = asked.attempt,
          errors = asked.errors, crashes = asked.crashes, error = case when asked.state = 'succeeded' then null else coalesce(asked.error, job.error) end,
          output = asked.output, finished_at = asked.finished_at, expires_at = null, holder = null, worker = null
        from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::integer[], $7::integer[], $8::integer[],
          $9::text[], $10::text[], $11::bigint[])
          as asked (key, fence, state, gate, run_at, attempt, errors, crashes, error, output, finished_at)
        where ${HELD} returning job.fence),
        ${endedSql(s, "moved")}
        select 1 from moved`,
      dropCheckpoints: `update ${s}.notes set checkpoint = null where job = any($1::bigint[]) and checkpoint is not null`,
    };
  }

  /** Whether one statement can settle all of them, as far as this process knows. */
  isPlain(settlements: readonly Settlement[]): boolean {
    if (!this.#parts.settings.isKnown || this.#parts.settings.view.hasLimits || !settlements.every(isPlain)) return false;
    return !settlements.some(({ job }) => this.#parts.limits.isClaimed(job));
  }

  readonly single: SingleRoute<readonly Settlement[], LeaseState[]> = {
    call: (tx, batches) => {
      const all = batches.flat();
      const plain = plainOf(all);
      // Settings may have changed since the call.
      if (plain.length < all.length || !this.isPlain(all)) return null;
      return this.#successes.single(tx, plain, heldAll(batches));
    },
    recall: async (_rows, _outcome, batches) => heldAll(batches),
  };

  async plain(tx: Tx, settlements: readonly Settlement[]): Promise<LeaseState[]> {
    const plain = plainOf(settlements);
    const settled = plain.length === settlements.length ? await this.#successes.settle(tx, plain) : NONE;
    if (settled.size < settlements.length) throw new NotSingle();
    return settlements.map(() => "held");
  }

  async run(tx: Tx, settlements: readonly Settlement[]): Promise<LeaseState[]> {
    // An earlier try may have been rolled back, with the jobs that it had claimed.
    for (const settlement of settlements) settlement.continued = undefined;
    const late = settlements.every(isPlain) ? NONE : await this.#late(tx, settlements);
    const plain = plainOf(settlements).filter(({ job }) => !late.has(job));
    const quiet = plain.filter(({ job }) => !this.#parts.limits.isClaimed(job));
    const limited = plain.filter(({ job }) => this.#parts.limits.isLimited(job));
    const others = without(settlements, [...quiet, ...limited]);
    if (others.length > 0) await this.#lock(tx, [...limited, ...others]);
    else if (!this.#parts.settings.isKnown) await this.#parts.settings.at(tx);
    const locked = this.#parts.limits.lock(tx, this.#parts.limits.claimedIn(limited.map(({ job }) => job)));
    // Several statements follow, so this one locks the rows in the order of keys.
    if ([quiet, limited, others].filter(({ length }) => length > 0).length > 1)
      tx.rows(this.#sql.hold, listOf(settlements.map(({ job }) => job))).catch(() => {});
    const [quietly, freed] = await Promise.all([this.#successes.settle(tx, quiet), this.#settleLimited(tx, limited, locked)]);
    const done = new Set([...quietly, ...freed]);
    if (done.size === settlements.length) return settlements.map(() => "held");
    const ended = plain.filter(({ job }) => done.has(job));
    const left = without([...quiet, ...limited], ended);
    if (left.length > 0) await this.#lock(tx, left);
    const fates = await this.#each(tx, without(settlements, ended), late);
    return settlements.map((settlement) => fates.get(settlement) ?? "held");
  }

  async #settleLimited(tx: Tx, limited: readonly Settlement[], locked: Promise<void>): Promise<Set<JobKey>> {
    if (limited.length === 0) return new Set();
    const jobs = limited.map(({ job }) => job);
    const ending = this.#successes.settle(tx, limited, "limited");
    // Another job may have begun to wait for one of them after that statement's snapshot.
    const [ended, areAwaited] = await Promise.all([ending, runAsync(this.#parts.dependents.areAny(tx, jobs)), locked, tx.now()]);
    for (const queue of this.#parts.limits.claimedIn([...ended])) tx.ready(queue);
    await this.#parts.limits.free(tx, ended);
    const succeeded = Array.from(ended, (job) => ({ job, state: "succeeded" }) as const);
    if (areAwaited) await runAsync(this.#parts.dependents.follow(tx, await tx.now(), succeeded));
    return ended;
  }

  async reclaim(tx: Tx, leases: readonly ReclaimedLease[]): Promise<(Next | null)[]> {
    const endings = leases.map(({ kind, ...lease }) => ({ ...lease, outcome: { kind } }));
    return (await this.end(tx, endings)).map((ended) => ended && ended.next);
  }

  async end(tx: Tx, endings: readonly AttemptEnd[]): Promise<SettleResult[]> {
    if (endings.length === 0) return [];
    await this.#parts.settings.at(tx);
    const jobs = endings.map(({ job }) => job);
    await this.#parts.limits.lockOf(tx, jobs);
    const { ended, batch } = await this.#end(tx, endings);
    if (batch !== null) await runAsync(this.#parts.batches.close(tx, batch));
    return ended;
  }

  /** Ends attempts. The caller enqueues the jobs of `next`, and closes `batch`. */
  async #end(
    tx: Tx,
    endings: readonly AttemptEnd[],
  ): Promise<{ ended: SettleResult[]; next: Following[]; batch: WorkBatch | null }> {
    const [now, rows] = await Promise.all([tx.now(), this.#history(tx, endings)]);
    const held = endings.filter((ending) => isHeld(ending, rows.get(ending.job)));
    const ending = held.map(({ job, work }) => ({ job, lane: (rows.get(job) as RunningJob).lane, work }));
    const batch = await runAsync(this.#parts.batches.ending(tx, ending));
    const moves: Move[] = [];
    const ended = endings.map((ending): SettleResult => {
      const row = rows.get(ending.job);
      if (row === undefined || !isHeld(ending, row)) return null;
      rows.delete(ending.job);
      const outcome = (batch !== null && this.#untenable(batch, row, ending)) || ending.outcome;
      const { attempt, errors, crashes, policy } = row;
      const next = decide({ attempt, errors, crashes }, this.#parts.catalog.policy(policy), outcome, this.#parts.random());
      moves.push({ row, next, outcome, gate: isDelayed(next) ? "time" : null, ending });
      return { next, outcome };
    });
    await this.#limit(tx, moves);
    const next = batch === null ? [] : moves.flatMap((move) => this.#workOver(batch, now, move));
    const attempts = moves.flatMap((move) => this.#attemptOf(move));
    await Promise.all([
      runAsync(this.#parts.attempts.record(tx, now, attempts)),
      this.#move(tx, now, moves),
      batch && runAsync(this.#parts.batches.write(tx, batch)),
    ]);
    return { ended, next, batch };
  }

  #attemptOf({ row: held, outcome, next, ending: { expiresAt, isOwn = false } }: Move): EndedAttempt[] {
    if (outcome.kind === "succeeded") return [];
    const { settings, catalog } = this.#parts;
    const keep = settings.view.attemptsKept(catalog.lane(held.lane).queue);
    return [{ job: held.key, held, keep, ...attemptEnding(outcome, next, expiresAt !== undefined && !isOwn) }];
  }

  #untenable(batch: WorkBatch, { lane }: RunningJob, { job, outcome, work }: AttemptEnd): Outcome | undefined {
    if (outcome.kind !== "succeeded" || !this.#parts.batches.isPipelines(lane)) return undefined;
    return batch.refusal(job, work);
  }

  #workOver(batch: WorkBatch, now: number, { row, next, outcome, ending }: Move): Following[] {
    if (!this.#parts.batches.isPipelines(row.lane)) return [];
    const { work, expiresAt } = ending;
    if (outcome.kind === "succeeded") {
      const following = batch.succeeded(now, row.key, work);
      return following === null ? [] : [{ after: row.key, following }];
    }
    batch.ended(now, row.key, { outcome, next, by: expiresAt === undefined ? "holder" : "reclaimer", work });
    return [];
  }

  /** Returns the jobs whose key a follow-up of an earlier settlement wants, before the key is free. */
  async #late(tx: Tx, settlements: readonly Settlement[]): Promise<ReadonlySet<JobKey>> {
    const wanted = new Map<string, number>();
    for (const [i, { followUps = [] }] of settlements.entries()) {
      for (const { name, key } of followUps) {
        const slot = key === undefined ? undefined : slotOf(name, key);
        if (slot !== undefined && !wanted.has(slot)) wanted.set(slot, i);
      }
    }
    if (wanted.size === 0 || settlements.length === 1) return NONE;
    const held = await tx.rows<[JobKey, string]>(this.#sql.holders, listOf([...wanted.keys()]));
    const isLate = ([job, slot]: [JobKey, string]) =>
      settlements.findIndex((settlement) => settlement.job === job) > (wanted.get(slot) as number);
    return new Set(held.filter(isLate).map(([job]) => job));
  }

  async #lock(tx: Tx, settlements: readonly Settlement[]): Promise<void> {
    await this.#parts.settings.at(tx);
    const jobs = settlements.map(({ job }) => job);
    const followUps = settlements.flatMap(({ followUps }) => followUps ?? []);
    await this.#parts.limits.lockOf(tx, jobs, this.#parts.limits.queuesOf(followUps));
  }

  /** Settles in the given order, because a follow-up may take the id for which the next one is refused. */
  async #each(tx: Tx, settlements: readonly Settlement[], late: ReadonlySet<JobKey>): Promise<Map<Settlement, LeaseState>> {
    const fates = new Map<Settlement, LeaseState>();
    for (const batch of batchesOf(settlements, late)) {
      const outcomes = await Promise.all(batch.map((settlement) => this.#tenable(tx, settlement)));
      const endings = batch.map(({ job, fence, work }, i) => ({ job, fence, work, outcome: outcomes[i] as Outcome }));
      const { ended, next, batch: work } = await this.#end(tx, endings);
      const lost = batch.filter((_, i) => ended[i] === null);
      const why = await runAsync(this.states.of(tx, lost));
      for (const [i, settlement] of lost.entries()) fates.set(settlement, why[i] as LeaseState);
      for (const [i, settlement] of batch.entries())
        if (ended[i]?.outcome.kind !== "succeeded") settlement.decided = ended[i]?.next;
      const followUps = batch.flatMap((settlement, i) =>
        ended[i]?.outcome === settlement.outcome ? (settlement.followUps ?? []) : [],
      );
      if (followUps.length > 0) await this.#parts.enqueue.run(tx, followUps);
      if (work !== null && next.length > 0) await this.#continue(tx, batch, next, work);
      if (work !== null) await runAsync(this.#parts.batches.close(tx, work));
    }
    return fates;
  }

  async #continue(tx: Tx, settlements: readonly Settlement[], next: readonly Following[], work: WorkBatch): Promise<void> {
    const bySettled = new Map(settlements.map((settlement) => [settlement.job, settlement]));
    const jobs = next.map(({ following }) => following.job);
    const added = await this.#parts.enqueue.run(tx, jobs, work);
    for (const [i, { after, following }] of next.entries()) {
      const { claimed } = added[i] as Added;
      const { result, budget } = following;
      (bySettled.get(after) as Settlement).continued = claimed && { claimed, result, budget };
    }
  }

  async #tenable(tx: Tx, { outcome, followUps }: Settlement): Promise<Outcome> {
    if (outcome.kind !== "succeeded" || followUps === undefined || !followUps.some(isRisky)) return outcome;
    const refused = await this.#parts.enqueue.refused(tx, followUps);
    return refused === undefined ? outcome : rejectedFollowUp(refused);
  }

  async #history(tx: Tx, endings: readonly AttemptEnd[]): Promise<Map<JobKey, RunningJob>> {
    const history = endings.some(({ expiresAt }) => expiresAt === undefined) ? this.#sql.history : this.#sql.judged;
    const found = named<RunningJob>(await tx.rows(history, ...lists(endings, "job")));
    const { catalog } = this.#parts;
    const [lanes, policies] = [found.map(({ lane }) => lane), found.map(({ policy }) => policy)];
    await catalog.knowLanes(tx.rows, lanes);
    await catalog.knowPolicies(tx.rows, policies);
    return new Map(found.map((row) => [row.key, row]));
  }

  async #limit(tx: Tx, moves: readonly Move[]): Promise<void> {
    const limited = moves.flatMap((move) => (move.row.limits === null ? [] : [{ move, ...move.row, limits: move.row.limits }]));
    if (limited.length === 0) return;
    const gates = await this.#parts.limits.end(
      tx,
      limited.map((job) => ({
        ...job,
        began: hasBegun(job.move.outcome),
        back: job.move.next.state === "pending" && job.move.gate === null,
      })),
    );
    for (const [i, { move }] of limited.entries()) move.gate ??= gates[i] ?? null;
  }

  async #move(tx: Tx, now: number, moves: readonly Move[]): Promise<void> {
    if (moves.length === 0) return;
    const counts = ["attempt", "errors", "crashes"] as const;
    const rows = moves.map(({ row: { key, fence }, next, gate, outcome }) => ({
      ...next,
      key,
      fence,
      gate,
      runAt: isDelayed(next) ? now + next.delay : null,
      error: next.error && JSON.stringify(next.error),
      output: outcome.kind === "succeeded" ? outcome.output : null,
      finishedAt: isFinished(next.state) ? now : null,
    }));
    const values = lists(rows, "key", "fence", "state", "gate", "runAt", ...counts, "error", "output", "finishedAt");
    const dropped = moves.filter(({ next }) => next.dropCheckpoint).map(({ row }) => row.key);
    // The server runs them in this order. Awaited one by one, each would wait for the event loop.
    await Promise.all([
      tx.rows(this.#sql.move, ...values),
      dropped.length > 0 && tx.rows(this.#sql.dropCheckpoints, listOf(dropped)),
      this.#follow(tx, now, moves),
    ]);
    tx.wrote();
    for (const { row } of moves) tx.ready(this.#parts.catalog.lane(row.lane).queue);
    await this.#cancelReplaced(tx, moves);
  }

  async #follow(tx: Tx, now: number, moves: readonly Move[]): Promise<void> {
    const happened = moves.map(({ row: { key: job, lane }, next }) => ({ type: EVENT_OF[next.state], job, lane }));
    await this.#parts.events.recordIfEnabled(tx, happened);
    const finished = moves.flatMap(({ row: { key: job, lane }, next: { state } }) =>
      isFinished(state) ? [{ job, lane, state }] : [],
    );
    await this.#parts.effects.follow(tx, now, finished);
  }

  /** Cancels a job that would run again while another waits to replace it. The other one runs. */
  async #cancelReplaced(tx: Tx, moves: readonly Move[]): Promise<void> {
    const again = new Map(moves.filter(({ next }) => next.state === "pending").map(({ row, next }) => [row.key, next]));
    if (again.size === 0) return;
    const replaced = await runAsync(this.#parts.dependents.replaced(tx, [...again.keys()]));
    for (const job of replaced) (again.get(job) as Next).replaced = true;
    if (replaced.length > 0) await runAsync(this.#parts.cancel.quietly(tx, replaced));
  }
}

interface Following {
  after: JobKey;
  following: FollowingJob;
}

interface Move {
  row: RunningJob;
  next: Next;
  outcome: Outcome;
  gate: string | null;
  ending: AttemptEnd;
}

function isHeld({ fence, expiresAt }: AttemptEnd, row: RunningJob | undefined): boolean {
  return row !== undefined && row.fence === fence && (expiresAt ?? row.expiresAt) === row.expiresAt;
}

const NONE: ReadonlySet<JobKey> = new Set();

function isPlain({ outcome, followUps, commit, work }: Settlement): boolean {
  if (commit !== undefined) return false;
  return outcome.kind === "succeeded" && work === undefined && (followUps === undefined || followUps.length === 0);
}

/** Returns each job once, by key: transactions that lock in different orders would deadlock; statements find jobs by position. */
function plainOf(settlements: readonly Settlement[]): Settlement[] {
  const jobs = new Set<JobKey>();
  const plain = settlements.filter((settlement) => jobs.size < jobs.add(settlement.job).size && isPlain(settlement));
  return plain.sort((a, b) => a.job - b.job);
}

function heldAll(batches: readonly (readonly Settlement[])[]): LeaseState[][] {
  return batches.map((batch) => batch.map(() => "held"));
}

function without(settlements: readonly Settlement[], some: readonly Settlement[]): Settlement[] {
  const gone = new Set(some);
  return settlements.filter((settlement) => !gone.has(settlement));
}

function isRisky({ id, after }: NewJob): boolean {
  return id !== undefined || after !== undefined;
}

/** Splits into batches. A settlement whose follow-ups may be refused ends a batch, and a late one begins one. */
function batchesOf(settlements: readonly Settlement[], late: ReadonlySet<JobKey>): Settlement[][] {
  const batches: Settlement[][] = [[]];
  for (const settlement of settlements) {
    if (late.has(settlement.job)) batches.push([]);
    (batches.at(-1) as Settlement[]).push(settlement);
    if (settlement.followUps?.some(isRisky)) batches.push([]);
  }
  return batches.filter((batch) => batch.length > 0);
}
