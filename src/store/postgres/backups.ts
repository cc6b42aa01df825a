import { HoldfastError } from "../../core/text/errors.ts";
import type { BackupStore, StagedBackup } from "../backups.ts";

/** A server has its own ways to be copied, and to go back to an instant: better ones than a client could have. */
export class Backups implements BackupStore {
  readonly journaled = false;
  readonly epoch = 0;
  /** Without a password. */
  readonly #address: string;
  readonly #schema: string;

  constructor(address: string, schema: string) {
    this.#address = address;
    this.#schema = schema;
  }

  async journalLag(): Promise<null> {
    return null;
  }

  async trimJournal(): Promise<void> {}

  async stage(path: string): Promise<StagedBackup> {
    const database = `postgres://${this.#address}`;
    const file = JSON.stringify(path.replace(/(\.db)?$/, ".dump"));
    throw new HoldfastError(
      "BACKUP_BY_SERVER",
      `Holdfast makes no backups of a database on a server (${database}); the server's own tools do.`,
      `Run pg_dump --format=custom --schema=${this.#schema} --file=${file} ${JSON.stringify(database)}, and pg_restore to bring it ` +
        "back. To go back to an instant, set up continuous archiving (PITR) on the server. Copy the artifacts' folder, too.",
    );
  }
}
