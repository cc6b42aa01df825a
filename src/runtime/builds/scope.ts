import type { BuildRow } from "../../store/builds.ts";
import type { Store } from "../../store/store.ts";
import type { Model, Place } from "./model.ts";
import type { BuildSettings } from "./settings.ts";

/** One build, as those see it who work on it. */
export class BuildScope {
  readonly store: Store;
  readonly model: Model;
  readonly build: Pick<BuildRow, "key" | "id" | "budget">;
  readonly settings: BuildSettings;
  /** The last stage that is to be run; all of them, if nothing was said. */
  readonly #last: number;
  readonly #rerun: ReadonlySet<string>;

  constructor(store: Store, model: Model, build: BuildRow) {
    this.store = store;
    this.model = model;
    this.build = build;
    this.settings = JSON.parse(build.options) as BuildSettings;
    const { stages } = this.settings.only;
    this.#last = stages.length === 0 ? Number.POSITIVE_INFINITY : Math.max(...stages.map((name) => model.place(name).position));
    this.#rerun = new Set(this.settings.rerun);
  }

  /** Whether all that there is, is built. */
  get isWhole(): boolean {
    return this.#last === Number.POSITIVE_INFINITY;
  }

  includes({ position }: Place): boolean {
    return position <= this.#last;
  }

  reruns(stage: string): boolean {
    return this.#rerun.has(stage);
  }
}
