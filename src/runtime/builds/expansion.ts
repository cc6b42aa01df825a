import { hash } from "node:crypto";
import { HoldfastError } from "../../core/errors.ts";
import { toJson } from "../../core/json.ts";
import type { Segment } from "../../core/segment.ts";
import { checkTargetId, pathOf } from "../../core/target-id.ts";
import { NO_VALUE } from "../../core/value.ts";
import { BATCH, type Enlister, type Found } from "./enlister.ts";
import { asParent } from "./live-targets.ts";
import type { Task } from "./stage-runner.ts";
import type { Worksite } from "./worksite.ts";

/** Makes targets of what an expand yields, batch by batch: however many there are, and whatever of them was there before. */
export class Expansion {
  readonly #site: Worksite;
  readonly #task: Task;
  readonly #segment: Segment;
  readonly #enlister: Enlister;
  readonly #seen = new Set<string>();
  #batch: Found[] = [];

  constructor(site: Worksite, task: Task) {
    this.#site = site;
    this.#task = task;
    this.#segment = site.model.segments[task.place.segment.index + 1] as Segment;
    this.#enlister = site.enlister(task.scope, task.attempt.claimed, site.reader);
  }

  /** All that it yields. */
  async run(yielded: unknown): Promise<void> {
    for await (const one of this.#iterate(yielded)) await this.add(one);
    await this.end();
  }

  async add(one: unknown): Promise<void> {
    this.#batch.push(await this.#child(one, this.#seen, this.#segment));
    if (this.#batch.length >= BATCH) await this.#write();
  }

  /** There are no more; those that were there before and did not come again are gone. */
  async end(): Promise<void> {
    await this.#write();
    await this.#enlister.goneBut(this.#segment, this.#task.traveller.path, this.#seen);
  }

  async #write(): Promise<void> {
    this.#task.attempt.signal.throwIfAborted();
    const batch = this.#batch;
    this.#batch = [];
    const paths = batch.map(({ path }) => path);
    await this.#enlister.enlist(this.#segment, batch, await this.#enlister.rows(this.#segment, paths));
  }

  async #child(one: unknown, seen: Set<string>, segment: Segment): Promise<Found> {
    const { place, traveller, trail } = this.#task;
    const where = `of the expand "${place.stage.name}"`;
    if (typeof one !== "object" || one === null || !("id" in one) || !("value" in one)) {
      throw new HoldfastError(
        "TARGET_INVALID",
        `A target ${where} has no id or no value.`,
        "Yield objects such as { id, value }.",
      );
    }
    const id = checkTargetId(one.id, `The id of a target ${where}`);
    if (seen.size === seen.add(id).size) {
      throw new HoldfastError(
        "TARGET_TWICE",
        `Two targets ${where} have the id ${JSON.stringify(id)}.`,
        "Give each target of one parent an id of its own.",
      );
    }
    const text = toJson(one.value, `The value of target ${JSON.stringify(id)} ${where}`);
    const value = text === null ? NO_VALUE : await this.#site.values.keepText(text);
    const path = pathOf(traveller.path, id);
    const child = { segment: segment.index, path, id, hash: hash("sha256", value.hash), value };
    const found = this.#site.targets.child(child, asParent(traveller, trail));
    return value.artifact === null ? found : { ...found, artifacts: [{ name: "value", hash: value.artifact, size: value.size }] };
  }

  #iterate(yielded: unknown): Iterable<unknown> | AsyncIterable<unknown> {
    if (typeof yielded === "object" && yielded !== null && (Symbol.asyncIterator in yielded || Symbol.iterator in yielded)) {
      return yielded as Iterable<unknown> | AsyncIterable<unknown>;
    }
    throw new HoldfastError(
      "TARGET_INVALID",
      `The expand "${this.#task.place.stage.name}" answered nothing that can be iterated.`,
      "Make it a generator, or answer an array of { id, value }.",
    );
  }
}
