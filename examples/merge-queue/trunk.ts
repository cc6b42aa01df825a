import { spawnSync } from "node:child_process";
import { FileTrunk } from "./file-trunk.ts";
import { GitTrunk } from "./git-trunk.ts";

/** The one checkout in which branches are merged. Two who work in it at once would spoil it. */
export interface Trunk {
  /** Once: a trunk, and branches beside it that write a file each. Two that write the same file conflict. */
  create(branches: Record<string, string>): void;
  /** Discards what a killed process has left half done. */
  clean(): void;
  has(branch: string): boolean;
  /** Into the checkout, not committed yet; throws on a conflict. */
  merge(branch: string): void;
  commit(branch: string): void;
  /** What was merged, the oldest first. */
  merged(): string[];
}

/** A real git repository where there is git, plain files elsewhere. */
export function trunkAt(path: string): Trunk {
  return spawnSync("git", ["--version"]).status === 0 ? new GitTrunk(path) : new FileTrunk(path);
}
