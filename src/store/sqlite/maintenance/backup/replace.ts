import { chmodSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { Alive, aliveFolder } from "../../../alive.ts";
import { passStep } from "../../../points.ts";
import { connect, type Connection, type DriverName, lockFile } from "../../driver.ts";
import { createFolder, explain, fileSize, modeLike } from "../../faults.ts";
import { clearFindings } from "../damage/findings.ts";
import { locksOn } from "../open-files.ts";
import { syncFolder, writeSynced } from "./copy.ts";

/** Puts a staged database in place. If it is killed before `decide`, nothing changes; later, the next opener completes it. */
export async function replaceDatabase<T extends { kept: string | null }>(
  path: string,
  driver: DriverName,
  act: Plan["act"],
  stage: () => Promise<T>,
): Promise<T> {
  refuseInUse(path, openProcesses(path, driver));
  using lock = takeLock(path, driver);
  if (lock === null)
    throw new HoldfastError(
      "IN_USE",
      `${path} is being restored or salvaged by another process.`,
      "Try again when that process has ended.",
    );
  finishPlan(path);
  try {
    mkdirSync(restoreFolder(path), { mode: 0o700 });
    const staged = await stage();
    const plan = { kept: staged.kept ?? path, act };
    await decide(path, driver, plan);
    replaceFiles(path, plan);
    clearPlan(path);
    passStep(`${act}:kept`);
    return staged;
  } catch (error) {
    // Leave a decided plan to the next process, which completes it.
    if (planAt(path)?.phase !== "switching") clearPlan(path);
    throw explain(error, path);
  }
}

/** How long a restore waits for processes that have seen its plan and are about to close the database. */
const CLOSING_MS = 2_000;

/** Writes the plan and then looks for locks. An opening process locks and then looks for a plan, so that one sees the other. */
async function decide(path: string, driver: DriverName, plan: Pick<Plan, "kept" | "act">): Promise<void> {
  writePlan(path, { ...plan, phase: "ready" });
  passStep(`${plan.act}:planned`);
  const until = performance.now() + CLOSING_MS;
  for (let open = openProcesses(path, driver); open.length > 0; open = openProcesses(path, driver)) {
    if (performance.now() > until) refuseInUse(path, open);
    await new Promise((resume) => setTimeout(resume, 20));
  }
  writePlan(path, { ...plan, phase: "switching" });
  passStep(`${plan.act}:decided`);
}

export function nameForKept(path: string, now: number, as: "replaced" | "damaged"): string {
  const name = `${path}.${as}-${new Date(now).toISOString().replaceAll(":", "-")}`;
  for (let i = 1; ; i++) {
    const free = i === 1 ? name : `${name}-${i}`;
    if (["", "-wal", "-journal"].every((end) => !existsSync(free + end))) return free;
  }
}

export function refuseInUse(path: string, open: readonly OpenProcess[]): void {
  if (open.length === 0) return;
  const names = open.map(({ pid, program }) =>
    pid === null ? "a process" : `pid ${pid}${program === null ? "" : ` (${program})`}`,
  );
  throw new HoldfastError(
    "IN_USE",
    `${path} is open: ${names.join(", ")}. Nothing was changed.`,
    "Run `holdfast stop`, and close every other program that has the database open.",
  );
}

// Moves the files. The next process that finds the plan can repeat every step. The old log is renamed before the new database
// gets its name, or SQLite would write that log into it. A database on its way to WAL has a rollback journal, too.
function replaceFiles(path: string, { kept, act }: Pick<Plan, "kept" | "act">): void {
  const folder = dirname(path);
  if (existsSync(stagedPath(path))) {
    if (fileSize(`${path}-wal`) === 0) rmSync(`${path}-wal`, { force: true });
    if (existsSync(path)) chmodSync(stagedPath(path), modeLike(path));
    for (const end of ["-wal", "-journal", ""]) if (existsSync(path + end)) renameSync(path + end, kept + end);
    rmSync(`${path}-shm`, { force: true });
    syncFolder(folder);
    passStep(`${act}:aside`);
    renameSync(stagedPath(path), path);
    syncFolder(folder);
  }
  if (existsSync(reportPath(path))) renameSync(reportPath(path), `${kept}.report.json`);
  clearFindings(path);
  passStep(`${act}:installed`);
}

function finishPlan(path: string): void {
  const plan = planAt(path);
  if (plan?.phase === "switching") replaceFiles(path, plan);
  clearPlan(path);
}

const RESTORE_WAIT_MS = 5_000;

/** Takes this process's lock and then looks for a plan (see `decide`), so that no process keeps a file that lost its name. */
export async function enter(path: string, driver: DriverName, alive: Alive): Promise<string> {
  for (;;) {
    const token = alive.hold();
    if (!hasPlan(path)) return token;
    alive.close();
    await untilRestored(path, driver);
  }
}

export async function untilRestored(path: string, driver: DriverName): Promise<void> {
  for (const since = performance.now(); ;) {
    if (existsSync(restoreFolder(path))) {
      using lock = takeLock(path, driver);
      if (lock !== null) finishPlan(path);
    }
    if (!hasPlan(path)) return;
    if (performance.now() - since > RESTORE_WAIT_MS)
      throw new HoldfastError("IN_USE", `${path} is being restored.`, "Try again when the restore has ended.");
    await new Promise((resume) => setTimeout(resume, 20));
  }
}

interface Plan {
  /** "ready": no file was moved, so the next process discards the plan. "switching": files may have been, so it completes it. */
  phase: "ready" | "switching";
  kept: string;
  act: "restore" | "salvage";
}

export function restoreFolder(path: string): string {
  return `${path}-restore`;
}

function planPath(path: string): string {
  return join(restoreFolder(path), "plan.json");
}

export function stagedPath(path: string): string {
  return join(restoreFolder(path), "database");
}

export function reportPath(path: string): string {
  return join(restoreFolder(path), "report.json");
}

function hasPlan(path: string): boolean {
  return existsSync(planPath(path));
}

/** Takes the right to replace the files of a database, which one process has at a time. Null: another process has it. */
function takeLock(path: string, driver: DriverName): Connection | null {
  const folder = aliveFolder(path);
  createFolder(folder, modeLike(path));
  return lockFile(driver, join(folder, "restore"), modeLike(path));
}

function planAt(path: string): Plan | null {
  return hasPlan(path) ? (JSON.parse(readFileSync(planPath(path), "utf8")) as Plan) : null;
}

function writePlan(path: string, plan: Plan): void {
  writeSynced(planPath(path), JSON.stringify(plan), modeLike(path));
}

/** Removes the plan first, so that waiting processes can continue, and then the folder. */
function clearPlan(path: string): void {
  const folder = restoreFolder(path);
  rmSync(planPath(path), { force: true });
  if (existsSync(folder)) syncFolder(folder);
  rmSync(folder, { recursive: true, force: true });
  syncFolder(dirname(path));
}

/** A process that has the database open. Null: it is not registered. */
interface OpenProcess {
  pid: number | null;
  program: string | null;
}

/** Offset in a file from which on SQLite's lock bytes are. */
const LOCK_BYTES = 0x4000_0000;

/** Lists the other processes that have this database open. It writes nothing, and takes no lock. */
export function openProcesses(path: string, driver: DriverName): OpenProcess[] {
  const known = holdfastProcesses(path, driver);
  const pids = new Set(locksOn(path).flatMap(({ pid, from }) => (from < LOCK_BYTES || pid === process.pid ? [] : [pid])));
  const others = [...pids].filter((pid) => !known.some((one) => one.pid === pid));
  return [...known, ...others.map((pid) => ({ pid, program: null }))];
}

function holdfastProcesses(path: string, driver: DriverName): OpenProcess[] {
  using alive = new Alive(aliveFolder(path), driver);
  const held = alive.tokens().filter((token) => alive.probe(token) === "alive");
  if (held.length === 0) return [];
  const registered = registeredProcesses(path, driver);
  return held.map((token) => registered.get(token) ?? { pid: null, program: null });
}

function registeredProcesses(path: string, driver: DriverName): Map<string, OpenProcess> {
  try {
    using db = connect(driver, path, { busyTimeout: 100, readOnly: true });
    const rows = db.prepare("select alive, pid, program from holdfast_processes").rows() as [string, number, string][];
    return new Map(rows.map(([token, pid, program]) => [token, { pid, program }]));
  } catch {
    return new Map();
  }
}
