import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { Artifacts } from "../../src/artifacts/artifacts.ts";
import { Alive } from "../../src/store/alive.ts";
import { Child } from "../crash/spawn.ts";

export const HOUR = 3_600_000;

/** As the runtime does: the lock is the store's. */
export function openIn(folder: string, clock?: { now(): number }): Promise<Artifacts> {
  return Artifacts.open(folder, { alive: (path) => new Alive(path, "node:sqlite"), ...(clock === undefined ? {} : { clock }) });
}

/** A folder of a test's own, what was opened in it, and what is found there. Cleaned up after the test. */
export class Shelf {
  readonly base = mkdtempSync(join(tmpdir(), "holdfast-artifacts-"));
  readonly folder = join(this.base, "store");
  /** By how much this process is ahead; sweeps go by it. */
  ahead = 0;
  readonly #opened: Artifacts[] = [];
  readonly #children: Child[] = [];

  constructor(t: TestContext) {
    t.after(async () => {
      for (const child of this.#children) child.kill();
      for (const child of this.#children) await child.ended;
      for (const artifacts of this.#opened) artifacts.close();
      rmSync(this.base, { recursive: true, force: true });
    });
  }

  async open(): Promise<Artifacts> {
    const artifacts = await openIn(this.folder, { now: () => Date.now() + this.ahead });
    this.#opened.push(artifacts);
    return artifacts;
  }

  start(script: string, options: object = {}): Child {
    const child = new Child(`../../artifacts/children/${script}`, { folder: this.folder, base: this.base, ...options });
    this.#children.push(child);
    return child;
  }

  fileOf(hash: string): string {
    return join(this.folder, hash.slice(0, 2), hash.slice(2));
  }

  /** The hashes of what is in its place, by name alone. */
  stored(): string[] {
    return readdirSync(this.folder)
      .filter((name) => /^[0-9a-f]{2}$/.test(name))
      .flatMap((name) => readdirSync(join(this.folder, name)).map((rest) => name + rest))
      .sort();
  }

  /** What lies in `tmp` and `doomed`. */
  unfinished(): string[] {
    return ["tmp", "trash"].flatMap((name) => readdirSync(join(this.folder, name)).map((file) => join(this.folder, name, file)));
  }
}

/** Every file under a folder with its bytes, as text. */
export function contents(folder: string): Record<string, string> {
  const names = readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((name) =>
    statSync(join(folder, name)).isFile(),
  );
  return Object.fromEntries(names.sort().map((name) => [name, readFileSync(join(folder, name), "latin1")]));
}

/** Bytes that look random and are the same each time. */
export function noise(size: number, seed = 1): Buffer {
  const bytes = Buffer.allocUnsafe(size);
  let state = seed >>> 0 || 1;
  for (let i = 0; i < size; i++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    bytes[i] = state >>> 24;
  }
  return bytes;
}

export const noneReferenced = async (): Promise<Set<string>> => new Set();
export const allReferenced = async (hashes: string[]): Promise<Set<string>> => new Set(hashes);
