import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, globSync, rmSync } from "node:fs";
import { join } from "node:path";
import { globalSetup, globalTeardown } from "./setup.ts";

/*
 * `npm run test:all`: the core suites, on what `npm run build` makes (`dist/`), on each version of Node that is supported. The
 * other versions come from the npm registry, once, into `test/nodes`. Names of files as arguments replace the suites.
 */
const ROOT = join(import.meta.dirname, "..");
const NODES = join(ROOT, "test/nodes");
const DIST = join(ROOT, "dist");
const SUITES = [
  "test/unit/{group-commit,json,keeper,lease,open,retry,watch}.test.ts",
  "test/conformance/node-sqlite-{file,memory}.test.ts",
  "test/runtime/{after,backup,claim,enqueue,jobs,lock,recovery,restore,schedule,stop,transaction,worker}.test.ts",
  "test/builds/{incremental,isolated}.test.ts",
  "test/crash/{liveness,points,stalls}.test.ts",
  "test/cli/{claims,usage,work}.test.ts",
];

if (process.platform !== "linux" || process.arch !== "x64") throw new Error("test:all brings Node for Linux on x64 only.");
const had = existsSync(DIST);
rmSync(DIST, { recursive: true, force: true });
execFileSync(process.execPath, [join(ROOT, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.build.json"], { cwd: ROOT });
const installed = (name: string) => join(NODES, "node_modules", name, "bin/node");
if (!["node-22", "node-26"].every((name) => existsSync(installed(name)))) execFileSync("npm", ["ci"], { cwd: NODES });

process.env["HOLDFAST_TEST_DIST"] = "1";
await globalSetup();
const given = process.argv.slice(2);
const files = (given.length > 0 ? given : SUITES).flatMap((pattern) => globSync(pattern, { cwd: ROOT })).toSorted();
const failed: string[] = [];
try {
  for (const node of [installed("node-22"), process.execPath, installed("node-26")]) {
    const version = execFileSync(node, ["--version"], { encoding: "utf8" }).trim();
    console.log(`\n── Node ${version}: ${files.length} files ──`);
    const env = { ...process.env, NODE_OPTIONS: `${process.env["NODE_OPTIONS"]} --disable-warning=ExperimentalWarning` };
    const args = [
      "--test",
      "--test-concurrency=2",
      `--test-reporter=${process.env["HOLDFAST_TEST_REPORTER"] ?? "dot"}`,
      ...files,
    ];
    const [code] = (await once(spawn(node, args, { cwd: ROOT, env, stdio: "inherit" }), "close")) as [number | null];
    if (code !== 0) failed.push(version);
  }
} finally {
  await globalTeardown();
  // The commands are run from there, where it is.
  if (!had) rmSync(DIST, { recursive: true, force: true });
}
if (failed.length > 0) {
  console.error(`Failed on ${failed.join(", ")}.`);
  process.exit(1);
}
