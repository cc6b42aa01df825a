import { parseGeneratedId } from "../../src/core/text/ids.ts";
import { type FinishedState, isFinished, type JobState } from "../../src/core/jobs/job.ts";
import type { Enqueued, NewJob } from "../../src/store/store.ts";
import type { Model } from "./model.ts";
import { ModelJob } from "./model-job.ts";
import { must, mustEqual } from "./violation.ts";

/** Which jobs are accepted, which are there already, and which cannot be. */
export class ModelEnqueue {
  readonly #model: Model;
  /** Whose job an id was or is: chosen ones for ever, made ones as long as their job. */
  readonly owners = new Map<string, string>();
  /** How pruned jobs with chosen ids have ended. */
  readonly #ends = new Map<string, FinishedState>();
  readonly #generated = new Set<string>();
  #seq = 0;

  constructor(model: Model) {
    this.#model = model;
  }

  enqueue(at: number, jobs: readonly NewJob[], answers: readonly Enqueued[], whole: boolean): void {
    const refused = whole ? this.refused(jobs) : undefined;
    if (refused !== undefined) return mustEqual(answers, [refused], "a batch that is whole or nothing");
    must(answers.length === jobs.length, "each enqueued job has an answer");
    const aliases = new Map<string, string>();
    for (const [i, job] of jobs.entries()) {
      const answer = answers[i] as Enqueued;
      const known = this.#known(job, aliases);
      if (known === undefined) this.#accept(at, job, answer, aliases);
      else mustEqual(answer, known, `enqueue of ${job.name} with id ${job.id} and key ${job.key}`);
    }
  }

  /** The follow-ups of an attempt, which have no answers. */
  followUp(at: number, jobs: readonly NewJob[]): void {
    const aliases = new Map<string, string>();
    for (const job of jobs) {
      const id = job.id ?? job.followUpId;
      must(id !== undefined, "a follow-up has an id before it is committed");
      if (this.#known(job, aliases) === undefined) this.#accept(at, job, { id, duplicate: false }, aliases);
    }
  }

  /** The first whose id belongs to another name, be it one of the same batch, or whose upstream is unknown. */
  refused(jobs: readonly NewJob[]): Enqueued | undefined {
    const owners = new Map<string, string>();
    for (const job of jobs) {
      const missing = job.after?.find((id) => !owners.has(id) && this.#stateOf(id) === undefined);
      if (missing !== undefined) return { id: missing, missing: true };
      const id = job.id ?? job.followUpId;
      if (id === undefined) continue;
      const owner = this.owners.get(id) ?? owners.get(id) ?? job.name;
      if (owner !== job.name) return { id, taken: owner };
      owners.set(id, job.name);
    }
    return undefined;
  }

  /** Its job is pruned. */
  forget(job: ModelJob): void {
    if (job.isChosen) this.#ends.set(job.id, job.state as FinishedState);
    else this.owners.delete(job.id);
  }

  #known(job: NewJob, aliases: Map<string, string>): Enqueued | undefined {
    const known = this.#same(job) ?? this.#missing(job, aliases);
    // A job that comes after a job that is there already under another id comes after that one.
    const own = job.id ?? job.followUpId;
    if (known !== undefined && own !== undefined && ("duplicate" in known || job.id === undefined)) aliases.set(own, known.id);
    return known;
  }

  #same(job: NewJob): Enqueued | undefined {
    const owner = job.id === undefined ? undefined : this.owners.get(job.id);
    if (job.id !== undefined && owner !== undefined) {
      return owner === job.name ? { id: job.id, duplicate: true } : { id: job.id, taken: owner };
    }
    const same = job.key === undefined ? undefined : this.#model.unfinishedOf(job.name, job.key);
    return same && { id: same.id, duplicate: true };
  }

  #missing(job: NewJob, aliases: Map<string, string>): Enqueued | undefined {
    const id = job.after?.map((one) => aliases.get(one) ?? one).find((one) => this.#stateOf(one) === undefined);
    return id === undefined ? undefined : { id, missing: true };
  }

  #accept(at: number, job: NewJob, answer: Enqueued, aliases: Map<string, string>): void {
    must("duplicate" in answer && !answer.duplicate, () => `a new ${job.name} is no duplicate, but ${JSON.stringify(answer)}`);
    const given = job.id ?? job.followUpId;
    if (given === undefined) {
      must(!this.#generated.has(answer.id), () => `the made id ${answer.id} is new`);
      must(parseGeneratedId(answer.id)?.createdAt === at, () => `the made id ${answer.id} says when it was made`);
      this.#generated.add(answer.id);
    } else mustEqual(answer.id, given, "the id that was given");
    must(!this.#model.jobs.has(answer.id), () => `there is one job ${answer.id}`);
    if (job.declares !== undefined) this.#model.declare(at, [job.declares]);
    const counters = this.#model.limits.countersOf(job);
    const accepted = new ModelJob(this.#seq++, answer.id, job, { at, counters });
    this.owners.set(answer.id, job.name);
    this.#comeAfter(at, accepted, job.after?.map((id) => aliases.get(id) ?? id) ?? []);
    this.#model.add(at, accepted);
  }

  /** It waits for those that have not ended; one that has ended badly is enough to cancel it. */
  #comeAfter(at: number, job: ModelJob, after: readonly string[]): void {
    const states = after.map((id) => [id, this.#stateOf(id) as JobState] as const);
    const isBroken = states.some(([, state]) => isFinished(state) && state !== "succeeded");
    const unfinished = states.filter(([, state]) => !isFinished(state)).map(([id]) => id);
    if (isBroken) job.loseUpstream(at);
    else if (unfinished.length > 0) job.waitFor(unfinished);
  }

  #stateOf(id: string): JobState | undefined {
    return this.#model.jobs.get(id)?.state ?? this.#ends.get(id);
  }
}
