import { execFile } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { inScratch } from "./scratch.ts";

// Not taken from scripts/bundle.ts: the bundler would count in the heap of other measurements.
const ROOT = join(import.meta.dirname, "..");
const exec = promisify(execFile);

/** Runs `measure` in an empty project that has the packed package installed, as users do: `src/` starts differently. */
export async function inProject<T>(measure: (project: string) => Promise<T>): Promise<T> {
  return inScratch(async (project) => {
    const installed = join(project, "node_modules/holdfast");
    mkdirSync(installed, { recursive: true });
    writeFileSync(join(project, "package.json"), '{ "private": true, "type": "module" }');
    await exec(process.execPath, [join(ROOT, "scripts/pack.ts"), project]);
    const { version } = (await import("../package.json", { with: { type: "json" } })).default as { version: string };
    await exec("tar", ["-xzf", join(project, `holdfast-${version}.tgz`), "-C", installed, "--strip-components=1"]);
    return measure(project);
  });
}
