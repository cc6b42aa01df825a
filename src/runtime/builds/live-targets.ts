import type { Fingerprint } from "../../core/fingerprint.ts";
import type { Segment } from "../../core/segment.ts";
import type { Target } from "../../core/source.ts";
import type { Trail } from "../../core/trail.ts";
import { type KeptValue, NO_VALUE } from "../../core/value.ts";
import type { TargetRow, WorkStore } from "../../store/work.ts";
import type { Model } from "./model.ts";
import type { Traveller } from "./travel.ts";

/** How a target that is a file is shown to a pipeline's functions. */
export type MakeFile = (id: string, fingerprint: Fingerprint) => Target;

/** A target's parent, with what it has gone through. */
export interface Parent extends Traveller {
  readonly trail: Trail;
}

/** Rows as targets that stages can work on. */
export class LiveTargets {
  readonly #model: Model;
  readonly #store: WorkStore;
  readonly #makeFile: MakeFile;

  constructor(model: Model, store: WorkStore, makeFile: MakeFile) {
    this.#model = model;
    this.#store = store;
    this.#makeFile = makeFile;
  }

  /** A file, as a listing finds it. `text`: the fingerprint as it is kept. */
  file(id: string, fingerprint: Fingerprint, text = JSON.stringify(fingerprint)): Traveller {
    return new FileTraveller(id, fingerprint, text, this.#makeFile);
  }

  /** An item of a source, or a group of a gather. */
  plain(segment: Segment, id: string, hash: string, value: KeptValue): Traveller {
    const target = Object.freeze({ id, hash });
    return { segment: segment.index, path: id, id, parent: null, hash, fingerprint: null, value, inherited: [], target };
  }

  child({ segment, path, id, hash, value }: Child, parent: Parent): Traveller {
    const target = Object.freeze({ id, hash, parent: parent.target });
    // That it was expanded is of no concern to them.
    const inherited = parent.trail.filter(({ stage }) => !this.#model.isExpand(stage));
    return { segment, path, id, parent: parent.path, hash, fingerprint: null, value, inherited, target };
  }

  /** With its parents, as they are in the store. */
  async of(row: TargetRow): Promise<Parent> {
    return asParent(await this.#traveller(row), row.trail);
  }

  async #traveller(row: TargetRow): Promise<Traveller> {
    const segment = this.#model.segments[row.segment] as Segment;
    if (row.parent !== null) {
      const [above] = await this.#store.targets(this.#model.name, row.segment - 1, [row.parent]);
      if (above !== undefined) return this.child(row, await this.of(above));
    }
    if (row.fingerprint !== null) return this.file(row.id, JSON.parse(row.fingerprint) as Fingerprint, row.fingerprint);
    return this.plain(segment, row.id, row.hash, row.value);
  }
}

/** A target that others come from. */
export function asParent(traveller: Traveller, trail: Trail): Parent {
  const { segment, path, id, parent, hash, fingerprint, value, inherited, target } = traveller;
  return { segment, path, id, parent, hash, fingerprint, value, inherited, target, trail };
}

/** Of nearly all files only the fingerprint is looked at. */
class FileTraveller implements Traveller {
  readonly segment = 0;
  readonly parent = null;
  readonly value = NO_VALUE;
  readonly inherited: Trail = [];
  readonly path: string;
  readonly id: string;
  readonly hash: string;
  readonly fingerprint: string;
  readonly #make: () => Target;
  #target: Target | null = null;

  constructor(id: string, fingerprint: Fingerprint, text: string, make: MakeFile) {
    this.path = id;
    this.id = id;
    this.hash = fingerprint.hash;
    this.fingerprint = text;
    this.#make = () => make(id, fingerprint);
  }

  get target(): Target {
    return (this.#target ??= this.#make());
  }
}

export type Child = Pick<TargetRow, "segment" | "path" | "id" | "hash" | "value">;
