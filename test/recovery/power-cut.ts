import { execFile, execFileSync } from "node:child_process";
import { hash, randomUUID } from "node:crypto";
import {
  constants,
  copyFileSync,
  cpSync,
  existsSync,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  writeSync,
} from "node:fs";
import { endianness } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { BOOT_VARIABLE } from "../../src/engine/host.ts";
import type { Durability } from "../../src/store/store.ts";
import { fileSize, openFile } from "../../src/store/sqlite/faults.ts";
import { FRAME_HEADER, LOG_HEADER } from "../../src/store/sqlite/maintenance/wal.ts";
import { mostSeen, readSlots } from "../../src/store/sqlite/maintenance/witness.ts";
import { Program } from "../../src/testing/program.ts";

interface PowerCutOptions {
  args: readonly string[];
  /** The power is cut once the program has printed this. */
  when: RegExp;
  /** The database of the program, and where its image goes. */
  from: string;
  to: string;
  /** Undefined: everything that is not synced is lost. A number: the seed by which some of its sectors survive. */
  torn?: number | undefined;
}

interface PowerCut {
  stdout: string;
  image: PowerCutImage;
}

/**
 * Runs a program, stops all its processes, takes an image of its database as a power cut may leave it, and kills them. The program
 * has a boot id of its own: a process that opens the image sees that the host was restarted.
 */
export async function simulatePowerCut(file: string, { args, when, from, to, torn }: PowerCutOptions): Promise<PowerCut> {
  const program = new Program(file, { args, env: { [BOOT_VARIABLE]: randomUUID() } });
  try {
    await program.printed(when);
    process.kill(-program.pid, "SIGSTOP");
    while (!isStopped(program.pid)) await pause(1);
    // In a process of its own: this one may have the database open, and closing a file of it would drop its locks.
    const image = [fileURLToPath(import.meta.url), from, to, ...(torn === undefined ? [] : [String(torn)])];
    const { stdout } = await promisify(execFile)(process.execPath, image);
    return { stdout: program.stdout, image: JSON.parse(stdout) as PowerCutImage };
  } finally {
    program.killAll();
    await program.ended;
  }
}

/** Stopped, or exited. */
const STOPPED_STATES = /^[TtZX]/;

function isStopped(group: number): boolean {
  if (process.platform !== "linux") {
    const lines = execFileSync("ps", ["-A", "-o", "pgid=,state="], { encoding: "utf8" }).split("\n");
    return lines
      .map((line) => line.trim().split(/\s+/))
      .every(([of, state = ""]) => Number(of) !== group || STOPPED_STATES.test(state));
  }
  const members = readdirSync("/proc").filter((pid) => /^\d+$/.test(pid) && statOf(`/proc/${pid}`)?.group === group);
  return members.every((pid) => threadsOf(pid).every((thread) => STOPPED_STATES.test(statOf(thread)?.state ?? "X")));
}

function threadsOf(pid: string): string[] {
  try {
    return readdirSync(`/proc/${pid}/task`).map((thread) => `/proc/${pid}/task/${thread}`);
  } catch {
    return [];
  }
}

function statOf(folder: string): { state: string; group: number } | null {
  try {
    const stat = readFileSync(`${folder}/stat`, "utf8");
    // The program's name may hold anything, so count from its closing bracket.
    const [state = "", , group] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return { state, group: Number(group) };
  } catch {
    return null;
  }
}

interface PowerCutImage {
  path: string;
  durability: Durability;
  framesKept: number;
  bytesUnsynced: number;
}

const TRIES = 10;
const SECTOR_BYTES = 512;
/** The log is copied by itself, the process that opens the image makes a new index, and backups are on another disk. */
const NOT_IN_IMAGE = new Set(["-wal", "-shm", "-backups"]);

/**
 * Makes the files of a database as a power cut may leave them: what SQLite has synced, and nothing else of the log.
 *
 * With `synchronous=FULL` SQLite syncs the log before it writes to the `-shm` how far it is committed; with NORMAL it syncs only
 * before it copies the log. A page that the log has a newer version of may be half copied, so it is blanked in the database.
 */
function cutPower(from: string, to: string, torn: number | null): PowerCutImage {
  const folder = dirname(resolve(to));
  mkdirSync(folder, { recursive: true });
  const scratch = mkdtempSync(join(folder, ".power-cut-"));
  const image = join(scratch, basename(to));
  try {
    const index = copyAtRest(resolve(from), image);
    const durability = durabilityOf(from);
    const cut = cutLog(image, index, durability, torn);
    if (index !== null) blankCopied(image, cut.framesKept, index.pageSize);
    for (const entry of readdirSync(scratch)) renameSync(join(scratch, entry), join(folder, entry));
    return { path: resolve(to), durability, ...cut };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

function copyAtRest(from: string, to: string): WalIndex | null {
  for (let tried = 0; tried < TRIES; tried++) {
    const before = instantOf(from);
    const index = readWalIndex(from);
    copyFiles(from, to);
    if (instantOf(from) === before) return index;
  }
  throw new Error(`Another process writes to ${from} while its image is taken.`);
}

function instantOf(path: string): string {
  const files = ["", "-wal"].map((suffix) => statSync(path + suffix, { throwIfNoEntry: false, bigint: true }));
  return [readWalIndex(path)?.text, ...files.map((file) => `${file?.size} ${file?.mtimeNs}`)].join();
}

function copyFiles(from: string, to: string): void {
  const name = basename(from);
  copyFileSync(from, to, constants.COPYFILE_FICLONE);
  rmSync(`${to}-wal`, { force: true });
  if (existsSync(`${from}-wal`)) copyFileSync(`${from}-wal`, `${to}-wal`, constants.COPYFILE_FICLONE);
  for (const entry of readdirSync(dirname(from))) {
    const suffix = entry.slice(name.length);
    if (!entry.startsWith(`${name}-`) || NOT_IN_IMAGE.has(suffix)) continue;
    cpSync(join(dirname(from), entry), to + suffix, { recursive: true, force: true });
  }
}

/** As the witness has it: opening the database would change it. */
function durabilityOf(path: string): Durability {
  const seen = mostSeen(readSlots(path));
  if (seen !== null) return seen.durability;
  throw new Error(`There is no Holdfast database at ${path}.`);
}

function cutLog(
  image: string,
  index: WalIndex | null,
  durability: Durability,
  torn: number | null,
): Pick<PowerCutImage, "framesKept" | "bytesUnsynced"> {
  const size = fileSize(`${image}-wal`);
  // Without an index no process has the log open, and it was synced long ago.
  if (index === null || size === 0) return { framesKept: 0, bytesUnsynced: 0 };
  const framesKept = durability === "power" ? index.committed : Math.max(index.copied, index.copying);
  const end = framesKept === 0 ? 0 : LOG_HEADER + framesKept * (FRAME_HEADER + index.pageSize);
  using log = openFile(`${image}-wal`, "r+");
  if (torn === null) ftruncateSync(log.fd, end);
  else tear(log.fd, end, size, torn);
  return { framesKept, bytesUnsynced: size - end };
}

function tear(log: number, end: number, size: number, seed: number): void {
  for (let at = Math.ceil(end / SECTOR_BYTES) * SECTOR_BYTES; at < size; at += SECTOR_BYTES) {
    if (hash("sha1", `${seed} ${at}`, "buffer").readUInt8(0) < 128) continue;
    writeSync(log, Buffer.alloc(Math.min(SECTOR_BYTES, size - at)), 0, null, at);
  }
}

function blankCopied(image: string, frames: number, pageSize: number): void {
  if (frames === 0) return;
  using log = openFile(`${image}-wal`, "r");
  using db = openFile(image, "r+");
  const pages = fstatSync(db.fd).size / pageSize;
  const number = Buffer.alloc(4);
  for (let frame = 0; frame < frames; frame++) {
    readSync(log.fd, number, 0, 4, LOG_HEADER + frame * (FRAME_HEADER + pageSize));
    const page = number.readUInt32BE();
    // The first page identifies the file for programs that read it before they open it.
    if (page > 1 && page <= pages) writeSync(db.fd, Buffer.alloc(pageSize), 0, pageSize, (page - 1) * pageSize);
  }
}

/** What processes that have a database open share about its log, in the `-shm` file. */
interface WalIndex {
  pageSize: number;
  /** The last frame of the newest commit; with `synchronous=FULL` it is synced. */
  committed: number;
  copied: number;
  copying: number;
  /** All of it: equal texts are of the same instant. */
  text: string;
}

const IS_LITTLE = endianness() === "LE";
const HEADER = 48;
const LENGTH = 136;

/** Null: no process has the database open, or none has read its log yet. */
function readWalIndex(path: string): WalIndex | null {
  const file = `${path}-shm`;
  if (fileSize(file) < LENGTH) return null;
  const bytes = Buffer.alloc(LENGTH);
  {
    using shm = openFile(file, "r");
    readSync(shm.fd, bytes, 0, LENGTH, 0);
  }
  // SQLite writes the header twice, the second copy first: a process that is stopped in between leaves one intact.
  const header = [bytes.subarray(HEADER, 2 * HEADER), bytes.subarray(0, HEADER)].find(isWhole);
  if (header === undefined) return null;
  const size = IS_LITTLE ? header.readUInt16LE(14) : header.readUInt16BE(14);
  return {
    pageSize: size === 1 ? 65_536 : size,
    committed: word(header, 16),
    copied: word(bytes, 2 * HEADER),
    copying: word(bytes, 2 * HEADER + 32),
    text: bytes.toString("hex"),
  };
}

function isWhole(header: Buffer): boolean {
  if (header.readUInt8(12) === 0) return false;
  let [a, b] = [0, 0];
  for (let at = 0; at < 40; at += 8) {
    a = (a + word(header, at) + b) >>> 0;
    b = (b + word(header, at + 4) + a) >>> 0;
  }
  return a === word(header, 40) && b === word(header, 44);
}

function word(bytes: Buffer, at: number): number {
  return IS_LITTLE ? bytes.readUInt32LE(at) : bytes.readUInt32BE(at);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [from = "", to = "", torn] = process.argv.slice(2);
  process.stdout.write(JSON.stringify(cutPower(from, to, torn === undefined ? null : Number(torn))));
}
