import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test, type TestContext } from "node:test";
import { pathToFileURL } from "node:url";
import { pipelineOf } from "../../src/core/pipelines/pipeline.ts";
import { items, pipeline } from "../../src/index.ts";
import { loadedFrom, programHash } from "../../src/pipelines/model.ts";

const FILES = {
  "docs.ts": 'import { a } from "./lib/a.ts";\nimport "node:fs";\nconst s = \'import "./missing.ts"\';',
  "lib/a.ts": 'export {\n  b,\n} from "../b.ts";\nexport const a = 1;',
  "b.ts": 'import "./docs.ts";\nexport const b = 2;',
  "other.ts": "export {};",
};

/** Writes the files into a new folder: a process hashes each path once. */
function write(t: TestContext, files: Record<string, string>): string {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-program-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), text);
  }
  return join(folder, "docs.ts");
}

const made = (module?: string) =>
  pipeline("docs", module === undefined ? {} : { module }).source(items(() => ["a"], { id: (id) => id }));

function hashOf(path: string): Promise<string> {
  return programHash(pipelineOf(made(pathToFileURL(path).href)));
}

test("the program hash covers the pipeline's module and its static relative imports", async (t) => {
  const hash = await hashOf(write(t, FILES));
  assert.match(hash, /^[0-9a-f]{64}$/);
  assert.equal(await hashOf(write(t, FILES)), hash, "the folder does not matter");
  assert.equal(await hashOf(write(t, { ...FILES, "other.ts": "changed" })), hash, "what is not imported does not matter");
  for (const name of ["docs.ts", "lib/a.ts", "b.ts"] as const) {
    const changed = { ...FILES, [name]: `${FILES[name]}\n// changed` };
    assert.notEqual(await hashOf(write(t, changed)), hash, name);
  }
});

test("without `module`, the file that a pipeline was loaded from is hashed, else the main script", async (t) => {
  const path = write(t, FILES);
  const loaded = made();
  loadedFrom(loaded, path);
  assert.equal(await programHash(pipelineOf(loaded)), await hashOf(path));
  assert.equal(await programHash(pipelineOf(made())), await hashOf(process.argv[1] as string));
});
