import { hash } from "node:crypto";
import { HoldfastError } from "../../core/errors.ts";
import { toJson } from "../../core/json.ts";
import type { Segment } from "../../core/segment.ts";
import { checkTargetId, pathOf } from "../../core/target-id.ts";
import { type KeptValue, NO_VALUE } from "../../core/value.ts";
import { ChildListWriter, readChildList, type Yielded } from "./child-list.ts";
import { BATCH, type Found } from "./enlister.ts";
import type { Parent } from "./live-targets.ts";
import type { Task } from "./stage-runner.ts";
import type { Values } from "./values.ts";
import type { Worksite } from "./worksite.ts";

/** Writes down what an expand yields, child by child. They are targets only when it has ended well. */
export class Expansion {
  readonly #task: Task;
  readonly #seen = new Set<string>();
  readonly #list: ChildListWriter;

  constructor(site: Worksite, task: Task) {
    this.#task = task;
    this.#list = new ChildListWriter(site.hasArtifacts ? site.artifacts : null);
  }

  /** All that it yields. */
  async run(yielded: unknown): Promise<void> {
    for await (const one of this.#iterate(yielded)) await this.add(one);
  }

  async add(one: unknown): Promise<void> {
    this.#task.attempt.signal.throwIfAborted();
    await this.#list.add(this.#child(one));
  }

  /** There are no more. */
  end(): Promise<KeptValue> {
    return this.#list.end();
  }

  drop(): void {
    this.#list.drop();
  }

  #child(one: unknown): Yielded {
    const where = `of the expand "${this.#task.place.stage.name}"`;
    if (typeof one !== "object" || one === null || !("id" in one) || !("value" in one)) {
      throw new HoldfastError(
        "TARGET_INVALID",
        `A target ${where} has no id or no value.`,
        "Yield objects such as { id, value }.",
      );
    }
    const id = checkTargetId(one.id, `The id of a target ${where}`);
    if (this.#seen.size === this.#seen.add(id).size) {
      throw new HoldfastError(
        "TARGET_TWICE",
        `Two targets ${where} have the id ${JSON.stringify(id)}.`,
        "Give each target of one parent an id of its own.",
      );
    }
    return { id, text: toJson(one.value, `The value of target ${JSON.stringify(id)} ${where}`) };
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

/** The targets that a list of children stands for, batch by batch. */
export async function* childrenIn(list: KeptValue, parent: Parent, site: Worksite, values: Values): AsyncIterable<Found[]> {
  const segment = site.model.segments[parent.segment + 1] as Segment;
  let batch: Found[] = [];
  for await (const { id, text } of readChildList(list, site.artifacts)) {
    const value = text === null ? NO_VALUE : await values.keepText(text);
    const path = pathOf(parent.path, id);
    const child = { segment: segment.index, path, id, hash: hash("sha256", value.hash), value };
    const found = site.targets.child(child, parent);
    const { artifact, size } = value;
    batch.push(artifact === null ? found : { ...found, artifacts: [{ name: "value", hash: artifact, size }] });
    if (batch.length < BATCH) continue;
    yield batch;
    batch = [];
  }
  if (batch.length > 0) yield batch;
}
