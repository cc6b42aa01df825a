import type { RecoveryStore } from "../../../recoveries.ts";
import type { Access } from "../../access.ts";
import type { Connection, DriverName } from "../../driver.ts";
import { walSize } from "./scan.ts";
import { runTask } from "../backup/tasks.ts";

/** A log of this many bytes is worth a thread while other processes work. */
const LONG_BYTES = 4 * 1024 * 1024;
/** A shorter log is copied sooner than a thread is started. */
const SHORT_BYTES = 1024 * 1024;

/** How the write-ahead log of this file is copied into the database. */
export function checkpointOf(
  db: Connection,
  { path, driver, access }: { path: string; driver: DriverName; access: Access },
): RecoveryStore["checkpoint"] {
  const copy = db.prepare("pragma wal_checkpoint(passive)");
  return async (how) => {
    const bytes = walSize(path);
    if (bytes === 0) return;
    if ("waitMs" in how) return runTask("checkpoint", { driver, path, waitMs: how.waitMs });
    if (bytes < LONG_BYTES && !how.alone) return;
    if (bytes < SHORT_BYTES) await access.read(() => copy.row());
    else await runTask("checkpoint", { driver, path });
  };
}
