import type { Artifacts } from "../../artifacts/artifacts.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { LeaseRef } from "../../core/lease.ts";
import type { BuildRow } from "../../store/builds.ts";
import type { Engine } from "../engine.ts";
import { fileTarget } from "../targets/file-target.ts";
import { Enlister } from "./enlister.ts";
import { LiveTargets } from "./live-targets.ts";
import { Meters } from "./meter.ts";
import type { Model } from "./model.ts";
import { Purse } from "./purse.ts";
import { ResultReader } from "./reader.ts";
import { BuildScope } from "./scope.ts";
import type { Reader } from "./travel.ts";
import { Values } from "./values.ts";

/** What it takes to work on the builds of one pipeline in this process. */
export class Worksite {
  readonly engine: Engine;
  readonly model: Model;
  readonly artifacts: () => Promise<Artifacts>;
  readonly values: Values;
  readonly reader: ResultReader;
  readonly meters: Meters;
  readonly purse: Purse;
  readonly targets: LiveTargets;
  #scope: BuildScope | null = null;

  constructor(engine: Engine, model: Model) {
    this.engine = engine;
    this.model = model;
    this.artifacts = () => engine.artifacts();
    this.values = new Values(this.artifacts);
    this.reader = new ResultReader(engine.store.work, this.values);
    this.meters = new Meters(engine);
    this.purse = new Purse(engine.store, engine.clock, model.name);
  }

  /** The build, if this process knows its pipeline as it was when the build was started. */
  scope(build: BuildRow): BuildScope {
    if (build.hash !== this.model.hash) {
      throw new HoldfastError(
        "PIPELINE_CHANGED",
        `Build ${build.id} was started with another definition of pipeline "${this.model.name}" than this process has.`,
        "Start the same code in every process that works on it.",
      );
    }
    if (this.#scope?.build.key !== build.key) this.#scope = new BuildScope(this.engine.store, this.model, build);
    return this.#scope;
  }

  enlister(scope: BuildScope, lease: LeaseRef & { id: string }, reader: Reader): Enlister {
    return new Enlister(scope, lease, reader, this.targets);
  }
}
