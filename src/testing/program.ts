import { type ChildProcess, execFileSync, fork } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { HoldfastError } from "../core/text/errors.ts";

export interface ProgramOptions {
  args?: readonly string[];
  cwd?: string;
  env?: NodeJS.ProcessEnv;
  execArgv?: readonly string[];
}

export interface Ended {
  code: number | null;
  signal: NodeJS.Signals | null;
}

const running = new Set<Program>();
process.on("exit", () => {
  for (const program of running) program.killAll();
});

export class Program {
  readonly #child: ChildProcess;
  readonly ended: Promise<Ended>;
  stdout = "";
  stderr = "";
  #end: Ended | null = null;
  readonly #waiters = new Set<() => void>();

  constructor(file: string, { args = [], cwd, env, execArgv = [] }: ProgramOptions) {
    // Node's test runner sets this variable for its own children only.
    const { NODE_TEST_CONTEXT: _, ...inherited } = process.env;
    this.#child = fork(file, args, {
      ...(cwd === undefined ? {} : { cwd }),
      env: { ...inherited, ...env },
      execArgv: [...execArgv],
      silent: true,
      // A power cut must reach the whole process group.
      detached: process.platform !== "win32",
    });
    running.add(this);
    this.#child.stdout?.setEncoding("utf8").on("data", (text: string) => this.#onOutput((this.stdout += text)));
    this.#child.stderr?.setEncoding("utf8").on("data", (text: string) => this.#onOutput((this.stderr += text)));
    this.ended = new Promise((resolve, reject) => {
      this.#child.once("error", reject);
      this.#child.once("exit", (code, signal) => {
        this.#end = { code, signal };
        // Children that survive would keep the output open.
        this.killAll();
        running.delete(this);
      });
      this.#child.once("close", (code, signal) => {
        this.#onOutput("");
        resolve({ code, signal });
      });
    });
  }

  get pid(): number {
    return this.#child.pid as number;
  }

  get isOver(): boolean {
    return this.#end !== null;
  }

  async printed(text: string | RegExp): Promise<void> {
    const isThere = () => (typeof text === "string" ? this.stdout.includes(text) : text.test(this.stdout));
    while (!isThere()) {
      if (this.isOver) return;
      await new Promise<void>((resolve) => this.#waiters.add(resolve));
    }
  }

  send(message: string): void {
    if (this.#child.connected) this.#child.send(message, () => {});
  }

  kill(signal: NodeJS.Signals): void {
    if (!this.isOver) this.#child.kill(signal);
  }

  killAll(): void {
    try {
      process.kill(process.platform === "win32" ? this.pid : -this.pid, "SIGKILL");
    } catch {
      // No process of the group is left.
    }
  }

  /** Resolves when every thread of every process of the group is stopped. */
  async stopAll(): Promise<void> {
    if (process.platform === "win32") {
      throw new HoldfastError(
        "NOT_ON_WINDOWS",
        "A power cut cannot be simulated on Windows.",
        "Run this test on Linux or macOS.",
      );
    }
    process.kill(-this.pid, "SIGSTOP");
    while (!this.isOver && !isStopped(this.pid)) await pause(1);
  }

  #onOutput(_text: string): void {
    for (const resolve of this.#waiters) resolve();
    this.#waiters.clear();
  }
}

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
    // The program's name may contain anything, so parse from its closing bracket on.
    const [state = "", , group] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return { state, group: Number(group) };
  } catch {
    return null;
  }
}
