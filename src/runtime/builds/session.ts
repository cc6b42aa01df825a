import { HoldfastError } from "../../core/errors.ts";
import type { NamedArtifact } from "../../store/work.ts";
import type { ClaimedFile } from "../targets/file-target.ts";
import type { Meter } from "./meter.ts";
import { artifactTwice } from "./stage-context.ts";
import type { Task } from "./stage-runner.ts";
import { Supersession } from "./supersession.ts";
import type { Worksite } from "./worksite.ts";

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
