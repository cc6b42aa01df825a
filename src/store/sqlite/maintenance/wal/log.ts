import type { WriteAheadLog } from "../../../sql/recoveries.ts";
import type { Access } from "../../access.ts";
import type { Connection, DriverName } from "../../driver.ts";
import { walSize } from "./scan.ts";
import { runTask } from "../backup/tasks.ts";

/** A log of this many bytes is worth a thread while other processes work. */
const LONG_BYTES = 4 * 1024 * 1024;
/** A shorter log is copied sooner than a thread is started. */
const SHORT_BYTES = 1024 * 1024;

interface Of extends Pick<WriteAheadLog, "atOpening"> {
  path: string;
  driver: DriverName;
  access: Access;
}

export function writeAheadLog(db: Connection, { path, driver, access, atOpening }: Of): WriteAheadLog {
  const size = () => walSize(path);
  const copy = db.prepare("pragma wal_checkpoint(passive)");
  return {
    atOpening,
    size,
    async checkpoint(how) {
      const bytes = size();
      if (bytes === 0) return;
      if ("waitMs" in how) return runTask("checkpoint", { driver, path, waitMs: how.waitMs });
      if (bytes < LONG_BYTES && !how.alone) return;
      if (bytes < SHORT_BYTES) await access.read(() => copy.row());
      else await runTask("checkpoint", { driver, path });
    },
  };
}
