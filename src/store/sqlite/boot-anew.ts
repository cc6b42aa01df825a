import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { FRAME_HEADER, frameAt, headerOf, LOG_HEADER, type Sum } from "./wal/frames.ts";
import { fromRecords, toRecord, witnessFolder } from "./witness/slots.ts";

/** A host, and its run that is to be over. */
export interface Booted {
  host: string;
  boot: string;
}

/**
 * Lets the files of a database say that this host was started anew since: a power cut is no crash of a process, and is not
 * charged as one. It is done to the bytes, because to open the database would read back its log, and change what it is about.
 */
export function bootAnew(path: string, { host, boot }: Booted): void {
  const other = otherThan(boot);
  // As a row of the list of processes holds them, one after the other.
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
    // Two take turns, and what was torn says nothing: so it stands there twice.
    writeFileSync(join(folder, name), Buffer.concat([record, record]));
  }
}

/** As long, and never the same. */
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

/** Each frame's checksum continues that of the frame before; those that did not fit, because they are torn, are left so. */
function inLog(file: Buffer, named: Named): Buffer {
  if (file.length < LOG_HEADER) return file;
  // In a copy of its own, so that words lie where they can be read as such.
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
