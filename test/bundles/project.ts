import { execFile } from "node:child_process";
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { packForTests } from "../bundle.ts";

export const ROOT = join(import.meta.dirname, "../..");
const MODULES = join(ROOT, "node_modules");
export const RECIPES = join(ROOT, "examples/bundlers");
const BUNDLERS = ["esbuild", "vite"];
/** Generous: it ends a program that hangs, and decides nothing else. */
const DEADLINE = 60_000;
const exec = promisify(execFile);

/** How an action of the program ended: with an answer, or with an error. */
export interface Said {
  answer?: unknown;
  code?: string;
  message?: string;
  hint?: string;
}

/** A user's project: the program of these tests, the recipes, and Holdfast installed as it is published. */
export async function makeProject(): Promise<{ folder: string; remove: () => void }> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-bundles-"));
  await install(folder);
  for (const name of BUNDLERS) symlinkSync(join(MODULES, name), join(folder, "node_modules", name));
  copyFileSync(join(import.meta.dirname, "programs/app.mjs"), join(folder, "app.mjs"));
  cpSync(RECIPES, folder, { recursive: true });
  return { folder, remove: () => rmSync(folder, { recursive: true, force: true }) };
}

/** Installs the packed Holdfast into an empty project. */
export async function install(folder: string): Promise<string> {
  const installed = join(folder, "node_modules/holdfast");
  mkdirSync(installed, { recursive: true });
  writeFileSync(join(folder, "package.json"), '{ "private": true }');
  await exec("tar", ["-xzf", await packForTests(), "-C", installed, "--strip-components=1"]);
  return installed;
}

/** Runs Node in the project. */
export async function node(folder: string, ...args: string[]): Promise<string> {
  return (await nodeOutput(folder, ...args)).stdout;
}

export function nodeOutput(folder: string, ...args: string[]): Promise<{ stdout: string; stderr: string }> {
  return exec(process.execPath, args, { cwd: folder, timeout: DEADLINE, killSignal: "SIGKILL" });
}

/** Runs the program, or a bundle of it, in its own folder. */
export async function run(file: string, database: string, ...wishes: string[]): Promise<Record<string, Said>> {
  return JSON.parse(await node(dirname(file), file, database, ...wishes)) as Record<string, Said>;
}
