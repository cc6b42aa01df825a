import { execFileSync } from "node:child_process";
import { closeSync, mkdtempSync, openSync, readFileSync, readSync, rmSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import type { TestContext } from "node:test";

export const PAGE = 4_096;

/** A folder for one test, and the database in it. */
export function place(t: TestContext): { folder: string; path: string } {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-damage-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  return { folder, path: join(folder, "work.db") };
}

/** Writes as a bad disk would. No handle in this process may have the file open. */
export function scribble(file: string, at: number, bytes: Uint8Array): void {
  const fd = openSync(file, "r+");
  writeSync(fd, bytes, 0, bytes.length, at);
  closeSync(fd);
}

export function flip(file: string, at: number, bit: number): void {
  const fd = openSync(file, "r+");
  const byte = Buffer.alloc(1);
  readSync(fd, byte, 0, 1, at);
  byte[0] = (byte[0] as number) ^ (1 << bit);
  writeSync(fd, byte, 0, 1, at);
  closeSync(fd);
}

/** The first page of a table or an index; it is checkpointed. */
export function rootOf(path: string, name: string): number {
  const db = new DatabaseSync(path);
  const found = db.prepare("select rootpage from sqlite_schema where name = ?").get(name) as { rootpage: number };
  db.close();
  return found.rootpage;
}

/** Where a page begins. */
export function offsetOf(page: number): number {
  return (page - 1) * PAGE;
}

/** Runs a statement that Holdfast did not make. */
export function alter(path: string, sql: string): void {
  const db = new DatabaseSync(path, { timeout: 1_000 });
  db.exec(sql);
  db.close();
}

/** The same in another process: two SQLite libraries in one process drop each other's locks. */
export function alterElsewhere(path: string, sql: string): void {
  const script = `const { DatabaseSync } = require("node:sqlite"); const db = new DatabaseSync(process.argv[1], { timeout: 1_000 }); db.exec(process.argv[2]); db.close();`;
  execFileSync(process.execPath, ["-e", script, path, sql]);
}

/** Where a text stands in a file, each time. */
export function whereIs(file: string, text: string): number[] {
  const bytes = readFileSync(file);
  const found: number[] = [];
  for (let at = bytes.indexOf(text); at >= 0; at = bytes.indexOf(text, at + 1)) found.push(at);
  return found;
}

export const silent = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };
