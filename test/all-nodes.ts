import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, existsSync, globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { transformSync } from "esbuild";
import { globalSetup, globalTeardown } from "./setup.ts";

/*
 * The second part of `npm run test:all`: the core suites, on the bundle, on the other versions of Node that are supported. They come
 * from the npm registry, once, into `test/nodes`. Names of files as arguments replace the suites.
 */
const ROOT = join(import.meta.dirname, "..");
const NODES = join(ROOT, "test/nodes");
const SUITES = [
  "test/unit/{group-commit,json,keeper,lease,open,retry,watch}.test.ts",
  "test/conformance/node-sqlite-{file,memory}.test.ts",
  "test/runtime/{after,backup,claim,enqueue,jobs,lock,recovery,restore,schedule,stop,transaction,worker}.test.ts",
  "test/builds/{incremental,isolated}.test.ts",
  "test/crash/{liveness,points,stalls}.test.ts",
  "test/cli/{claims,usage,work}.test.ts",
];

if (process.platform !== "linux" || process.arch !== "x64") throw new Error("test:all brings Node for Linux on x64 only.");
const installed = (name: string) => join(NODES, "node_modules", name, "bin/node");
if (!["node-22", "node-26"].every((name) => existsSync(installed(name)))) execFileSync("npm", ["ci"], { cwd: NODES });

await globalSetup();
const lowered = mkdtempSync(join(tmpdir(), "holdfast-lowered-"));
chmodSync(lowered, 0o755);
lower("test", "examples");
const given = process.argv.slice(2);
const files = (given.length > 0 ? given : SUITES).flatMap((pattern) => globSync(pattern, { cwd: ROOT })).toSorted();
const failed: string[] = [];
try {
  for (const node of [installed("node-22"), installed("node-26")]) {
    const version = execFileSync(node, ["--version"], { encoding: "utf8" }).trim();
    console.log(`\n── Node ${version}: ${files.length} files ──`);
    const isOld = node === installed("node-22");
    const env = {
      ...process.env,
      ...(isOld ? { HOLDFAST_TEST_LOWERED: `${pathToFileURL(lowered).href}/` } : {}),
      NODE_OPTIONS: `${process.env["NODE_OPTIONS"]} --disable-warning=ExperimentalWarning`,
    };
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
  rmSync(lowered, { recursive: true, force: true });
}
if (failed.length > 0) {
  console.error(`Failed on ${failed.join(", ")}.`);
  process.exit(1);
}

/** Node 22 cannot read `await using`: it gets the tests as they are without. */
function lower(...folders: string[]): void {
  const tsconfigRaw = { compilerOptions: { verbatimModuleSyntax: true } };
  for (const path of globSync(
    folders.map((folder) => `${folder}/**/*.ts`),
    { cwd: ROOT },
  )) {
    const { code } = transformSync(readFileSync(join(ROOT, path), "utf8"), { loader: "ts", target: "node22", tsconfigRaw });
    mkdirSync(dirname(join(lowered, path)), { recursive: true });
    writeFileSync(join(lowered, path), code);
  }
}
