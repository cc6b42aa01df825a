import { checkArtifactName } from "../artifacts/export-names.ts";
import type { ArtifactData } from "../artifacts/write.ts";
import { toJobError } from "../core/jobs/job.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import { type CostHistory, estimate } from "../core/pipelines/budget.ts";
import { type Amount, type Cost, NOTHING, plus, toAmount } from "../core/pipelines/cost.ts";
import { type JobContext, type StageContext, stageEstimate } from "../core/pipelines/stage.ts";
import { stepOf } from "../core/pipelines/work.ts";
import type { Clock } from "../core/text/duration.ts";
import { HoldfastError, isPassing, LeaseLostError } from "../core/text/errors.ts";
import { checkName } from "../core/text/options.ts";
import { type Attempt, Ending, failForGood } from "../engine/attempt.ts";
import type { Holdings } from "../engine/leases.ts";
import { type Log, said } from "../engine/log.ts";
import type { BuildRow } from "../store/builds.ts";
import type { Store } from "../store/store.ts";
import type { NamedArtifact } from "../store/work.ts";
import { RestartOnChange } from "./expansion.ts";
import { type StagePosition, workKey } from "./model.ts";
import type { PipelineRuntime } from "./pipeline-runtime.ts";
import type { ClaimedFile } from "./sources/file-target.ts";
import type { Task } from "./stage-runner.ts";

/** One attempt while its handler runs: what it costs, what it keeps, and whether its bytes are still those it was claimed for. */
export class StageAttempt {
  readonly cost: AttemptCost;
  readonly artifacts: NamedArtifact[] = [];
  readonly #runtime: PipelineRuntime;
  readonly #task: Task;
  readonly #names = new Set<string>();
  #spoiled = false;
  readonly #file: ClaimedFile | null;

  constructor(runtime: PipelineRuntime, task: Task) {
    this.#runtime = runtime;
    this.#task = task;
    this.cost = runtime.costs.open(task.attempt, task.place.stage.name);
    this.#file = runtime.fileOf(task.live.target);
  }

  /** Before it is stored: two at once must not both be. */
  refuseTwice(name: string): void {
    if (this.#names.has(name)) throw artifactTwice(name, this.#task.place.stage.name);
    this.#names.add(name);
  }

  keep(artifact: NamedArtifact): NamedArtifact {
    this.artifacts.push(artifact);
    return { ...artifact };
  }

  /** Other bytes were seen, where this process does not see it. */
  spoil(): void {
    this.#spoiled = true;
  }

  /** The last look before the commit. */
  async isUnchanged(): Promise<boolean> {
    if (this.#spoiled) return false;
    return this.#file === null || this.#file.recheck();
  }

  isBytesChanged(error: unknown): boolean {
    return this.#file !== null && error instanceof HoldfastError && error.code === "BYTES_CHANGED";
  }

  /** The file has other bytes by now: those get work of their own, and this is over. */
  async supersede(): Promise<void> {
    const target = await new RestartOnChange(this.#runtime, this.#task).during();
    // Its rows would be about bytes that are not there any more.
    this.#task.attempt.commit = undefined;
    this.#task.attempt.work = { cost: this.cost.total, result: null, target };
  }

  close(): void {
    const { work } = this.#task.attempt;
    if (work !== undefined) work.cost = this.cost.total;
    this.cost.closed = true;
    void this.#file?.dispose();
  }
}

export type HandedContext = StageContext<unknown, unknown, Record<string, unknown>>;

/** What a stage's handler sees: plain properties, so that it may be spread. */
export async function stageContext(
  task: Task,
  stageAttempt: StageAttempt,
  job: JobContext<unknown>,
  runtime: PipelineRuntime,
): Promise<HandedContext> {
  const { place, trail, context, live } = task;
  const outputs: Record<string, unknown> = {};
  for (const name of place.stage.uses) {
    const step = stepOf(trail, name);
    if (step !== undefined) outputs[name] = step.output === "none" ? undefined : await runtime.reader.output(step);
  }
  const subject = await subjectOf(task, runtime);
  return {
    ...job,
    input: context.input,
    target: live.target,
    outputs,
    idempotencyKey: workKey(runtime.engine.store.databaseId, runtime.model.name, place.stage.name, subject),
    cost: (cost) => stageAttempt.cost.add(cost),
    artifact: async (name, data) => {
      const named = checkName(name, "An artifact's name");
      // Before it is paid for.
      checkArtifactName(named);
      stageAttempt.refuseTwice(named);
      const { hash, size } = await (await runtime.artifacts()).put(data as ArtifactData);
      return stageAttempt.keep({ name: named, hash, size });
    },
  };
}

/** What the key for outside services is of. What is run anew is done anew outside, too. */
async function subjectOf({ scope, place: { stage }, context: { hash } }: Task, runtime: PipelineRuntime): Promise<string> {
  if (scope.reruns(stage.name)) return `${hash}:${scope.build.id}`;
  if (stage.remove === null && stage.kind !== "expand") return hash;
  // It was made before, and is made again because something else has taken its place since, or it was removed.
  const [found] = await runtime.engine.store.work.lookUp(runtime.model.name, [{ stage: stage.name, hash }]);
  return found == null ? hash : `${hash}:${found.key}`;
}

function artifactTwice(name: string, stage: string): HoldfastError {
  return new HoldfastError(
    "ARTIFACT_TWICE",
    `Stage "${stage}" keeps two artifacts named "${name}" of one target.`,
    "Give each artifact of a target a name of its own.",
  );
}

/** What a running attempt has reported is on the disk this soon; what ends sooner is written with its end. */
const SOON = 50;

/** Counts what attempts say that they cost, and writes it down while they run: after a crash somebody has to know it. */
export class CostRecorder {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: Log;
  #unsaved = new Map<AttemptCost, LeaseRef>();
  #saving = false;

  constructor(parts: { store: Store; clock: Clock; log: Log }) {
    this.#store = parts.store;
    this.#clock = parts.clock;
    this.#log = parts.log;
  }

  open(lease: LeaseRef, stage: string): AttemptCost {
    return new AttemptCost(`A cost of stage "${stage}"`, (cost) => {
      this.#unsaved.set(cost, lease);
      if (this.#saving) return;
      this.#saving = true;
      this.#clock.after(SOON, () => this.#save());
    });
  }

  #save(): void {
    this.#saving = false;
    const reports = [...this.#unsaved]
      .filter(([cost]) => !cost.closed)
      .map(([{ total }, { job, fence }]) => ({ job, fence, cost: total }));
    this.#unsaved = new Map();
    if (reports.length === 0) return;
    this.#store.work
      .saveCosts(reports)
      .catch((error: unknown) => this.#log.warn("costs were not written; they go with the attempt's end", said(error)));
  }
}

/** Of one attempt. */
class AttemptCost {
  total: Amount = NOTHING;
  /** The attempt is over: its end says what it cost. */
  closed = false;
  readonly #what: string;
  readonly #onChange: (cost: AttemptCost) => void;

  constructor(what: string, onChange: (cost: AttemptCost) => void) {
    this.#what = what;
    this.#onChange = onChange;
  }

  add(cost: Cost): void {
    this.total = plus(this.total, toAmount(cost, this.#what));
    if (!this.closed) this.#onChange(this);
  }
}

/** How long what is known of past costs is believed. */
const FRESH = 1_000;
/** Somebody else's end may leave room; where nothing is heard of it, it is asked again after this. */
const ASK_AGAIN = 250;

/** Sets money aside for an attempt before it starts; while there is none, it waits, or gives the work back. */
export class BudgetReserver {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #holdings: Holdings;
  readonly #pipeline: string;
  #costs: Promise<Record<string, CostHistory>> | null = null;
  #askedAt = 0;

  constructor(parts: { store: Store; clock: Clock; holdings: Holdings }, pipeline: string) {
    this.#store = parts.store;
    this.#clock = parts.clock;
    this.#holdings = parts.holdings;
    this.#pipeline = pipeline;
  }

  /** Returns when the attempt may start. */
  async begin(
    attempt: Attempt,
    build: BuildRow,
    place: StagePosition,
    context: { target: unknown; input: unknown },
  ): Promise<void> {
    const isLimited = build.budget.micros !== null || build.budget.tokens !== null;
    if (!isLimited && place.stage.estimate === null) return;
    const amount = await this.estimate(place, context).catch((error: unknown) => {
      // It would say the same again.
      throw isPassing(error) ? error : new Ending(failForGood(toJobError(error)));
    });
    const { job, fence, claimed } = attempt;
    for (;;) {
      const [answer] = await this.#store.work.begin([{ job, fence, estimate: amount }]);
      // To wait for money is no part of its work: its time begins when it does.
      if (attempt.lost === null) this.#holdings.prolong(attempt.slot, this.#clock.monotonic() + claimed.policy.timeout);
      if (answer === "start") return;
      if (answer === "lost") throw new LeaseLostError(claimed.id, "start");
      if (answer === "pause") throw new Ending({ kind: "released" });
      attempt.signal.throwIfAborted();
      await this.#change(attempt.signal);
    }
  }

  async estimate(place: StagePosition, context: { target: unknown; input: unknown }): Promise<Amount> {
    return (await this.knownEstimate(place, context)) ?? NOTHING;
  }

  /** What the stage says, else the mean of its past attempts; null: neither is there. */
  async knownEstimate({ stage }: StagePosition, context: { target: unknown; input: unknown }): Promise<Amount | null> {
    return stageEstimate(stage, context) ?? this.mean(stage.name);
  }

  /** What past attempts have cost, each; null while there are none. */
  async mean(stage: string): Promise<Amount | null> {
    const history = (await this.#history())[stage];
    return history === undefined || history.attempts === 0 ? null : estimate(null, history);
  }

  #history(): Promise<Record<string, CostHistory>> {
    const now = this.#clock.monotonic();
    if (this.#costs === null || now - this.#askedAt > FRESH) {
      this.#askedAt = now;
      this.#costs = this.#store.work.costs(this.#pipeline);
    }
    return this.#costs;
  }

  /** Until something was committed here, or a while has passed. */
  #change(signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const unlisten = this.#store.onChange(() => resolve(), { ownOnly: true });
    const cancel = this.#clock.after(ASK_AGAIN, resolve);
    signal.addEventListener("abort", () => resolve(), { once: true });
    return promise.finally(() => {
      unlisten();
      cancel();
    });
  }
}
