import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const BIN = fileURLToPath(new URL("../../bin/holdfast.js", import.meta.url));
export const JOBS = fixture("jobs.ts");

export interface Ended {
  code: number | null;
  stdout: string;
  stderr: string;
}

export function fixture(name: string): string {
  return fileURLToPath(new URL(`./fixtures/${name}`, import.meta.url));
}

/** The real command in a process of its own. */
export class Running {
  readonly child: ChildProcess;
  readonly ended: Promise<Ended>;
  #stdout = "";
  #stderr = "";
  #watchers = new Set<() => void>();

  constructor(
    args: readonly string[],
    options: { cwd: string; env?: NodeJS.ProcessEnv; input?: string | null; node?: string[] },
  ) {
    const { NO_COLOR: _, FORCE_COLOR: __, HOLDFAST_DB: ___, ...env } = process.env;
    this.child = spawn(process.execPath, [...(options.node ?? []), BIN, ...args], {
      cwd: options.cwd,
      env: { ...env, ...options.env },
    });
    this.child.stdout?.setEncoding("utf8").on("data", (text: string) => this.#heard((this.#stdout += text)));
    this.child.stderr?.setEncoding("utf8").on("data", (text: string) => this.#heard((this.#stderr += text)));
    // null: the test itself ends it.
    if (options.input !== null) this.child.stdin?.end(options.input ?? "");
    this.ended = new Promise((resolve) => {
      this.child.on("close", (code) => {
        this.#heard("");
        resolve({ code, stdout: this.#stdout, stderr: this.#stderr });
      });
    });
  }

  get stdout(): string {
    return this.#stdout;
  }

  /** Resolves when the process has said this, on either stream. */
  async said(text: string | RegExp): Promise<void> {
    const isIn = (all: string) => (typeof text === "string" ? all.includes(text) : text.test(all));
    while (!isIn(this.#stdout + this.#stderr)) {
      assert.equal(this.child.exitCode, null, `it ended without saying "${String(text)}": ${this.#stdout}${this.#stderr}`);
      await new Promise<void>((resolve) => this.#watchers.add(resolve));
    }
  }

  #heard(_text: string): void {
    for (const watcher of this.#watchers) watcher();
    this.#watchers.clear();
  }
}

/** A folder with a database, for one test file. */
export class Place {
  readonly folder: string;
  readonly db: string;
  /** Compiled once, not in each of a dozen processes: that is most of what a short command costs. */
  readonly cache: string;
  readonly #started: Running[] = [];

  static async make(): Promise<Place> {
    return new Place(await mkdtemp(join(tmpdir(), "holdfast-cli-")));
  }

  private constructor(folder: string) {
    this.folder = folder;
    this.db = join(folder, "work.db");
    this.cache = process.env["NODE_COMPILE_CACHE"] ?? join(folder, "cache");
  }

  /** On this place's database. */
  run(
    args: readonly string[],
    options: { env?: NodeJS.ProcessEnv; input?: string | null; node?: string[] } = {},
  ): Promise<Ended> {
    return this.start(args, options).ended;
  }

  start(args: readonly string[], options: { env?: NodeJS.ProcessEnv; input?: string | null; node?: string[] } = {}): Running {
    const env = { HOLDFAST_DB: this.db, NODE_COMPILE_CACHE: this.cache, ...options.env };
    const running = new Running(args, { cwd: this.folder, ...options, env });
    this.#started.push(running);
    return running;
  }

  /** The one JSON document on its standard output. */
  async json<T>(args: readonly string[], code = 0): Promise<T> {
    const ended = await this.run([...args, "--json"]);
    assert.equal(ended.code, code, ended.stdout + ended.stderr);
    return JSON.parse(ended.stdout) as T;
  }

  /** What a failed test left running goes with it. */
  async remove(): Promise<void> {
    for (const { child, ended } of this.#started) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      child.kill("SIGKILL");
      await ended;
    }
    await rm(this.folder, { recursive: true, force: true });
  }
}

export interface JsonError {
  error: { code: string; message: string; hint: string; stack?: string };
}
