import { HoldfastError } from "../text/errors.ts";
import { type Glob, onlyGlob } from "../text/glob.ts";
import { Nearest } from "../text/options.ts";

interface Wanted {
  given: string;
  glob: Glob;
  isMet: boolean;
  /** What it was most like of all that was seen; of the first few only: to look for it takes time. */
  nearest: Nearest | null;
}

/** For so many it is said what may have been meant. */
const HINTED = 10;

/** The targets that a build was told to look at, by their ids or by globs: each has to be there, or something was mistyped. */
export class Only {
  readonly #wanted: Wanted[];
  #missing: number;

  /** `stages`: what else could have been meant. */
  constructor(given: readonly string[], stages: readonly string[] = []) {
    this.#wanted = given.map((one, i) => ({
      given: one,
      glob: onlyGlob(one),
      isMet: false,
      nearest: i < HINTED ? new Nearest(one) : null,
    }));
    this.#missing = given.length;
    for (const { nearest } of this.#wanted) for (const stage of stages) nearest?.look(stage);
  }

  /** Nothing was said: all targets are looked at. */
  get isAll(): boolean {
    return this.#wanted.length === 0;
  }

  /** All that was named has been seen. */
  get isMet(): boolean {
    return this.#missing === 0;
  }

  /** Whether a target is to be looked at. */
  takes(id: string): boolean {
    let taken = this.isAll;
    for (const wanted of this.#wanted) {
      if (taken && wanted.isMet) continue;
      // An id may look like a glob that does not match it.
      if (wanted.given === id || wanted.glob.matches(id)) {
        taken = true;
        this.#meet(wanted);
      } else if (!wanted.isMet) {
        wanted.nearest?.look(id);
      }
    }
    return taken;
  }

  /** All of it was seen by an earlier attempt. */
  meet(): void {
    for (const wanted of this.#wanted) this.#meet(wanted);
  }

  /** At the end of a listing. */
  refuseMissing(): void {
    const missing = this.#wanted.filter(({ isMet }) => !isMet);
    if (missing.length === 0) return;
    const names = missing.map(({ given }) => JSON.stringify(given)).join(", ");
    const near = [...new Set(missing.flatMap(({ nearest }) => nearest?.found ?? []))].map((one) => JSON.stringify(one));
    const [is, no] = missing.length === 1 ? ["is", "no target and no stage"] : ["are", "no targets and no stages"];
    throw new HoldfastError(
      "TARGET_UNKNOWN",
      `${names} in \`only\` ${is} ${no} of this pipeline, so nothing was done.${near.length === 0 ? "" : ` Nearest: ${near.join(", ")}.`}`,
      "Give ids that the source lists, globs of them, or names of stages.",
    );
  }

  #meet(wanted: Wanted): void {
    if (wanted.isMet) return;
    wanted.isMet = true;
    this.#missing--;
  }
}
