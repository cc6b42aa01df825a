import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { open } from "../../src/index.ts";
import { noServer, startServer } from "../postgres/server.ts";
import { makeProject, node, RECIPES, ROOT, run } from "./project.ts";

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
  test(`a whole bundle by ${name} works elsewhere: leases are renewed while a handler blocks`, async () => {
    const moved = mkdtempSync(join(tmpdir(), "holdfast-moved-"));
    try {
      const app = join(moved, file);
      await bundle(app);
      await run(app, "work.db", "enqueue");
      await renewedWhileBlocked(moved, run(app, "work.db", "work"));
      const said = await run(app, "work.db", "enqueue", "claim", "backup", "check", "build");
      assert.deepEqual(said["claim"], { answer: true });
      assert.deepEqual(said["backup"], {});
      // A child process still runs a file, which is not in the bundle.
      assert.equal(said["check"]?.code, "FILE_MISSING", JSON.stringify(said["check"]));
      assert.match(said["check"]?.hint ?? "", /--external:holdfast/);
      assert.deepEqual(said["build"], { answer: "FAILED" });
      const built = JSON.stringify(await run(app, "work.db", "build in memory"));
      assert.match(built, /"state":"FAILED"/);
      assert.match(built, /The file of the process of a stage with isolate: .* is missing/);
    } finally {
      rmSync(moved, { recursive: true, force: true });
    }
  });
}

test(
  "in a bundle with PostgreSQL, nothing is claimed where the package `postgres` is not installed",
  { skip: noServer },
  async (t) => {
    const server = await startServer();
    t.after(() => server.stop());
    const moved = mkdtempSync(join(tmpdir(), "holdfast-moved-"));
    t.after(() => rmSync(moved, { recursive: true, force: true }));
    const app = join(moved, "app.mjs");
    symlinkSync(join(ROOT, "node_modules/postgres"), join(folder, "node_modules/postgres"));
    await esbuild(app, "--format=esm");
    const refused = await run(app, server.url(), "enqueue", "work", "claim");
    for (const what of ["work", "claim"]) assert.equal(refused[what]?.code, "KEEPER_MISSING", JSON.stringify(refused[what]));
    assert.match(refused["work"]?.hint ?? "", /npm install postgres/);
    mkdirSync(join(moved, "node_modules"));
    symlinkSync(join(ROOT, "node_modules/postgres"), join(moved, "node_modules/postgres"));
    assert.deepEqual((await run(app, server.url(), "claim"))["claim"], { answer: true });
  },
);

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
