import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { Artifacts } from "../../artifacts/artifacts.ts";
import type { Clock } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { Alive } from "../../store/alive.ts";
import type { StoreLocation } from "../../store/open-store.ts";
import { modeLike } from "../../store/sqlite/faults.ts";
import type { Store } from "../../store/store.ts";

/** The artifacts of a database, opened on first use, beside it or in the configured folder. */
export class ArtifactFolder {
  readonly #store: Store;
  readonly #location: StoreLocation;
  readonly #clock: Clock;
  readonly #given: string | undefined;
  #opened: Promise<Artifacts> | null = null;
  #artifacts: Artifacts | null = null;
  #temporary: string | null = null;

  constructor(store: Store, location: StoreLocation, clock: Clock, given: string | undefined) {
    this.#store = store;
    this.#location = location;
    this.#clock = clock;
    this.#given = given;
  }

  get path(): string | null {
    if (this.#given !== undefined) return resolve(this.#given);
    if (this.#location.kind === "postgres") return null;
    return this.#location.path === ":memory:" ? this.#temporary : `${this.#location.path}-artifacts`;
  }

  get opened(): Artifacts {
    if (this.#artifacts === null) throw new Error("the folder of artifacts is not open yet");
    return this.#artifacts;
  }

  open(): Promise<Artifacts> {
    this.#opened ??= this.#open().catch((error: unknown) => {
      this.#opened = null;
      throw error;
    });
    return this.#opened;
  }

  async close(): Promise<void> {
    const opened = this.#opened;
    if (opened === null) return;
    (await opened.catch(() => null))?.close();
    if (this.#temporary !== null) await rm(this.#temporary, { recursive: true, force: true });
  }

  async #open(): Promise<Artifacts> {
    if (this.#location.kind === "sqlite" && this.#location.path === ":memory:" && this.#given === undefined) {
      this.#temporary ??= await mkdtemp(join(tmpdir(), "holdfast-artifacts-"));
    }
    const { path } = this;
    if (path === null) throw noFolder();
    const driver = this.#location.kind === "sqlite" ? this.#location.driver : "node:sqlite";
    const mode = this.#mode();
    const artifacts = await Artifacts.open(path, {
      alive: (folder) => new Alive(folder, driver, "", () => modeLike(path)),
      clock: this.#clock,
      ...(mode === undefined ? {} : { mode }),
    });
    this.#store.hooks.missingArtifacts = (hashes) => artifacts.missing(hashes);
    this.#artifacts = artifacts;
    return artifacts;
  }

  /** Returns the mode of the database file. On a server the umask decides, because the folder's other users are unknown. */
  #mode(): number | undefined {
    if (this.#location.kind === "sqlite" && this.#location.path !== ":memory:") return modeLike(this.#location.path);
    return this.#location.mode;
  }
}

function noFolder(): HoldfastError {
  return new HoldfastError(
    "ARTIFACTS_NEEDED",
    "Large outputs, bytes and snapshots need a folder for artifacts, and on PostgreSQL there is no default.",
    "Call open(address, { artifacts: folder }), or give --artifacts to the command, with the same folder for all workers.",
  );
}
