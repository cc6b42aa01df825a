import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { devNull } from "node:os";
import { join } from "node:path";
import type { Trunk } from "./trunk.ts";

export class GitTrunk implements Trunk {
  readonly #path: string;

  constructor(path: string) {
    this.#path = path;
  }

  create(branches: Record<string, string>): void {
    mkdirSync(this.#path);
    this.#git("init", "--quiet", "--initial-branch=main");
    this.#git("commit", "--quiet", "--allow-empty", "--message=The beginning");
    for (const [branch, file] of Object.entries(branches)) {
      this.#git("checkout", "--quiet", "-b", branch, "main");
      writeFileSync(join(this.#path, file), `by ${branch}\n`);
      this.#git("add", ".");
      this.#git("commit", "--quiet", `--message=Work on ${branch}`);
    }
    this.#git("checkout", "--quiet", "main");
  }

  clean(): void {
    // The claim is exclusive, so a lock file here belongs to a process that died.
    rmSync(join(this.#path, ".git/index.lock"), { force: true });
    this.#git("reset", "--quiet", "--hard", "main");
    this.#git("clean", "--quiet", "--force", "-d");
  }

  has(branch: string): boolean {
    return this.#git("branch", "--merged", "main", "--format=%(refname:short)").split("\n").includes(branch);
  }

  merge(branch: string): void {
    try {
      this.#git("merge", "--quiet", "--no-ff", "--no-commit", branch);
    } catch {
      throw new Error(`${branch} conflicts with main.`);
    }
  }

  commit(branch: string): void {
    this.#git("commit", "--quiet", `--message=${branch}`);
  }

  merged(): string[] {
    const log = this.#git("log", "--first-parent", "--merges", "--reverse", "--format=%s", "main");
    return log.split("\n").filter((line) => line !== "");
  }

  #git(...args: string[]): string {
    const who = { GIT_AUTHOR_NAME: "merge queue", GIT_AUTHOR_EMAIL: "queue@example.com" };
    const by = { GIT_COMMITTER_NAME: "merge queue", GIT_COMMITTER_EMAIL: "queue@example.com" };
    const none = { GIT_CONFIG_GLOBAL: devNull, GIT_CONFIG_NOSYSTEM: "1" };
    const env = { ...process.env, ...who, ...by, ...none };
    return execFileSync("git", args, { cwd: this.#path, env, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] }).trimEnd();
  }
}
