import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test as nodeTest, type TestContext } from "node:test";
import {
  type Build,
  type BuildHandle,
  type BuildOptions,
  type Holdfast,
  HoldfastError,
  open,
  type OpenOptions,
  type Pipeline,
} from "../../src/index.ts";

/** A build as it ended, and what led it. */
export type Built = Build & { handle: BuildHandle<Record<string, unknown>> };

/** What the tests of builds share: a database, a folder with files, and a record of what ran. */
export interface Yard {
  hf: Holdfast;
  /** Of files for `files()`. */
  root: string;
  /** Beside it. */
  folder: string;
  /** `stage target`, in the order in which handlers were called. */
  ran: string[];
  /** What ran since it was last asked, sorted. */
  taken(): string[];
  write(files: Record<string, string>): void;
  remove(...paths: string[]): void;
  /** Before the end of the test, where there are many. */
  close(): Promise<void>;
  /** Starts a build, and waits for its end. */
  build(pipeline: Pipeline, options?: BuildOptions): Promise<Built>;
  /** The same, and it has to succeed. */
  succeed(pipeline: Pipeline, options?: BuildOptions): Promise<Built>;
}

const QUIET = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

/** Where the databases of these tests are. */
export interface Ground {
  /** Null: this test runs there, else why it does not. */
  skips(name: string): string | null;
  /** A location that was never used; `leave` is called when it is closed. */
  fresh(): Promise<{ where: string; options?: OpenOptions; leave?: () => Promise<void> }>;
}

let ground: Ground = { skips: () => null, fresh: async () => ({ where: ":memory:" }) };

/** From now on, for a file that runs tests of others somewhere else. */
export function standOn(other: Ground): void {
  ground = other;
}

/** A test that runs wherever its file does. */
export function test(name: string, body: (t: TestContext) => Promise<void>): void {
  const skip = ground.skips(name);
  void nodeTest(name, skip === null ? {} : { skip }, body);
}

export async function yard(t: TestContext): Promise<Yard> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-builds-"));
  const root = join(folder, "docs");
  mkdirSync(root);
  const { where, options, leave } = await ground.fresh();
  const hf = await open(where, { log: QUIET, artifacts: join(folder, "artifacts"), ...options });
  let closed: Promise<void> | null = null;
  const close = (): Promise<void> => (closed ??= leaveAll());
  const leaveAll = async (): Promise<void> => {
    await hf.close();
    await leave?.();
    rmSync(folder, { recursive: true, force: true });
  };
  t.after(close);
  const ran: string[] = [];
  let told = 0;
  const build = async (pipeline: Pipeline, how?: BuildOptions): Promise<Built> => {
    const handle = (await hf.builds.start(pipeline, how)) as BuildHandle<Record<string, unknown>>;
    return { ...(await handle.done()), handle };
  };
  return {
    hf,
    root,
    folder,
    ran,
    close,
    taken: () => {
      const since = ran.slice(told).sort();
      told = ran.length;
      return since;
    },
    write: (files) => {
      for (const [path, text] of Object.entries(files)) {
        mkdirSync(dirname(join(root, path)), { recursive: true });
        writeFileSync(join(root, path), text);
      }
    },
    remove: (...paths) => {
      for (const path of paths) rmSync(join(root, path), { recursive: true });
    },
    build,
    succeed: async (pipeline, how) => {
      const built = await build(pipeline, how);
      assert.equal(built.state, "SUCCESS", `${built.reason} ${JSON.stringify(built.errors)}`);
      return built;
    },
  };
}

/** What a stage has made of each target. */
export async function outputsOf({ handle }: Built, stage: string): Promise<Record<string, unknown>> {
  const all: Record<string, unknown> = {};
  for await (const { target, output } of handle.outputs(stage)) all[target] = output;
  return all;
}

/** An error with this code, in words, and with a hint. */
export function refusal(code: string, says: RegExp = /./): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof HoldfastError, String(error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, says);
    assert.ok(error.hint.length > 0);
    return true;
  };
}

/** What is counted of a stage, in the order ran, cached, failed, left. */
export function counts({ stages }: Build, stage: string): number[] {
  const { ran, cached, failed, left } = stages[stage] as Build["stages"][string];
  return [ran, cached, failed, left];
}

/** No retries, and no waiting for any. */
export const ONCE = { retry: { attempts: 1 } };
