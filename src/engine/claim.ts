import { hash, randomUUID } from "node:crypto";
import { type Clock, type Duration, toMillis } from "../core/text/duration.ts";
import { type CommitRows, type Job, toJobError } from "../core/jobs/job.ts";
import { checkBoolean, checkName, checkOneOf, limitArguments, refuseUnknown } from "../core/text/options.ts";
import { HoldfastError, LeaseLostError } from "../core/text/errors.ts";
import type { Fence, JobKey } from "../core/text/ids.ts";
import { fromJson, toJson } from "../core/text/json.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import type { Outcome } from "../core/jobs/retry.ts";
import { parse } from "../core/jobs/run-options.ts";
import { checkOwnName } from "../core/pipelines/work.ts";
import { type Definition, definitionOf, type JobDef } from "./definition.ts";
import type { Engine } from "./engine.ts";
import { lossReason, type LossReason, NEVER } from "./leases.ts";
import { abortReason, checkCommit, outcomeOf, unreadableOutcome } from "./attempt.ts";
import { COMMIT_LIMIT_MS, CommitRowsFailed } from "../store/jobs.ts";
import type { Claimed, ClaimSource, Settlement } from "../store/store.ts";

const DEFAULT_LEASE_MS = 30_000;
const MAX_WAIT_MS = 5_000;
/** Pause before a job that is ready is claimed again: a suspect is ready, too, and cannot be claimed beside another one. */
const READY_RETRY_MS = 50;

export interface ClaimOptions {
  /** Name of the claimer, shown by `status`. */
  worker: string;
  /** How long the claim is valid without renewal. Default: the definition's, else "30s". */
  lease?: Duration;
  /** "auto": renewed while this process lives. "manual": reclaimed after its lease unless `renew` is called. Default: "manual". */
  renew?: "auto" | "manual";
  /** True: hold the queue's lock with the claim, so that no other process claims from the queue. Default: false. */
  exclusive?: boolean;
  /** How long to wait for a job. Default: 0. */
  wait?: Duration;
}

/** A job that the caller has claimed. Disposing of the claim releases the job, unless it was settled. */
export interface Claim<In = unknown> extends AsyncDisposable {
  readonly job: Job<In>;
  readonly signal: AbortSignal;
  renew(lease?: Duration): Promise<void>;
  /** Records a success. `commit` writes your rows in the same transaction; if it throws, nothing commits and the claim lasts. */
  succeed(output?: unknown, options?: { commit?: CommitRows }): Promise<void>;
  fail(error: unknown, options?: { retry?: boolean; delay?: Duration }): Promise<void>;
  release(): Promise<void>;
}

export interface AnyVersion {
  anyVersionOf: string;
}

export interface ClaimHandle {
  refuseClosed: () => void;
  over: AbortSignal;
  /** False: the caller uses only the claim's token, so its `signal` is not kept up to date. Default: true. */
  isWatched?: boolean;
}

export async function claimByHand<In>(
  engine: Engine,
  from: string | JobDef<In> | AnyVersion,
  given: ClaimOptions,
  handle: ClaimHandle,
): Promise<Claim<In> | null> {
  const def = typeof from === "string" || isAnyVersion(from) ? null : definitionOf(from, "hf.claim");
  // Programs without types may leave the options out.
  const options: Partial<ClaimOptions> = given === undefined ? {} : given;
  refuseUnknown(options, ["worker", "lease", "renew", "exclusive", "wait"], "claim");
  const lease = options.lease === undefined ? (def?.lease ?? DEFAULT_LEASE_MS) : leaseOf(options.lease);
  const { renew = "manual", exclusive = false } = options;
  checkOneOf(renew, ["auto", "manual"], "renew");
  checkBoolean(exclusive, "exclusive");
  const source: ClaimSource = { ...(def === null ? sourceOf(from) : { name: def.name, version: def.version }), lease };
  const worker = checkName(options.worker, "worker");
  const wait = options.wait === undefined ? 0 : toMillis(options.wait, "wait");
  const until = engine.clock.monotonic() + wait;
  engine.requireKeeper();
  // The job may come from a process that dies while the caller waits, or from the next tick of a schedule.
  if (wait > 0) engine.janitor.start();
  if (wait > 0) engine.scheduler.start();
  for (;;) {
    const claim = await tryOnce(engine, source, def, worker, { ...options, isWatched: handle.isWatched ?? true });
    if (claim !== null && !handle.over.aborted) return claim as unknown as Claim<In>;
    await claim?.release();
    const left = until - engine.clock.monotonic();
    if (left > 0 && !handle.over.aborted) await waitForChange(engine, source, left, handle.over);
    handle.refuseClosed();
    if (left <= 0 || handle.over.aborted) return null;
  }
}

function isAnyVersion(from: unknown): from is AnyVersion {
  return typeof from === "object" && from !== null && "anyVersionOf" in from;
}

function sourceOf(from: unknown): { queue: string } | { name: string } {
  if (typeof from === "string") return { queue: checkOwnName(from, "The queue") };
  return { name: checkOwnName((from as AnyVersion).anyVersionOf, "The name") };
}

export function leaseOf(given: Duration, what = "lease"): number {
  const lease = toMillis(given, what);
  if (lease >= 1) return lease;
  throw new HoldfastError("DURATION_INVALID", "The lease must be longer than 0 ms.", 'Give a lease, e.g. "30s".');
}

async function tryOnce(
  engine: Engine,
  source: ClaimSource,
  def: Definition | null,
  worker: string,
  options: Partial<ClaimOptions> & { isWatched: boolean },
): Promise<HandClaim | null> {
  const auto = options.renew === "auto";
  if (auto) await engine.alertKeeper();
  if (auto && engine.leaseTable.room === 0) {
    throw new HoldfastError(
      "TOO_MANY_CLAIMS",
      "This process already holds as many leases as it can renew.",
      "Settle or release some claims first.",
    );
  }
  for (;;) {
    await engine.janitor.reclaimBeforeClaim();
    await engine.scheduler.check();
    const before = engine.clock.monotonic();
    const [claimed] = await engine.store.claim({
      from: [source],
      max: 1,
      holder: auto ? engine.self : null,
      worker,
      ...(options.exclusive ? { exclusive: randomUUID() } : {}),
    });
    if (claimed === undefined) return null;
    const job = await engine.store.queries.get(claimed.id);
    if (job === null) return null;
    const refused = def === null ? null : await findMisfit(def, claimed);
    if (refused === null) return new HandClaim(engine, claimed, job, { auto, before, isWatched: options.isWatched });
    await engine.store.settle([{ job: claimed.job, fence: claimed.fence, outcome: refused }]);
    engine.minutes.countClaim(job, { outcome: refused });
  }
}

/** Returns the outcome that quarantines a job whose stored input the definition's schema no longer accepts; else null. */
async function findMisfit(def: Definition, claimed: Claimed): Promise<Outcome | null> {
  if (def.input === undefined) return null;
  try {
    await parse(def.input, fromJson(claimed.input), `The stored input of job ${claimed.id}`);
    return null;
  } catch (error) {
    return unreadableOutcome(error);
  }
}

async function waitForChange(engine: Engine, source: ClaimSource, most: number, over: AbortSignal): Promise<void> {
  const { promise: changed, resolve } = Promise.withResolvers<void>();
  const onAbort = () => resolve();
  // A caller waits for this, so the process must stay alive.
  const stay = setInterval(() => {}, 2 ** 30);
  over.addEventListener("abort", onAbort, { once: true });
  // It listens before it reads the outlook: an enqueue may have shared the commit of the claim that found nothing.
  const stop = engine.store.onChange(() => resolve());
  let cancel: (() => void) | undefined;
  try {
    const { ready, nextIn } = await engine.store.outlook([source]);
    const due = ready ? READY_RETRY_MS : nextIn === null ? MAX_WAIT_MS : Math.max(1, nextIn);
    cancel = engine.clock.after(Math.min(most, due, MAX_WAIT_MS), resolve);
    if (!over.aborted) await changed;
  } finally {
    cancel?.();
    stop();
    over.removeEventListener("abort", onAbort);
    clearInterval(stay);
  }
}

class HandClaim implements Claim {
  static {
    limitArguments(this.prototype, "claim", { renew: 1, succeed: 2, fail: 2, release: 0 });
  }

  readonly job: Job;
  readonly #engine: Engine;
  readonly #claimed: Claimed;
  readonly #slot: number | null;
  readonly #controller = new AbortController();
  readonly #unwatch: () => void;
  #lease: number;
  #ended: "settled" | LossReason | null = null;

  constructor(engine: Engine, claimed: Claimed, job: Job, how: { auto: boolean; before: number; isWatched: boolean }) {
    this.#engine = engine;
    this.#claimed = claimed;
    this.#lease = claimed.lease;
    this.job = job;
    this.#slot = how.auto ? this.#addLease(how.before) : null;
    this.#unwatch = how.auto || !how.isWatched ? () => {} : watchLease(engine, claimed, (code) => this.#lose(code));
  }

  get ref(): LeaseRef {
    return { job: this.#claimed.job, fence: this.#claimed.fence };
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  async renew(lease?: Duration): Promise<void> {
    const millis = lease === undefined ? this.#claimed.lease : leaseOf(lease);
    this.#rejectEnded("renewal");
    const [state] = await this.#engine.store.renew([{ job: this.#claimed.job, fence: this.#claimed.fence, lease: millis }]);
    if (state !== "held") this.#rejectLost(lossReason(state), "renewal");
    this.#lease = millis;
  }

  async succeed(output?: unknown, options: { commit?: CommitRows } = {}): Promise<void> {
    refuseUnknown(options, ["commit"], "claim.succeed");
    const outcome: Outcome = { kind: "succeeded", output: toJson(output, "The output") };
    if (options.commit === undefined) return this.#settle(outcome, "success");
    const commit = [checkCommit(options.commit)];
    // Nothing else renews the lease while the callback runs.
    if (this.#slot === null) await this.renew(Math.max(this.#lease, 2 * COMMIT_LIMIT_MS));
    await this.#settle(outcome, "success", commit);
  }

  async fail(error: unknown, options: { retry?: boolean; delay?: Duration } = {}): Promise<void> {
    refuseUnknown(options, ["retry", "delay"], "claim.fail");
    if (options.retry !== undefined) checkBoolean(options.retry, "retry");
    await this.#settle(failureOf(error, options, this.#engine.clock), "failure");
  }

  async release(): Promise<void> {
    await this.#settle({ kind: "released" }, "release");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#ended !== null) return;
    await this.release().catch((error: unknown) => {
      if (!(error instanceof LeaseLostError)) throw error;
    });
  }

  #lose(reason: LossReason): void {
    if (this.#ended !== null) return;
    this.#ended = reason;
    this.#unwatch();
    this.#controller.abort(abortReason(reason === "GIVEN_BACK" ? "LEASE_LOST" : reason, this.job.id));
  }

  #addLease(before: number): number {
    const slot = this.#engine.hold(this.#claimed, { claimed: this.#claimed, lose: (reason) => this.#lose(reason) }, before);
    // A claim by hand has no timeout: its holder may keep it as long as this process lives.
    this.#engine.leaseTable.start(slot, NEVER);
    this.#engine.rescheduleKeeper();
    return slot;
  }

  async #settle(outcome: Outcome, what: string, commit?: CommitRows[]): Promise<void> {
    this.#rejectEnded(what);
    const settlement: Settlement = { ...this.ref, outcome, commit };
    const [state] = await this.#engine.store.settle([settlement]).catch((error: unknown) => {
      throw error instanceof CommitRowsFailed ? error.cause : error;
    });
    if (state !== "held") return this.#rejectLost(lossReason(state), what);
    this.#ended = "settled";
    this.#engine.minutes.countClaim(this.job, settlement);
    this.#unwatch();
    if (this.#slot !== null) this.#engine.release(this.#slot);
  }

  #rejectEnded(what: string): void {
    if (this.#ended === null) return;
    if (this.#ended === "settled") {
      throw new HoldfastError("ALREADY_SETTLED", `Job ${this.job.id} was settled by this claim already.`, "Settle a claim once.");
    }
    throw new LeaseLostError(this.job.id, what);
  }

  #rejectLost(code: LossReason, what: string): never {
    if (this.#ended === null && this.#slot !== null) this.#engine.release(this.#slot);
    this.#lose(code);
    throw new LeaseLostError(this.job.id, what);
  }
}

function failureOf(error: unknown, options: { retry?: boolean; delay?: Duration }, clock: Clock): Outcome {
  let outcome = outcomeOf(error, clock);
  if (options.retry !== undefined || options.delay !== undefined) outcome = { kind: "error", error: toJobError(error) };
  if (outcome.kind === "error" && options.retry === false) outcome.retry = false;
  if (outcome.kind === "error" && options.delay !== undefined) outcome.delay = toMillis(options.delay, "delay");
  return outcome;
}

/** Inspects a lease after each commit: nothing renews a lease held by hand, so nothing else would notice its loss. */
function watchLease(engine: Engine, lease: Claimed, lose: (reason: LossReason) => void): () => void {
  let inspecting = false;
  return engine.store.onChange(() => {
    if (inspecting) return;
    inspecting = true;
    engine.store
      .inspect([lease])
      .then(([state]) => {
        if (state !== "held") lose(lossReason(state));
      })
      .catch(() => {})
      .finally(() => (inspecting = false));
  });
}

export interface HeldClaim {
  readonly id: string;
  renew(lease: Duration): Promise<{ leaseExpiresAt: number }>;
  succeed(output?: unknown): Promise<void>;
  fail(error: unknown, options?: { retry?: boolean; delay?: Duration }): Promise<void>;
  release(): Promise<void>;
}

/** Encodes the attempt, so that a late caller settles nothing, and a checksum with the database, so that no other accepts it. */
export function claimToken(engine: Engine, claim: Claim): string {
  const { job, fence } = (claim as HandClaim).ref;
  const right = `${job.toString(32)}.${fence.toString(32)}.${encode(claim.job.id)}`;
  return `${right}.${checksum(engine, right)}`;
}

/** Returns the claim of a token. Its first call tells whether the lease is still held. */
export function claimOfToken(engine: Engine, token: string): HeldClaim {
  const { lease, id } = parseToken(engine, token);
  const settle = async (outcome: Outcome, what: string) => {
    const settlement: Settlement = { ...lease, outcome };
    // The job is read only for the counts, so the settle does not wait for the read, which may fail.
    const claimed = engine.store.queries.get(id).catch(() => null);
    const [state] = await engine.store.settle([settlement]);
    if (state !== "held") throw await lostClaim(engine, id, what);
    const job = await claimed;
    if (job !== null) engine.minutes.countClaim(job, settlement);
  };
  return {
    id,
    async renew(given) {
      const millis = leaseOf(given);
      const [state] = await engine.store.renew([{ ...lease, lease: millis }]);
      if (state !== "held") throw await lostClaim(engine, id, "renewal");
      return { leaseExpiresAt: engine.clock.now() + millis };
    },
    succeed: async (output) => settle({ kind: "succeeded", output: toJson(output, "The output") }, "success"),
    fail: async (error, options = {}) => settle(failureOf(error, options, engine.clock), "failure"),
    release: () => settle({ kind: "released" }, "release"),
  };
}

/** Tells a script that settles its claim twice how the job ended, under the code LEASE_LOST that scripts know already. */
async function lostClaim(engine: Engine, id: string, what: string): Promise<HoldfastError> {
  const state = (await engine.store.queries.get(id))?.state;
  if (state !== "succeeded" && state !== "failed") return new LeaseLostError(id, what);
  return new HoldfastError(
    "LEASE_LOST",
    `Job ${id} is already settled (${state}), so this ${what} was rejected.`,
    "Settle a claim once. If this claim did not settle the job, its lease was lost: `holdfast jobs show` shows the outcome.",
  );
}

function parseToken(engine: Engine, token: string): { lease: LeaseRef; id: string } {
  const [, right, job, fence, id, sealed] =
    /^(([0-9a-v]{1,11})\.([0-9a-v]{1,11})\.([\w%~-]+))\.([0-9a-f]{12})$/.exec(token) ?? [];
  if (right === undefined || sealed !== checksum(engine, right)) {
    throw new HoldfastError(
      "CLAIM_INVALID",
      `"${token}" is not a claim of this database.`,
      "Give the whole claim that `holdfast claim` printed, and the same --db.",
    );
  }
  const lease = { job: Number.parseInt(job as string, 32) as JobKey, fence: Number.parseInt(fence as string, 32) as Fence };
  return { lease, id: decodeURIComponent(id as string) };
}

/** Detects typing mistakes and other databases. It is not secret, because a process that can write the file can do anything. */
function checksum(engine: Engine, right: string): string {
  return hash("sha256", `${engine.store.databaseId} ${right}`).slice(0, 12);
}

/** Escapes characters that mean something to a shell, or end a part. */
function encode(id: string): string {
  return encodeURIComponent(id).replace(/[.!'()*]/g, (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`);
}
