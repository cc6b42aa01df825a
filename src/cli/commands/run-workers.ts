import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import type { Command } from "commander";
import type { RunOptions } from "../arguments.ts";
import { whereOf } from "../database.ts";
import type { FoundPipeline } from "../modules.ts";
import { oneLine, paint, printable } from "../render/table.ts";

const STOP_TIMEOUT_MS = 15_000;

interface WorkerProcessesOptions extends FoundPipeline {
  command: Command;
  options: Pick<RunOptions, "workers" | "concurrency">;
  say: (text: string) => void;
}

/** Each process finishes its running jobs and exits when its channel to this process closes, also if this process dies. */
export class WorkerProcesses {
  readonly #parts: WorkerProcessesOptions;
  readonly #there = new Set<ChildProcess>();
  #started = false;
  #ending = false;

  constructor(parts: WorkerProcessesOptions) {
    this.#parts = parts;
  }

  get size(): number {
    return this.#there.size;
  }

  start(): void {
    if (this.#started) return;
    this.#started = true;
    for (let i = 0; i < (this.#parts.options.workers ?? 0); i++) this.#hire();
  }

  async end(): Promise<void> {
    this.#ending = true;
    await Promise.all([...this.#there].map((child) => stopChild(child)));
  }

  #hire(): void {
    const { command, file, pipeline, options, say } = this.#parts;
    const { config, schema, artifacts } = command.optsWithGlobals<{ config?: string; schema?: string; artifacts?: string }>();
    const named = Object.entries({ config, schema, artifacts }).flatMap(([name, value]) =>
      value === undefined ? [] : [`--${name}`, value],
    );
    const many = options.concurrency === undefined ? [] : ["--concurrency", String(options.concurrency)];
    const args = [process.argv[1] as string, "work", file, "--json", "--for-run", pipeline.name, ...many, ...named];
    const where = whereOf(command);
    const child = spawn(process.execPath, [...process.execArgv, ...args], {
      // An address may contain a password, and every user of the host can read arguments.
      env: { ...process.env, ...(where === undefined ? {} : { HOLDFAST_DB: where }) },
      stdio: ["ignore", "ignore", "pipe", "ipc"],
    });
    this.#there.add(child);
    const stderr = child.stderr;
    if (stderr !== null) {
      createInterface({ input: stderr }).on("line", (line) => say(`${paint("dim", `[${child.pid}]`)} ${printable(line)}`));
    }
    child.on("error", (error) => this.#gone(child, `could not be started: ${error.message}`));
    child.on("exit", (code, signal) => this.#gone(child, signal === null ? `ended with ${code}` : `was killed by ${signal}`));
  }

  #gone(child: ChildProcess, how: string): void {
    if (!this.#there.delete(child) || this.#ending) return;
    const left = this.#there.size + 1;
    this.#parts.say(
      paint("yellow", `Worker ${child.pid ?? ""} ${oneLine(how)}; what it had is done by the others (${left} left).`),
    );
  }
}

async function stopChild(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  if (child.connected) child.disconnect();
  const timer = setTimeout(() => child.kill("SIGKILL"), STOP_TIMEOUT_MS);
  await gone;
  clearTimeout(timer);
}
