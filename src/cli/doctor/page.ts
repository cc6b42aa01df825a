import { age } from "../../core/age.ts";
import type { Diagnosis, Grade } from "../../core/diagnosis.ts";
import { sayReaders } from "../../core/wal.ts";
import { bytes, number, plural } from "../../core/words.ts";
import type { Examination } from "../../runtime/doctor.ts";
import type { Checkpointed } from "../../runtime/operator.ts";
import { oneLine, paint, type Style } from "../render/table.ts";

export interface Examined extends Omit<Examination, "storeVersion"> {
  database: string;
  versions: { holdfast: string; node: string; platform: string; store: string | null };
  /** Null: it could not be opened. */
  recheck?: Recheck | null;
  /** Null: there is no log to copy, or the database could not be opened. */
  checkpoint?: Checkpointed | null;
}

/** What `--recheck` has found. */
export interface Recheck {
  ok: boolean;
  findings: string[];
  /** Findings of damage that it has cleared. */
  cleared: string[];
}

const STYLES: Record<Grade, Style> = { damage: "red", error: "red", warning: "yellow", note: "dim" };

/** One page: what stands out, and then how everything stands. */
export function doctorPage(examined: Examined): string {
  const { found } = examined;
  const verdict = found.length === 0 ? paint("green", "Nothing stands out.") : found.map(sayFound).join("\n");
  const recheck = examined.recheck === undefined ? [] : [sayRecheck(examined.recheck)];
  const checkpoint = examined.checkpoint === undefined ? [] : [sayCheckpoint(examined.checkpoint)];
  return [paint("bold", oneLine(examined.database)), ...recheck, ...checkpoint, verdict, facts(examined)].join("\n\n");
}

function sayCheckpoint(checkpoint: Checkpointed | null): string {
  if (checkpoint === null) return "No checkpoint: there is no write-ahead log of a file here.";
  const { before, after, readers } = checkpoint;
  if (after === 0) return paint("green", `Checkpoint: ${bytes(before)} of the write-ahead log are in the database; it is empty.`);
  return paint("yellow", `Checkpoint: ${bytes(after)} of the write-ahead log are still in use${pinned(readers)}.`);
}

function sayRecheck(recheck: Recheck | null): string {
  if (recheck === null) return paint("red", "Not rechecked: the database could not be opened.");
  const { ok, findings, cleared } = recheck;
  if (!ok) return paint("red", ["The check has found:", ...findings.map((what) => `  ${oneLine(what)}`)].join("\n"));
  const found = cleared.map((what) => `  ${oneLine(what)}`);
  if (found.length === 0) return paint("green", "Every page, index and row was checked: all is well.");
  return paint("green", ["Every page, index and row was checked: all is well. Cleared:", ...found].join("\n"));
}

function sayFound({ grade, message, mend }: Diagnosis): string {
  const head = paint(STYLES[grade], `${grade.padEnd(7)} ${oneLine(message)}`);
  return mend === null ? head : `${head}\n${" ".repeat(8)}${paint("dim", `→ ${mend}`)}`;
}

function facts({ versions, databaseId, seen, lastReport }: Examined): string {
  const { holdfast, node, platform, store } = versions;
  const { disk, size, schema, wal, artifacts, audit, backups, now } = seen;
  const dead = seen.processes.filter((process) => process.dead).length;
  const rows: [string, string][] = [
    ["versions", [`holdfast ${holdfast}`, `Node ${node}`, platform, store ?? "store unknown"].join(", ")],
    ["database", databaseId ?? "not opened"],
  ];
  const add = (name: string, text: string | null) => {
    if (text !== null) rows.push([name, text]);
  };
  add("schema", schema && `version ${schema.version}`);
  add("size", size && `${bytes(size.bytes)}, ${bytes(size.unused)} unused`);
  add("disk", disk && `${disk.folder}, ${disk.network ?? "local"}, ${bytes(disk.free)} free`);
  add("settings", seen.settings.length === 0 ? null : seen.settings.map(({ name, value }) => `${name}=${value}`).join(" "));
  add("log", wal && `${bytes(wal.bytes)} in use, ${bytes(wal.copied)} copied${pinned(wal.readers)}`);
  const isOpen = databaseId !== null;
  add("processes", isOpen ? `${number(seen.processes.length - dead)} alive, ${number(dead)} dead` : null);
  const stale = seen.locks.filter((lock) => lock.stale).length;
  add("locks", isOpen ? `${number(seen.locks.length)}, ${number(stale)} stale` : null);
  add("jobs", isOpen ? `${number(seen.stuck.length)} stuck` : null);
  add(
    "artifacts",
    artifacts &&
      `${number(artifacts.there)}, ${number(artifacts.orphaned)} orphaned, ${number(artifacts.missing.length)} missing`,
  );
  add("audit", audit && `${plural(audit.entries, "entry", "entries")}, ${audit.fault === null ? "whole" : "broken"}`);
  add(
    "backups",
    backups &&
      `${number(backups.count)} in ${backups.folder}${backups.newest === null ? "" : `, the newest ${age(now - backups.newest)} old`}`,
  );
  add("journal", seen.journal && `${plural(seen.journal.changes, "change")} in no file yet`);
  add(
    "crashes",
    !isOpen
      ? null
      : lastReport === null
        ? "none so far"
        : `the last ${age(now - lastReport.recoveredAt)} ago, ${outcome(lastReport)}`,
  );
  const width = Math.max(...rows.map(([name]) => name.length));
  return rows.map(([name, text]) => `${paint("dim", name.padEnd(width))}  ${oneLine(text)}`).join("\n");
}

function pinned(readers: Parameters<typeof sayReaders>[0]): string {
  const who = sayReaders(readers);
  return who === null ? "" : `, pinned by ${who}`;
}

function outcome({ wasSuccessful, jobsRecovered, errors }: NonNullable<Examined["lastReport"]>): string {
  return wasSuccessful ? `${plural(jobsRecovered, "job")} given back` : oneLine(errors[0] ?? "something was wrong");
}
