import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test as nodeTest, type TestContext, type TestOptions } from "node:test";
import { fileURLToPath } from "node:url";
import { Holdfast } from "../../src/holdfast.ts";
import { open } from "../../src/open.ts";
import type { OpenOptions } from "../../src/engine/open-options.ts";
import { Engine } from "../../src/engine/engine.ts";
import type { Log } from "../../src/engine/log.ts";
import { checkSinks } from "../../src/engine/events/relays.ts";
import { clockFrom } from "../../src/engine/host.ts";
import { locate } from "../../src/store/open-store.ts";
import { type TestClock, testClock } from "../../src/testing/index.ts";
import { HoldfastError, type Job } from "../../src/index.ts";
import { DEFINITIONS } from "./children/tasks.ts";

/** What the tests of the public API share: a database with its clock, promises in hand, what an error must say. */
export interface Bench {
  hf: Holdfast;
  clock: TestClock;
  logged: Logged[];
}

export interface Logged {
  level: keyof Log;
  message: string;
  data: object | undefined;
}

/** Where the databases of these tests are. */
export interface Ground {
  /** Which of the tests run there; null: this one does, else why it does not. */
  skips?(name: string): string | null;
  /** A location for a single handle, never used before; `leave` is called when it is closed. */
  fresh(): Promise<{ where: string; options?: OpenOptions; leave?: () => Promise<void> }>;
  /** One for several processes, reached by this text alone. */
  shared(t: TestContext): Promise<string>;
}

let ground: Ground = {
  fresh: async () => ({ where: ":memory:" }),
  shared: async (t) => join(await folder(t), "work.db"),
};

/** From now on, for a file that runs tests of others somewhere else. */
export function standOn(other: Ground): void {
  ground = other;
}

type Body = (t: TestContext) => void | Promise<void>;

/** A test that runs wherever its file does. */
export function test(name: string, body: Body): void;
export function test(name: string, options: TestOptions, body: Body): void;
export function test(name: string, ...given: [Body] | [TestOptions, Body]): void {
  const [options, body] = given.length === 1 ? [{}, given[0]] : given;
  const skip = ground.skips?.(name) ?? null;
  void nodeTest(name, skip === null ? options : { ...options, skip }, body);
}

/** A database whose time stands still; it is closed when the test is over, whatever runs in it. */
export async function memory(t: TestContext, start?: number): Promise<Bench> {
  const clock = testClock(start);
  const logged: Logged[] = [];
  const { where, options, leave } = await ground.fresh();
  const hf = await open(where, { ...options, clock, log: logInto(logged) });
  t.after(async () => {
    await closeAll(clock, hf);
    await leave?.();
  });
  return { hf, clock, logged };
}

/** Where several processes can open the same database. */
export function home(t: TestContext): Promise<string> {
  return ground.shared(t);
}

/** Removed when all tests of a file are over: what still writes there may be closed by a later hook of the same test. */
const folders: string[] = [];
after(() => Promise.all(folders.map((path) => rm(path, { recursive: true, force: true }))));

/** A folder of its own. */
export async function folder(_t: TestContext): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), "holdfast-runtime-"));
  folders.push(path);
  return path;
}

/** A database that is opened as many times as asked for, each as if by a process of its own. */
export async function file(t: TestContext): Promise<{ path: string; clock: TestClock; another: () => Promise<Holdfast> }> {
  const clock = testClock();
  const handles: Holdfast[] = [];
  // Hooks run in order, and the folder must go last.
  t.after(() => closeAll(clock, ...handles));
  const path = await home(t);
  const another = async () => {
    const hf = await apart(path, { clock });
    handles.push(hf);
    return hf;
  };
  return { path, clock, another };
}

/** Past the registry that lets handles of one process share an engine. */
export async function apart(path: string, options: OpenOptions = {}): Promise<Holdfast> {
  const engine = await Engine.open(locate(path, options), {
    clock: clockFrom(options.clock),
    log: options.log || logInto([]),
    program: "a test",
  });
  const letGo = await engine.relays.use(checkSinks(options.sinks));
  return new Holdfast(engine, (one) => letGo().then(() => one.close()));
}

/** A handler that hangs holds the close up until its drain is over, so time has to pass. */
async function closeAll(clock: TestClock, ...handles: Holdfast[]): Promise<void> {
  const closed = Promise.all(handles.map((hf) => hf.close()));
  await clock.advance("21s");
  await closed;
}

export function logInto(logged: Logged[]): Log {
  const at = (level: keyof Log) => (message: string, data?: object) => void logged.push({ level, message, data });
  return { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
}

export interface Deferred<T = void> {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (reason: unknown) => void;
}

export function deferred<T = void>(): Deferred<T> {
  let resolve!: (value: T) => void;
  let reject!: (reason: unknown) => void;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}

/** A handler in hand: what was called, and how each call ends. */
export interface Stage<C> {
  run: (context: C) => Promise<unknown>;
  calls: { context: C; end: (output?: unknown) => void; fail: (error: unknown) => void }[];
  /** Resolves when it was called this many times in all. */
  called: (times: number) => Promise<void>;
}

export function stage<C>(): Stage<C> {
  const calls: Stage<C>["calls"] = [];
  const waiting: { times: number; resolve: () => void }[] = [];
  return {
    calls,
    run: (context) =>
      new Promise((resolve, reject) => {
        calls.push({ context, end: resolve, fail: reject });
        for (const { times, resolve: tell } of waiting) if (calls.length >= times) tell();
      }),
    called: (times) => new Promise((resolve) => (calls.length >= times ? resolve() : void waiting.push({ times, resolve }))),
  };
}

export async function see(hf: Holdfast, id: string): Promise<Job> {
  const job = await hf.jobs.get(id);
  assert.ok(job, `job ${id} is there`);
  return job;
}

export async function seeAll(hf: Holdfast): Promise<Job[]> {
  return (await hf.jobs.list({ limit: 1_000 })).items;
}

export async function collect<T>(from: AsyncIterable<T>): Promise<T[]> {
  const items: T[] = [];
  for await (const item of from) items.push(item);
  return items;
}

/** An error that helps: this code, and something to do about it. */
export function code(expected: string): (error: unknown) => true {
  return (error) => {
    if (!(error instanceof HoldfastError)) throw new assert.AssertionError({ message: `no HoldfastError: ${String(error)}` });
    assert.equal(error.code, expected, error.message);
    assert.ok(error.hint.length > 10, "a hint");
    assert.ok(error.message.length > 0, "a message");
    return true;
  };
}

/** For values that the types would not let through. */
export function unchecked<T>(value: unknown): T {
  return value as T;
}

/** A database whose three tasks are held by a child process, which has saved a checkpoint for each. */
export async function interruptedChild(t: TestContext): Promise<{ path: string; hf: Holdfast; kill: () => Promise<void> }> {
  let child: ChildProcess | undefined;
  let opened: Holdfast | undefined;
  const kill = async () => {
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, "exit");
    child.kill("SIGKILL");
    await gone;
  };
  // Hooks run in order, and the folder must go last.
  t.after(() => kill().then(() => opened?.close()));
  const path = await home(t);
  const hf = (opened = await open(path));
  for (const def of DEFINITIONS) await hf.enqueue(def, def.name, { id: def.name });
  const holder = (child = spawnChild(path));
  await new Promise<void>((resolve, reject) => {
    holder.stdout?.on("data", (text: Buffer) => text.toString().includes("held") && resolve());
    holder.once("exit", (status) => reject(new Error(`the child ended with ${String(status)}`)));
  });
  return { path, hf, kill };
}

/** The process that is in the middle of its work, or that kills itself at a point. */
export function spawnChild(path: string, point?: string): ChildProcess {
  const program = fileURLToPath(new URL("children/interrupted.ts", import.meta.url));
  return spawn(process.execPath, [program, path, ...(point === undefined ? [] : [point])], {
    stdio: ["ignore", "pipe", "inherit"],
  });
}
