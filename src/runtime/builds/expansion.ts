import { hash } from "node:crypto";
import { HoldfastError } from "../../core/errors.ts";
import { toJson } from "../../core/json.ts";
import type { Segment } from "../../core/segment.ts";
import { checkTargetId, pathOf } from "../../core/target-id.ts";
import { BATCH, type Found } from "./enlister.ts";
import type { Task } from "./stage-runner.ts";
import type { Worksite } from "./worksite.ts";

/** Makes targets of what an expand yields, batch by batch: however many there are, and whatever of them was there before. */
export class Expansion {
  readonly #site: Worksite;
  readonly #task: Task;

  constructor(site: Worksite, task: Task) {
    this.#site = site;
    this.#task = task;
  }

  async run(yielded: unknown): Promise<void> {
    const { place, attempt, scope, traveller } = this.#task;
    const segment = this.#site.model.segments[place.segment.index + 1] as Segment;
    const enlister = this.#site.enlister(scope, attempt.claimed, this.#site.reader);
    const seen = new Set<string>();
    let batch: Found[] = [];
    const write = async (): Promise<void> => {
      attempt.signal.throwIfAborted();
      const rows = await enlister.rows(
        segment,
        batch.map(({ path }) => path),
      );
      await enlister.enlist(segment, batch, rows);
      batch = [];
    };
    for await (const one of this.#iterate(yielded)) {
      batch.push(await this.#child(one, seen, segment));
      if (batch.length >= BATCH) await write();
    }
    await write();
    await enlister.gone(segment, traveller.path);
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
    const value = await this.#site.values.keepText(text ?? "null");
    const path = pathOf(traveller.path, id);
    const child = { segment: segment.index, path, id, hash: hash("sha256", value.hash), value };
    const found = this.#site.targets.child(child, { ...traveller, trail });
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
