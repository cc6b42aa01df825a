import { hash } from "node:crypto";
import {
  closeSync,
  constants,
  copyFileSync,
  cpSync,
  existsSync,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  writeSync,
} from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { HoldfastError } from "../../../core/text/errors.ts";
import type { Durability } from "../../store.ts";
import { connect } from "../driver.ts";
import { FRAME_HEADER, LOG_HEADER, readWalIndex, type WalIndex } from "./wal.ts";
import { bootAnew, type Booted } from "./epoch.ts";

export interface PowerCutOptions {
  /** Where the database is. A process that writes to it is stopped. */
  from: string;
  /** Where the image goes: there must be nothing yet. */
  to: string;
  /** Null: what is not synced is gone. Else a disk has kept some of its sectors, by this number. */
  torn: number | null;
  /** The run of the host that ends with it. */
  booted: Booted;
}

/** What is left after a power cut. */
export interface PowerCutImage {
  path: string;
  durability: Durability;
  /** Frames of the log that are synced for sure. */
  framesKept: number;
  /** Bytes of the log beyond them. */
  bytesUnsynced: number;
}

/** As often as another process writes meanwhile. */
const TRIES = 10;
/** What a disk writes as one. */
const SECTOR = 512;
/** The log comes by itself, its index is made anew by the process that opens it, and backups are another disk's. */
const NOT_IN_IMAGE = new Set(["-wal", "-shm", "-backups"]);

/**
 * The files of a database as a power cut may leave them: what SQLite has synced, and nothing else of the log. It is to be
 * called in a process that does not have the database open: closing any file of it would drop the locks of that process.
 *
 * How it is known what is synced: with `synchronous=FULL` SQLite first syncs the log, then says in the `-shm` how far it is
 * committed; with NORMAL it syncs the log only before it copies it, and says how far. A page of which the log has a newer
 * version may be half copied in the database, so it is blanked there: nothing may rely on it.
 */
export function cutPower({ from, to, torn, booted }: PowerCutOptions): PowerCutImage {
  if (!existsSync(from)) throw new HoldfastError("NO_DATABASE", `There is no database at ${from}.`, "Check the path.");
  if (existsSync(to)) {
    throw new HoldfastError("IMAGE_EXISTS", `A file or folder exists at ${to} already.`, "Give a path that does not exist.");
  }
  const folder = dirname(resolve(to));
  mkdirSync(folder, { recursive: true });
  const scratch = mkdtempSync(join(folder, ".power-cut-"));
  const image = join(scratch, basename(to));
  try {
    const index = copyAtRest(resolve(from), image);
    const durability = durabilityOf(image, join(scratch, "whole"));
    const facts = cutLog(image, index, durability, torn);
    if (index !== null) blankCopied(image, facts.framesKept, index.pageSize);
    bootAnew(image, booted);
    for (const entry of readdirSync(scratch)) renameSync(join(scratch, entry), join(folder, entry));
    return { path: resolve(to), durability, ...facts };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

/** All files of one instant. */
function copyAtRest(from: string, to: string): WalIndex | null {
  for (let tried = 0; tried < TRIES; tried++) {
    const before = instantOf(from);
    const index = readWalIndex(from);
    copyFiles(from, to);
    if (instantOf(from) === before) return index;
  }
  throw new HoldfastError(
    "IN_USE",
    `Another process writes to ${from} while its image is taken.`,
    "Let only the simulated program and its child processes write during the simulation.",
  );
}

function instantOf(path: string): string {
  const files = ["", "-wal"].map((suffix) => statSync(path + suffix, { throwIfNoEntry: false, bigint: true }));
  return [readWalIndex(path)?.text, ...files.map((file) => `${file?.size} ${file?.mtimeNs}`)].join();
}

/** The database, its log, and what lies beside them: those folders and files as they are. */
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

/** In the whole of it: opening changes what is opened. */
function durabilityOf(image: string, whole: string): Durability {
  copyFileSync(image, whole);
  if (existsSync(`${image}-wal`)) copyFileSync(`${image}-wal`, `${whole}-wal`);
  const db = connect("node:sqlite", whole, { busyTimeout: 1_000 });
  try {
    const [durability] = db.prepare("select durability from holdfast_database").row() as [Durability];
    return durability;
  } catch (cause) {
    const hint = "Give the path that the program opens.";
    throw new HoldfastError("NO_DATABASE", `There is no Holdfast database at ${image}.`, hint, { cause });
  } finally {
    db.close();
    for (const suffix of ["", "-wal", "-shm"]) rmSync(whole + suffix, { force: true });
  }
}

function cutLog(
  image: string,
  index: WalIndex | null,
  durability: Durability,
  torn: number | null,
): Pick<PowerCutImage, "framesKept" | "bytesUnsynced"> {
  const size = statSync(`${image}-wal`, { throwIfNoEntry: false })?.size ?? 0;
  // No process has it open: the last one left it to the disk long ago.
  if (index === null || size === 0) return { framesKept: 0, bytesUnsynced: 0 };
  const framesKept = durability === "power" ? index.committed : Math.max(index.copied, index.copying);
  const end = framesKept === 0 ? 0 : LOG_HEADER + framesKept * (FRAME_HEADER + index.pageSize);
  const log = openSync(`${image}-wal`, "r+");
  try {
    if (torn === null) ftruncateSync(log, end);
    else tear(log, end, size, torn);
  } finally {
    closeSync(log);
  }
  return { framesKept, bytesUnsynced: size - end };
}

/** Of each sector beyond the end a coin says whether it has reached the disk. */
function tear(log: number, end: number, size: number, seed: number): void {
  for (let at = Math.ceil(end / SECTOR) * SECTOR; at < size; at += SECTOR) {
    if (hash("sha1", `${seed} ${at}`, "buffer").readUInt8(0) < 128) continue;
    writeSync(log, Buffer.alloc(Math.min(SECTOR, size - at)), 0, null, at);
  }
}

function blankCopied(image: string, frames: number, pageSize: number): void {
  if (frames === 0) return;
  const log = openSync(`${image}-wal`, "r");
  const db = openSync(image, "r+");
  try {
    const pages = fstatSync(db).size / pageSize;
    const number = Buffer.alloc(4);
    for (let frame = 0; frame < frames; frame++) {
      readSync(log, number, 0, 4, LOG_HEADER + frame * (FRAME_HEADER + pageSize));
      const page = number.readUInt32BE();
      // The first says what this file is, also to those who look before they open it.
      if (page > 1 && page <= pages) writeSync(db, Buffer.alloc(pageSize), 0, pageSize, (page - 1) * pageSize);
    }
  } finally {
    closeSync(log);
    closeSync(db);
  }
}
