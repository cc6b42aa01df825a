import assert from "node:assert/strict";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { open } from "../../src/index.ts";
import { makeProject, node, RECIPES, run } from "./project.ts";

const LEASE = 500;
let folder: string;
let remove: () => void;

before(async () => {
  ({ folder, remove } = await makeProject());
});
after(() => remove());

/** Bundles with everything in one file. */
const WHOLE: Record<string, { file: string; bundle: (outfile: string) => Promise<unknown> }> = {
  "esbuild (ESM)": { file: "app.mjs", bundle: (file) => esbuild(file, "--format=esm") },
  "esbuild (CommonJS)": { file: "app.cjs", bundle: (file) => esbuild(file, "--format=cjs", "--log-level=error") },
  "Vite with noExternal": {
    file: "app.mjs",
    bundle: (file) => {
      const config = join(folder, "whole.config.mjs");
      writeFileSync(config, 'export default { ssr: { noExternal: true }, build: { ssr: "app.mjs", outDir: process.env.OUT } };');
      process.env["OUT"] = join(file, "..");
      return node(folder, "node_modules/vite/bin/vite.js", "build", "--config", config, "--logLevel", "error", "--emptyOutDir");
    },
  },
};

for (const [name, { file, bundle }] of Object.entries(WHOLE)) {
  test(`in a whole bundle by ${name} nothing is claimed without a keeper thread, and what needs a missing file says so`, async () => {
    const moved = join(folder, `moved ${name}`);
    mkdirSync(moved);
    const app = join(moved, file);
    await bundle(app);
    const refused = ["work", "claim", "claim by hand", "build"];
    const said = await run(app, "work.db", "enqueue", ...refused, "counts", "backup", "check", "build in memory");
    assert.equal(typeof said["enqueue"]?.answer, "string");
    for (const what of refused) {
      assert.equal(said[what]?.code, "KEEPER_MISSING", `${what}: ${JSON.stringify(said[what])}`);
      assert.match(said[what]?.hint ?? "", /--external:holdfast/);
    }
    assert.match(JSON.stringify(said["counts"]), /"pending":1,"running":0/, "the job waits for a process that can run it");
    for (const what of ["backup", "check"]) assert.equal(said[what]?.code, "FILE_MISSING", JSON.stringify(said[what]));
    const built = JSON.stringify(said["build in memory"]);
    assert.match(built, /"state":"FAILED"/);
    assert.match(built, /The file of the process of a stage with isolate: .* is missing/);
  });
}

test("a keeper thread that lacks a module is missing, too", async () => {
  const moved = join(folder, "moved half");
  mkdirSync(moved);
  const app = join(moved, "app.mjs");
  await esbuild(app, "--format=esm");
  copyFileSync(join(folder, "node_modules/holdfast/dist/runtime/keeper-thread.js"), join(moved, "keeper-thread.js"));
  const said = await run(app, "work.db", "enqueue", "claim", "work");
  for (const what of ["claim", "work"]) assert.equal(said[what]?.code, "KEEPER_MISSING", JSON.stringify(said[what]));
});

const RECIPE: Record<string, () => Promise<unknown>> = {
  esbuild: () => node(folder, "esbuild.mjs"),
  Vite: () => node(folder, "node_modules/vite/bin/vite.js", "build", "--config", "vite.config.mjs", "--logLevel", "error"),
};

for (const [name, bundle] of Object.entries(RECIPE)) {
  test(`in a bundle by the recipe for ${name} leases are renewed while a handler blocks`, async () => {
    const dist = join(folder, "dist");
    rmSync(dist, { recursive: true, force: true });
    await bundle();
    const app = join(dist, "app.mjs");
    assert.doesNotMatch(readFileSync(app, "utf8"), /keeper thread/, "Holdfast is not in the bundle");
    await run(app, "work.db", "enqueue");
    await renewedWhileBlocked(dist, run(app, "work.db", "work"));
    const said = await run(app, "work.db", "build", "backup", "check");
    assert.deepEqual(said, {
      build: { answer: "SUCCESS" },
      backup: {},
      check: { answer: { ok: true, findings: [] } },
    });
  });
}

test("a program given by `node --input-type=module -e` has its threads and child processes", async () => {
  const code = 'process.argv.splice(1, 0, "eval"); await import("./app.mjs");';
  const evaluate = (...wishes: string[]) => node(folder, "--input-type=module", "-e", code, "eval.db", ...wishes);
  await evaluate("enqueue");
  await renewedWhileBlocked(folder, evaluate("work"), "eval.db");
  assert.deepEqual(JSON.parse(await evaluate("build", "backup", "check")), {
    build: { answer: "SUCCESS" },
    backup: {},
    check: { answer: { ok: true, findings: [] } },
  });
});

test("docs/bundlers.md shows the recipes as they are", () => {
  const page = readFileSync(join(RECIPES, "../../docs/bundlers.md"), "utf8");
  const files = readdirSync(RECIPES);
  assert.ok(files.length >= 4);
  for (const file of files) assert.ok(page.includes(readFileSync(join(RECIPES, file), "utf8")), file);
});

/** Looks at the lease from outside, until it was renewed for longer than a lease, and lets the handler end. */
async function renewedWhileBlocked(folder: string, running: Promise<unknown>, database = "work.db"): Promise<void> {
  const path = join(folder, database);
  const hf = await open(path);
  try {
    const [job] = (await hf.jobs.list()).items;
    let first = Number.POSITIVE_INFINITY;
    for (let last = 0; last < first + 2 * LEASE; await pause(20)) {
      last = (await hf.jobs.get(job?.id as string))?.leaseExpiresAt ?? 0;
      if (last > 0) first = Math.min(first, last);
    }
  } finally {
    writeFileSync(join(folder, "release"), "");
    await hf.close();
  }
  await running;
  assert.equal(readFileSync(join(folder, "starts"), "utf8").trim().split("\n").length, 1, "it was started once");
}

function esbuild(outfile: string, ...args: string[]): Promise<string> {
  const bundled = ["--bundle", "--platform=node", "--log-level=warning", `--outfile=${outfile}`];
  return node(folder, "node_modules/esbuild/bin/esbuild", "app.mjs", ...bundled, ...args);
}
