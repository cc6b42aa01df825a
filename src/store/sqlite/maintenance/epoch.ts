import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { COMMITS_PER_EPOCH } from "../../../core/recovery/loss.ts";
import { type Connection, scalar } from "../driver.ts";
import { corrupt } from "../faults.ts";
import { FRAME_HEADER, frameAt, headerOf, LOG_HEADER, type Sum } from "./wal.ts";
import { fromRecords, toRecord, witnessFolder } from "./witness.ts";

/** Added to the highest known key: more than can have been given out since that key was recorded. */
const SKIPPED_KEYS = 2 ** 20;

/** The highest numbers that are known to have been given out. */
export interface Known {
  epoch: number;
  commits: number;
  key: number;
}

// A commit that only adds jobs does not write the counter, which saves a page: its number is the fence of the newest job, until
// a later commit claims that job.
export const COMMITS = "max(commits, coalesce((select fence from holdfast_jobs order by key desc limit 1), 0))";

export function knownIn(db: Connection): Known {
  const row = db
    .prepare(
      `select epoch, ${COMMITS}, max(jobs, coalesce((select max(key) from holdfast_jobs), 0))
       from holdfast_database, holdfast_counter where holdfast_database.id = 1 and holdfast_counter.id = 1`,
    )
    .row() as [number, number, number];
  // One driver throws here, the other rounds: Holdfast never writes such a number.
  if (!row.every(Number.isSafeInteger)) throw corrupt(`a number that was never given out: ${row.join(", ")}`);
  return { epoch: row[0], commits: row[1], key: row[2] };
}

/** Reads only this row: other pages may be damaged. */
export function epochIn(db: Connection): number {
  return scalar(db, "select epoch from holdfast_database where id = 1");
}

/**
 * Called in a transaction when the database is put back to an earlier state: restored, salvaged, or found to lack acknowledged
 * commits. Fences and keys of the new epoch are higher than all earlier ones, so that no earlier lease matches a job of now.
 */
export function raiseEpoch(db: Connection, known: Known): number {
  const here = knownIn(db);
  const epoch = Math.max(here.epoch, known.epoch) + 1;
  const commits = Math.max(here.commits, known.commits, epoch * COMMITS_PER_EPOCH);
  db.prepare("update holdfast_database set epoch = ? where id = 1").run(epoch);
  db.prepare("update holdfast_counter set commits = ?, jobs = ? where id = 1").run(
    commits,
    Math.max(here.key, known.key) + SKIPPED_KEYS,
  );
  return epoch;
}

export interface Booted {
  host: string;
  boot: string;
}

/**
 * Changes the boot in the files of a database, as if the host had been restarted since: a power cut is not counted as a crash.
 * It edits bytes, because opening the database would replay the log that the simulation is about.
 */
export function bootAnew(path: string, { host, boot }: Booted): void {
  const other = otherThan(boot);
  // A row of the processes' table holds host and boot one after the other.
  const named = { from: Buffer.from(host + boot), to: Buffer.from(host + other) };
  const database = readFileSync(path);
  if (replaceIn(database, named)) writeFileSync(path, database);
  const log = `${path}-wal`;
  if (existsSync(log)) writeFileSync(log, inLog(readFileSync(log), named));
  const folder = witnessFolder(path);
  for (const name of existsSync(folder) ? readdirSync(folder) : []) {
    const seen = fromRecords(readFileSync(join(folder, name)));
    if (seen?.boot !== boot) continue;
    const { turn, ...rest } = seen;
    const record = toRecord({ ...rest, boot: other }, turn);
    // Both records of a slot, since a torn one is ignored.
    writeFileSync(join(folder, name), Buffer.concat([record, record]));
  }
}

function otherThan(boot: string): string {
  return boot.replaceAll(/[0-9a-f]/g, (digit) => (15 - Number.parseInt(digit, 16)).toString(16));
}

interface Named {
  from: Buffer;
  to: Buffer;
}

function replaceIn(bytes: Buffer, { from, to }: Named): boolean {
  let at = bytes.indexOf(from);
  const found = at !== -1;
  for (; at !== -1; at = bytes.indexOf(from, at + from.length)) to.copy(bytes, at);
  return found;
}

/** Each frame's checksum continues that of the frame before; torn frames, whose checksum was wrong, are left as they are. */
function inLog(file: Buffer, named: Named): Buffer {
  if (file.length < LOG_HEADER) return file;
  const log = Buffer.from(new ArrayBuffer(file.length));
  file.copy(log);
  const header = headerOf(log);
  const length = FRAME_HEADER + header.pageSize;
  let [before] = header.sums as [Sum];
  let after = before;
  for (let at = LOG_HEADER; at + length <= log.length; at += length) {
    const { fits, sums } = frameAt(log, at, header, [before]);
    [before] = sums as [Sum];
    if (!fits) {
      after = before;
      continue;
    }
    replaceIn(log.subarray(at + FRAME_HEADER, at + length), named);
    const now = frameAt(log, at, header, [after]);
    after = now.sums.at(-1) as Sum;
    log.writeUInt32BE(after[0], at + 16);
    log.writeUInt32BE(after[1], at + 20);
  }
  return log;
}
