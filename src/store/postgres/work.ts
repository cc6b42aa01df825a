import type { ResultKey } from "../../core/text/ids.ts";
import type { Notes } from "../sql/notes.ts";
import type { WorkDatabase } from "../sql/work/work-batches.ts";
import type { WorkHooks } from "../sql/work/work.ts";
import type { Catalog } from "./catalog.ts";
import { RerunTransaction } from "./connection/faults.ts";
import { listOf } from "./connection/driver.ts";
import type { Limits } from "./limits/limits.ts";
import type { JobParts } from "./store-parts.ts";
import type { Reader } from "./connection/connections.ts";
import { LOCK_WAIT_MS } from "./connection/session-settings.ts";
import type { Access, Tx } from "./transactions/transaction.ts";

export function workDatabase(s: string, { catalog, limits }: { catalog: Catalog; limits: Limits }): WorkDatabase {
  return {
    queueOf: (lane) => catalog.lane(lane).queue,
    async lockEnding(tx: Tx, jobs, queues) {
      await limits.lock(tx, queues);
      limits.unclaimed(jobs);
    },
    // Held from the check that artifacts exist until the commit. `referenced` waits for the transactions that hold it and sees
    // their references; later ones find swept artifacts missing.
    lockArtifacts: (tx: Tx) => tx.rows(`lock table ${s}.artifacts in row exclusive mode`),
    async resultKeys(tx: Tx, count) {
      const sql = `select nextval('${s}.results_key_seq') from generate_series(1, $1::integer)`;
      return (await tx.rows<[ResultKey]>(sql, count)).map(([key]) => key);
    },
    overtaken: () => new RerunTransaction("Another transaction has added the same target."),
  };
}

export function workHooks(s: string, parts: { jobParts: JobParts; notes: Notes; reader: Reader; access: Access }): WorkHooks {
  const { jobParts, notes, reader, access } = parts;
  const { settings, limits, enqueue, catalog, cancel } = jobParts;
  return {
    settings,
    cancel,
    enqueue,
    notes,
    prepare: (tx: Tx) => settings.at(tx),
    knowLanes: (tx: Tx, lanes) => catalog.knowLanes(tx.rows, lanes),
    claimedQueues: (jobs) => limits.claimedIn(jobs),
    lockQueues: (tx: Tx, queues) => limits.lock(tx, queues),
    async referenced(hashes) {
      await access.write("prune", async () => {});
      if (hashes.length === 0) return new Set();
      // In its own transaction, so that it holds nothing that the transactions it waits for need.
      const answers = await reader.script<[string]>(
        "set transaction isolation level read committed",
        `set local lock_timeout = ${LOCK_WAIT_MS}`,
        `lock table ${s}.artifacts in share mode`,
        `select hash from unnest('${listOf(hashes).replaceAll("'", "''")}'::text[]) as asked (hash)
         where exists (select 1 from ${s}.artifacts where artifacts.hash = asked.hash)`,
      );
      return new Set((answers.at(-1) as [string][]).map(([hash]) => hash));
    },
  };
}
