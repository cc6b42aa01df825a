import type { Fence, ResultKey } from "../../core/text/ids.ts";
import type { WorkDatabase } from "../sql/work/work-batches.ts";
import type { WorkHooks } from "../sql/work/work.ts";
import type { StoreAccess } from "./scripts.ts";
import type { Connection } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { Notes } from "../sql/notes.ts";
import type { Cancel } from "../sql/operate.ts";
import type { Catalog } from "./jobs/catalog.ts";
import type { EnqueueParts } from "./jobs/enqueue.ts";

/** SQLite has one writer at a time and needs no locks. */
export function workDatabase(db: Connection, catalog: Catalog): WorkDatabase {
  const sequence = db.prepare("select seq from sqlite_sequence where name = 'holdfast_results'");
  // An operation takes keys before it writes its rows, and another one of the same transaction may take some meanwhile.
  let taken = { commit: 0 as Fence, key: 0 };
  return {
    queueOf: (lane) => catalog.lane(lane).queue,
    lockEnding: () => {},
    lockArtifacts: () => {},
    resultKeys({ commit }: Tx, count) {
      const written = Number(sequence.row()?.[0] ?? 0);
      const last = taken.commit === commit ? Math.max(written, taken.key) : written;
      taken = { commit, key: last + count };
      return Array.from({ length: count }, (_, i) => (last + 1 + i) as ResultKey);
    },
    overtaken: () => new Error("Another transaction has added the same target."),
  };
}

export function workHooks(
  db: Connection,
  parts: { enqueueParts: EnqueueParts; cancel: Cancel; notes: Notes; access: StoreAccess },
): WorkHooks {
  const { enqueueParts, cancel, notes, access } = parts;
  const { settings, enqueue } = enqueueParts;
  const referenced = db.prepare(
    "select value from json_each(?) as one where exists (select 1 from holdfast_artifacts where hash = one.value)",
  );
  return {
    settings,
    cancel,
    enqueue,
    notes,
    prepare: () => {},
    knowLanes: () => {},
    claimedQueues: () => null,
    lockQueues: () => {},
    // Under the write lock: transactions that were under way are committed or rolled back by then.
    referenced: (hashes) =>
      access.write("prune", () => new Set(referenced.rows(JSON.stringify(hashes)).map(([hash]) => hash as string))),
  };
}
