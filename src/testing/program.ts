import { type ChildProcess, fork } from "node:child_process";

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

/** Running programs, killed when this process exits. */
const running = new Set<Program>();
process.on("exit", () => {
  for (const program of running) program.killAll();
});

/** A user's program in its own process group. */
export class Program {
  readonly #child: ChildProcess;
  readonly ended: Promise<Ended>;
  stdout = "";
  stderr = "";
  #end: Ended | null = null;
  readonly #waiters = new Set<() => void>();

  constructor(file: string, { args = [], cwd, env, execArgv = [] }: ProgramOptions) {
    // Node's test runner sets it for its own children only.
    const { NODE_TEST_CONTEXT: _, ...inherited } = process.env;
    this.#child = fork(file, args, {
      ...(cwd === undefined ? {} : { cwd }),
      env: { ...inherited, ...env },
      execArgv: [...execArgv],
      silent: true,
      // Its children are killed with it.
      detached: process.platform !== "win32",
    });
    running.add(this);
    this.#child.stdout?.setEncoding("utf8").on("data", (text: string) => this.#onOutput((this.stdout += text)));
    this.#child.stderr?.setEncoding("utf8").on("data", (text: string) => this.#onOutput((this.stderr += text)));
    this.ended = new Promise((resolve, reject) => {
      this.#child.once("error", reject);
      this.#child.once("exit", (code, signal) => {
        this.#end = { code, signal };
        // Its children would keep its output open.
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
      // No process is left.
    }
  }

  #onOutput(_text: string): void {
    for (const resolve of this.#waiters) resolve();
    this.#waiters.clear();
  }
}
