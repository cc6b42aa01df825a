import { crc32 } from "node:zlib";
import type { JobError } from "../../core/jobs/job.ts";
import { damagedRow } from "../../core/text/errors.ts";

/** Columns that never change. A row carries their checksum, because SQLite's pages have none. `jobChecksum` covers jobs. */
export const CHECKED = new Map(
  Object.entries({
    holdfast_ids: "id job name chosen",
    holdfast_notes: "job checkpoint",
    holdfast_attempts: "n fence attempt outcome started_at ended_at worker host pid error job",
    holdfast_schedules: "key cron timezone missed within overlap template name",
    holdfast_events: "type at transition job build data",
    holdfast_builds: "key id pipeline queue hash description options max_failures created_at",
    holdfast_targets: "pipeline segment path id parent hash fingerprint value_hash value_text value_file value_size",
    holdfast_results: `pipeline stage path target state hash parts
      output_hash output_text output_file output_size micros tokens error at`,
  }).map(([table, columns]) => [table, columns.split(/\s+/)]),
);

/** Returns the checksum of a row. Null: the row has nothing to check, such as a job's notes without a checkpoint. */
export function rowChecksum(table: string, row: object): number | null {
  const values = row as Readonly<Record<string, unknown>>;
  if (values["checkpoint"] === null) return null;
  const columns = CHECKED.get(table) as readonly string[];
  return crc32(columns.map((name) => textOf(values[name])).join("\0"));
}

/** Turns a value into a text that tells blobs apart: one flipped bit makes a blob of a text with the same bytes. */
function textOf(value: unknown): unknown {
  if (typeof value === "boolean") return value ? 1 : 0;
  return value instanceof Uint8Array ? "blob" : value;
}

export interface CheckedJob {
  key: number;
  lane: number;
  priority: number;
  policy: number;
  created_at: number;
  id: string | null;
  slot: string | null;
  input: string | null;
  scheduled_for: number | null;
  limits: string | null;
  meta: string | null;
}

/** Returns a job's checksum, with the key, so that no two rows can swap. One crc32 over a joined text takes 3 times as long. */
export function jobChecksum(job: CheckedJob): number {
  const { key, lane, priority, policy, created_at, scheduled_for } = job;
  let sum = 0;
  for (const n of [key, lane, priority, policy, created_at, scheduled_for ?? -1])
    sum = Math.imul(sum, 31) + (n | 0) + Math.imul((n / 2 ** 32) | 0, 17);
  sum = crc32(`${textOf(job.input)}`, sum >>> 0);
  if (job.id !== null) sum = crc32(`id ${job.id}`, sum);
  if (job.slot !== null) sum = crc32(`slot ${job.slot}`, sum);
  if (job.limits !== null) sum = crc32(`limits ${job.limits}`, sum);
  if (job.meta !== null) sum = crc32(`meta ${job.meta}`, sum);
  return sum;
}

export function damagedError(id: string): JobError {
  const { code, message } = damagedRow(`Job ${id}`);
  return { name: "DamagedError", code, message };
}
