import { stat } from "node:fs/promises";
import type { Clock } from "../../../core/clock.ts";
import { HoldfastError } from "../../../core/errors.ts";
import type {
  BackupArtifacts,
  BackupStore,
  JournalLag,
  Manifest,
  OnProgress,
  StagedBackup,
  StageOptions,
} from "../../backups.ts";
import { changesFolder, trimSegments } from "../changes/segments.ts";
import type { Connection, DriverName } from "../driver.ts";
import { explain } from "../faults.ts";
import { copyFrom, sizeOf } from "./copy.ts";
import { Staging } from "./staging.ts";
import { type Copied, runTask } from "./tasks.ts";
import { basename } from "node:path";

/** How often the copy's size is looked at, in milliseconds. */
const LOOK = 100;

/** Backups of a file. */
export class Backups implements BackupStore {
  readonly journaled: boolean;
  readonly #db: Connection;
  readonly #path: string;
  readonly #driver: DriverName;
  readonly #clock: Pick<Clock, "now">;

  constructor(
    db: Connection,
    {
      path,
      driver,
      clock,
      journaled = false,
    }: { path: string; driver: DriverName; clock: Pick<Clock, "now">; journaled?: boolean },
  ) {
    this.journaled = journaled;
    this.#db = db;
    this.#path = path;
    this.#driver = driver;
    this.#clock = clock;
  }

  get epoch(): number {
    return identityOf(this.#db).epoch;
  }

  async stage(path: string, { reason, onProgress = () => {} }: StageOptions): Promise<StagedBackup> {
    const staging = this.#open(path);
    try {
      const takenAt = this.#clock.now();
      const copied = await this.#copy(staging.database, onProgress);
      const { facts, hashes, size, sha256, took } = copied;
      const copiedAt = Math.min(this.#clock.now(), takenAt + took);
      const publish = async (artifacts: BackupArtifacts): Promise<Manifest> => {
        const file = basename(staging.target);
        const head = { holdfast: "backup", format: 1, file, size, sha256, takenAt, copiedAt, reason } as const;
        const manifest: Manifest = { ...head, ...facts, artifacts };
        try {
          staging.publish(manifest);
        } catch (error) {
          throw explain(error, staging.target);
        }
        return manifest;
      };
      return { facts, hashes, artifactFolder: staging.artifacts, publish, discard: async () => staging.discard() };
    } catch (error) {
      staging.discard();
      throw error;
    }
  }

  async journalLag(): Promise<JournalLag | null> {
    if (!this.journaled) return null;
    try {
      const [changes, since] = this.#db.prepare("select count(*), min(at) from holdfast_changes").row() as [
        number,
        number | null,
      ];
      return { changes, since };
    } catch (error) {
      throw explain(error, this.#path);
    }
  }

  async trimJournal(kept: readonly Manifest[]): Promise<void> {
    if (this.#path === ":memory:") return;
    const { databaseId, epoch } = identityOf(this.#db);
    trimSegments(changesFolder(this.#path), { databaseId, epoch }, kept);
  }

  #open(path: string): Staging {
    try {
      return new Staging(path, this.#driver);
    } catch (error) {
      throw explain(error, path);
    }
  }

  async #copy(to: string, onProgress: OnProgress): Promise<Copied> {
    const before = this.#commits();
    const total = sizeOf(this.#db);
    const inMemory = this.#path === ":memory:";
    if (inMemory) copyFrom(this.#db, this.#path, to);
    let copying = true;
    const look = setInterval(() => {
      if (copying)
        void stat(to).then(
          ({ size }) => copying && onProgress({ step: "copying", done: size, total }),
          () => {},
        );
    }, LOOK);
    try {
      const copied = await runTask("copy", { driver: this.#driver, from: this.#path, to, copied: inMemory }, (progress) => {
        copying = false;
        onProgress(progress);
      });
      if (copied.facts.commits < before) throw behind(copied.facts.commits, before);
      return copied;
    } finally {
      clearInterval(look);
    }
  }

  #commits(): number {
    return (this.#db.prepare("select commits from holdfast_counter where id = 1").row() as [number])[0];
  }
}

function identityOf(db: Connection): { databaseId: string; epoch: number } {
  const [databaseId, epoch] = db.prepare("select database_id, epoch from holdfast_database where id = 1").row() as [
    string,
    number,
  ];
  return { databaseId, epoch };
}

/** What was acknowledged before it began has to be in it. */
function behind(commits: number, before: number): HoldfastError {
  return new HoldfastError(
    "BACKUP_FAILED",
    `The copy ends with commit ${commits}, and the database had commit ${before} before the copying began. No backup was made.`,
    "Check that the path leads to the same file for every process, and try again.",
  );
}
