import { checkArtifactName } from "../artifacts/export-names.ts";
import type { ArtifactData } from "../artifacts/write.ts";
import type { Clock } from "../core/text/duration.ts";
import type { JobContext, StageContext } from "../core/pipelines/stage.ts";
import { type Amount, type Cost, NOTHING, plus, toAmount } from "../core/pipelines/cost.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import { checkName } from "../core/text/options.ts";
import { stepOf } from "../core/pipelines/work.ts";
import { type Log, said } from "../engine/log.ts";
import type { Task } from "./stage-runner.ts";
import type { Worksite } from "./worksite.ts";
import type { ClaimedFile } from "./sources/file-target.ts";
import type { Store } from "../store/store.ts";
import type { NamedArtifact } from "../store/work.ts";
import { Supersession } from "./expansion.ts";
import { workKey } from "./model.ts";

/** One attempt while its handler runs: what it costs, what it keeps, and whether its bytes are still those it was claimed for. */
export class Session {
  readonly meter: Meter;
  readonly artifacts: NamedArtifact[] = [];
  readonly #site: Worksite;
  readonly #task: Task;
  readonly #names = new Set<string>();
  #spoiled = false;
  readonly #file: ClaimedFile | null;

  constructor(site: Worksite, task: Task) {
    this.#site = site;
    this.#task = task;
    this.meter = site.meters.open(task.attempt, task.place.stage.name);
    this.#file = site.fileOf(task.traveller.target);
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
    const target = await new Supersession(this.#site, this.#task).during();
    // Its rows would be about bytes that are not there any more.
    this.#task.attempt.commit = undefined;
    this.#task.attempt.work = { cost: this.meter.total, result: null, target };
  }

  close(): void {
    const { work } = this.#task.attempt;
    if (work !== undefined) work.cost = this.meter.total;
    this.meter.closed = true;
    void this.#file?.dispose();
  }
}

export type HandedContext = StageContext<unknown, unknown, Record<string, unknown>>;

/** What a stage's handler sees: plain properties, so that it may be spread. */
export async function stageContext(
  task: Task,
  session: Session,
  job: JobContext<unknown>,
  site: Worksite,
): Promise<HandedContext> {
  const { place, trail, context, traveller } = task;
  const outputs: Record<string, unknown> = {};
  for (const name of place.stage.uses) {
    const step = stepOf(trail, name);
    if (step !== undefined) outputs[name] = step.output === "none" ? undefined : await site.reader.output(step);
  }
  const subject = await subjectOf(task, site);
  return {
    ...job,
    input: context.input,
    target: traveller.target,
    outputs,
    idempotencyKey: workKey(site.engine.store.databaseId, site.model.name, place.stage.name, subject),
    cost: (cost) => session.meter.add(cost),
    artifact: async (name, data) => {
      const named = checkName(name, "An artifact's name");
      // Before it is paid for.
      checkArtifactName(named);
      session.refuseTwice(named);
      const { hash, size } = await (await site.artifacts()).put(data as ArtifactData);
      return session.keep({ name: named, hash, size });
    },
  };
}

/** What the key for outside services is of. What is run anew is done anew outside, too. */
async function subjectOf({ scope, place: { stage }, context: { hash } }: Task, site: Worksite): Promise<string> {
  if (scope.reruns(stage.name)) return `${hash}:${scope.build.id}`;
  if (stage.remove === null && stage.kind !== "expand") return hash;
  // It was made before, and is made again because something else has taken its place since, or it was removed.
  const [found] = await site.engine.store.work.lookUp(site.model.name, [{ stage: stage.name, hash }]);
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
class Meter {
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
