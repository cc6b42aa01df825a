import type { Target } from "../../core/source.ts";
import type { TargetRow } from "../../store/work.ts";
import type { Task } from "./stage-runner.ts";
import { loadInput } from "./travel.ts";
import type { Worksite } from "./worksite.ts";

/** Read at a time. */
const PAGE = 200;

/** What a gather reads: the members of its group in the order of their paths, however many there are. */
export class Inputs implements AsyncIterable<{ target: unknown; output: unknown; outputs: Record<string, unknown> }> {
  readonly #site: Worksite;
  readonly #task: Task;

  constructor(site: Worksite, task: Task) {
    this.#site = site;
    this.#task = task;
  }

  async *[Symbol.asyncIterator](): AsyncIterator<{ target: unknown; output: unknown; outputs: Record<string, unknown> }> {
    const { place, row, attempt } = this.#task;
    const group = place.stage.by === null ? null : row.id;
    for (let last: TargetRow | undefined; ;) {
      attempt.signal.throwIfAborted();
      const page = await this.#site.engine.store.work.members({
        pipeline: this.#site.model.name,
        segment: place.segment.index - 1,
        group,
        limit: PAGE,
        ...(last === undefined ? {} : { after: { group, path: last.path } }),
      });
      const members = await Promise.all(page.map((member) => this.#member(member)));
      yield* members;
      // Copies of files that were asked for.
      for (const { target } of members) await this.#site.fileOf(target as Target)?.dispose();
      last = page.at(-1);
      if (last === undefined) return;
    }
  }

  async #member(row: TargetRow): Promise<{ target: unknown; output: unknown; outputs: Record<string, unknown> }> {
    const traveller = await this.#site.targets.of(row);
    const outputs: Record<string, unknown> = {};
    await Promise.all(
      row.trail.map(async ({ stage, result, output }) => {
        outputs[stage] = output === "none" ? undefined : await this.#site.reader.output(result);
      }),
    );
    const last = row.trail.length > traveller.inherited.length ? row.trail.at(-1) : undefined;
    const output = last === undefined ? await loadInput(traveller, row.trail, this.#site.reader) : outputs[last.stage];
    return { target: traveller.target, output, outputs };
  }
}
