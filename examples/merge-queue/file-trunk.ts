import { appendFileSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Trunk } from "./trunk.ts";

/** The least that behaves like a trunk: a list of what was merged, and a draft of the next one. */
export class FileTrunk implements Trunk {
  readonly #path: string;
  readonly #list: string;
  readonly #draft: string;

  constructor(path: string) {
    this.#path = path;
    this.#list = join(path, "merged.txt");
    this.#draft = join(path, "draft.txt");
  }

  create(branches: Record<string, string>): void {
    mkdirSync(this.#path);
    writeFileSync(this.#list, "");
    for (const [branch, file] of Object.entries(branches)) writeFileSync(join(this.#path, `${branch}.branch`), file);
  }

  clean(): void {
    rmSync(this.#draft, { force: true });
  }

  has(branch: string): boolean {
    return this.merged().includes(branch);
  }

  merge(branch: string): void {
    if (existsSync(this.#draft)) throw new Error("The checkout is dirty.");
    if (this.merged().some((other) => this.#fileOf(other) === this.#fileOf(branch)))
      throw new Error(`${branch} conflicts with main.`);
    writeFileSync(this.#draft, readFileSync(this.#list));
    appendFileSync(this.#draft, `${branch}\n`);
  }

  commit(): void {
    renameSync(this.#draft, this.#list);
  }

  merged(): string[] {
    return readFileSync(this.#list, "utf8")
      .split("\n")
      .filter((line) => line !== "");
  }

  #fileOf(branch: string): string {
    return readFileSync(join(this.#path, `${branch}.branch`), "utf8");
  }
}
