import {
  checkOneOf,
  checkText,
  describeValue,
  didYouMean,
  invalidOption,
  refuseUnknown,
  rejectSurplus,
} from "../core/text/options.ts";
import { execFileSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { type Duration, toMillis } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { BOOT_VARIABLE } from "../engine/host.ts";
import { inheritedArguments, ownFile } from "../store/own-file.ts";
import { runTaskApart } from "../store/sqlite/maintenance/backup/tasks.ts";
import type { PowerCutImage } from "../store/sqlite/maintenance/power-cut.ts";
import { FILL_HEAP_MESSAGE } from "./memory-eater.ts";
import { type Ended, Program, type ProgramOptions } from "./program.ts";
import { armArtifactPoint, ARTIFACT_POINTS, type ArtifactPoint } from "../artifacts/folder.ts";
import { armPoint, POINTS } from "../store/points.ts";

const DEFAULT_MEMORY_MB = 128;

export interface CrashOptions extends ProgramOptions {
  /** How the program ends. */
  by: "SIGKILL" | "SIGTERM" | "out-of-memory" | "power-cut";
  /** The crash comes once the program prints this on stdout, or the promise resolves. Optional for "out-of-memory". */
  when?: string | RegExp | ((program: { readonly pid: number; readonly stdout: string }) => unknown);
  /** Megabytes for "out-of-memory": of its heap from the start, or beyond what it has when it is to end. Default: 128. */
  memory?: number;
  /** "heap" limits V8's heap; "kernel" also SQLite, buffers and native modules: needs Linux and `when`. Default: "heap". */
  limit?: "heap" | "kernel";
  /** The database and the place of its image, for a power cut. `torn` is a number that selects unsynced sectors to keep. */
  image?: { from: string; to: string; torn?: number };
  /** Without `when` or its end after this time, the program is killed and the test fails. Default: "60s". */
  timeout?: Duration;
}

/** How a program ended, and what it printed. */
export interface Crash extends Ended {
  stdout: string;
  stderr: string;
  /** What a power cut has left. */
  image?: PowerCutImage;
}

/**
 * Runs your program in its own process and ends it in the middle of its work.
 *
 * ```ts
 * const { signal } = await simulateCrash("worker.ts", { by: "SIGKILL", when: "started" });
 * ```
 */
export async function simulateCrash(file: string | URL, options: CrashOptions): Promise<Crash> {
  rejectSurplus(arguments, 2, "simulateCrash");
  check(options);
  if (!(file instanceof URL)) checkText(file, "The file of simulateCrash");
  const { when, timeout = "60s" } = options;
  const path = file instanceof URL || file.startsWith("file:") ? fileURLToPath(file) : resolve(options.cwd ?? "", file);
  const program = new Program(path, programOptions(options));
  let late = false;
  const deadline = setTimeout(
    () => {
      late = true;
      program.killAll();
    },
    toMillis(timeout, "timeout"),
  );
  try {
    if (when !== undefined) await waitFor(program, when);
    if (when !== undefined && program.isOver) throw (late ? notEnded : endedEarly)(path, program, await program.ended);
    const image = await crash(program, options);
    const ended = await program.ended;
    if (late) throw notEnded(path, program);
    const { stdout, stderr } = program;
    return { ...ended, stdout, stderr, ...(image === undefined ? {} : { image }) };
  } finally {
    clearTimeout(deadline);
    program.killAll();
    await program.ended;
  }
}

const CRASH_OPTIONS = ["by", "when", "memory", "limit", "image", "timeout", "args", "cwd", "env", "execArgv"];

function check(options: CrashOptions): void {
  refuseUnknown(options, CRASH_OPTIONS, "simulateCrash");
  const { by, when, image, limit = "heap" } = options;
  if (image !== undefined) refuseUnknown(image, ["from", "to", "torn"], "`image` of simulateCrash");
  checkOneOf(by, ["SIGKILL", "SIGTERM", "out-of-memory", "power-cut"], "`by` of simulateCrash");
  if (when === undefined && by !== "out-of-memory") {
    throw invalidOption("`when` is missing.", "Give `when`: a line that the program prints, or a function to wait for.");
  }
  checkOneOf(limit, ["heap", "kernel"], "`limit` of simulateCrash");
  if (limit === "kernel" && (by !== "out-of-memory" || when === undefined)) {
    throw invalidOption(
      "A limit by the kernel needs a running program that runs out of memory.",
      'Give `by: "out-of-memory"` and `when`, or leave `limit` out.',
    );
  }
  if ((by === "power-cut") !== (image !== undefined)) {
    throw invalidOption("An image belongs to a power cut.", 'Give `image: { from, to }` only together with `by: "power-cut"`.');
  }
}

function programOptions(options: CrashOptions): ProgramOptions {
  if (options.by === "out-of-memory") return withLittleMemory(options);
  const inherited = inheritedOptions(options);
  // A process that opens the image later sees a restarted host, so it does not count the power cut as a crash.
  return options.by === "power-cut" ? { ...inherited, env: { ...inherited.env, [BOOT_VARIABLE]: randomUUID() } } : inherited;
}

/** Starts the program with the options of this process, so that it finds the same modules. */
function inheritedOptions({ args = [], cwd, env = {}, execArgv = inheritedArguments() }: ProgramOptions): ProgramOptions {
  return { args, ...(cwd === undefined ? {} : { cwd }), env, execArgv };
}

function withLittleMemory({ memory = DEFAULT_MEMORY_MB, limit = "heap", ...options }: CrashOptions): ProgramOptions {
  const { env, execArgv = [], ...rest } = inheritedOptions(options);
  const eater = ownFile({ here: import.meta.url, name: "./memory-eater", runs: "a process of simulateCrash" });
  const limits = limit === "heap" ? [`--max-old-space-size=${memory}`] : [];
  return { ...rest, env: { ...env, HOLDFAST_EATEN: "1" }, execArgv: [...execArgv, ...limits, `--import=${eater.href}`] };
}

async function waitFor(program: Program, when: NonNullable<CrashOptions["when"]>): Promise<void> {
  if (typeof when === "function") await Promise.race([when(program), program.ended]);
  else await program.printed(when);
}

async function crash(
  program: Program,
  { by, when, image, limit, memory = DEFAULT_MEMORY_MB }: CrashOptions,
): Promise<PowerCutImage | undefined> {
  switch (by) {
    case "SIGKILL":
    case "SIGTERM":
      program.kill(by);
      return undefined;
    case "out-of-memory":
      if (limit === "kernel") limitMemory(program.pid, memory);
      if (when !== undefined) program.send(FILL_HEAP_MESSAGE);
      return undefined;
    case "power-cut": {
      await program.stopAll();
      const { from, to, torn = null } = image as NonNullable<CrashOptions["image"]>;
      // Cut the power in a process of its own, because the test's process may have the database open.
      const left = await runTaskApart("cutPower", { from: resolve(from), to: resolve(to), torn });
      program.killAll();
      return left;
    }
  }
}

const BYTES_PER_MB = 1024 * 1024;

/** Makes the kernel (`prlimit` of util-linux) allow the process at most this much memory beyond what it has. */
function limitMemory(pid: number, megabytes: number): void {
  try {
    const [, kilobytes] = /^VmData:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
    if (kilobytes === undefined) throw new Error("/proc does not say what it has");
    const most = Number(kilobytes) * 1024 + Math.round(megabytes * BYTES_PER_MB);
    execFileSync("prlimit", ["--pid", String(pid), `--data=${most}`], { stdio: "pipe" });
  } catch (cause) {
    throw new HoldfastError(
      "NO_KERNEL_LIMIT",
      `Cannot limit the memory of a program by the kernel here: ${(cause as Error).message}`,
      "This needs Linux and `prlimit` of util-linux. Leave `limit` out to limit the heap by V8.",
      { cause },
    );
  }
}

function endedEarly(path: string, program: Program, { code, signal }: Ended): HoldfastError {
  return new HoldfastError(
    "ENDED_EARLY",
    `${path} ended (${signal ?? `code ${code}`}) before the crash.\n${outputText(program)}`,
    "Check `when`, and that the program runs when started alone; `timeout` limits how long it may take.",
  );
}

function notEnded(path: string, program: Program): HoldfastError {
  return new HoldfastError(
    "NOT_ENDED",
    `${path} did not end in time.\n${outputText(program)}`,
    "Check `when`. Give a longer `timeout`; end a program that ignores SIGTERM with SIGKILL.",
  );
}

function outputText({ stdout, stderr }: Program): string {
  return `It printed: ${stdout}\nOn standard error: ${stderr}`;
}

/**
 * Kills this process with SIGKILL at a named point: `<operation>:<moment>`. The operation is a transaction (`enqueue`, `claim`,
 * `settle`, `tick` and so on), the moment `begun` (it is open), `written` (all its statements have run) or `committed`
 * (no caller was answered yet). `deliver:begun` and `deliver:written` are before and after events go to a sink or subscriber;
 * `put:…`, `sweep:…` and `export:…` are steps of artifacts, `backup:…`, `restore:…` and `salvage:…` those of what they name,
 * `drain:…` those of the journal.
 *
 * ```ts
 * crashAt("settle:written");
 * ```
 */
export function crashAt(point: string): void {
  rejectSurplus(arguments, 1, "crashAt");
  if (POINTS.includes(point)) return armPoint(point);
  if ((ARTIFACT_POINTS as readonly string[]).includes(point)) return armArtifactPoint(point as ArtifactPoint);
  const points = [...POINTS, ...ARTIFACT_POINTS];
  const meant = typeof point === "string" ? point.trim().replace(/\s+/, ":") : point;
  throw new HoldfastError(
    "NO_SUCH_POINT",
    `There is no point ${describeValue(point)} to crash at.`,
    `${didYouMean(meant, points)}Give one of ${points.join(", ")}.`,
  );
}
