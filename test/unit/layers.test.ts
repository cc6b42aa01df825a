import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { test } from "node:test";

const SRC = resolve(import.meta.dirname, "../../src");

/** What each folder of src may import besides itself. "" is the public names and the handle: src/index.ts, open.ts, open-handle.ts and holdfast.ts. */
const MAY_IMPORT: Record<string, readonly string[]> = {
  "": ["pipelines", "engine", "store", "artifacts", "core"],
  cli: ["", "server", "operator", "pipelines", "engine", "store", "artifacts", "core"],
  server: ["", "operator", "pipelines", "engine", "store", "artifacts", "core"],
  // For users' own tests; nothing imports it.
  testing: ["", "pipelines", "engine", "store", "artifacts", "core"],
  // What the command line looks at and does beyond the public names.
  operator: ["", "pipelines", "engine", "store", "artifacts", "core"],
  // A plain job never runs code of pipelines.
  pipelines: ["engine", "store", "artifacts", "core"],
  engine: ["store", "artifacts", "core"],
  store: ["core"],
  artifacts: ["core"],
  core: [],
};

/** Modules that are not ours, by who may use them. */
const MAY_USE: Record<string, (module: string) => boolean> = {
  // Computes the instants of a cron pattern from instants that it is given; turns globs into patterns; hashes; is a type. See
  // below for no more than that.
  core: (module) => ["croner", "picomatch", "node:crypto", "node:stream"].includes(module),
  // Reads the rules of ignore files.
  pipelines: (module) => ANY_NODE(module) || module === "ignore",
  store: (module) => module.startsWith("node:") || module === "better-sqlite3" || module === "postgres",
  // The package that a program with telemetry installs; its types, and its code on use.
  engine: (module) => ANY_NODE(module) || module === "@opentelemetry/api",
  server: (module) => ANY_NODE(module) || /^(hono|@hono\/node-server|zod)(\/|$)/.test(module),
  cli: (module) => (module.startsWith("node:") && module !== "node:sqlite") || module === "commander",
};
const ANY_NODE = (module: string) => module.startsWith("node:") && module !== "node:sqlite";

const files = readdirSync(SRC, { recursive: true, encoding: "utf8" })
  .filter((file) => file.endsWith(".ts"))
  .map((file) => ({ file, layer: layerOf(file), text: readFileSync(join(SRC, file), "utf8") }));

test("the list of files is not empty", () => {
  assert.ok(files.length > 20);
  assert.ok(files.some(({ file, text }) => file.startsWith("store") && importsOf(text).includes("node:sqlite")));
});

test("every folder of src is a known layer", () => {
  for (const { file, layer } of files) assert.ok(layer in MAY_IMPORT, file);
});

for (const { file, layer, text } of files) {
  test(`src/${file} imports only downwards`, () => {
    for (const module of importsOf(text)) {
      if (module.startsWith(".")) {
        const target = relative(SRC, resolve(SRC, dirname(file), module));
        assert.ok(!target.startsWith(".."), `${module} is outside src`);
        const to = layerOf(target);
        assert.ok(to === layer || MAY_IMPORT[layer]?.includes(to), `${layer || "index"} may not import ${module}`);
      } else {
        assert.ok((MAY_USE[layer] ?? ANY_NODE)(module), `${layer || "index"} may not import ${module}`);
      }
    }
  });
}

for (const { file, layer, text } of files.filter(({ layer }) => layer !== "store")) {
  test(`src/${file} knows no SQL`, () => {
    for (const [literal] of text.matchAll(/"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`/g)) {
      assert.doesNotMatch(
        literal,
        /\b(select\s.+\sfrom|insert\s+into|delete\s+from|update\s+\w+\s+set|create\s+table|pragma)\b/is,
      );
      // `commit` is also a public name; a transaction cannot be committed without these.
      assert.doesNotMatch(literal, /^["`]\s*(begin|rollback|savepoint)(\s+immediate)?["`]$/i);
      assert.doesNotMatch(literal, /\bholdfast_\w+/, "a table");
    }
    if (layer === "core") {
      assert.doesNotMatch(
        text,
        /\bDate\.now\b|\bnew Date\(\)|\bMath\.random\b|\bperformance\b|\bsetTimeout\b|\bprocess\.(?!stop_asked")/,
        "pure",
      );
      for (const [, names = ""] of text.matchAll(/\bimport\s([^;"']*?)\bfrom\s*"node:crypto"/g)) {
        assert.match(names, /^\{ (?:createHash|hash)(?:, hash)? \} $/, "of node:crypto nothing that is random");
      }
      assert.doesNotMatch(text, /\bimport\s(?!type\b)[^;"']*?\bfrom\s*"node:stream"/, "of node:stream only types");
    }
  });
}

test("src/cli uses the public API and the Operator, and never the engine", () => {
  const users = files.filter(({ layer, text }) => layer === "cli" && /\bengine\b/i.test(codeOf(text).replace(/"[^"\n]*"/g, "")));
  assert.deepEqual(
    users.map(({ file }) => file),
    [],
  );
});

/** What a third store would have to implement: another method has to earn its place. */
const SEAM_METHODS = 100;

test("the Store seam does not grow", () => {
  const seam = files.filter(({ file }) => /^store\/[^/]+\.ts$/.test(file));
  const interfaces = seam.flatMap(({ text }) => text.match(/^export interface \w*Store\b[^{]*\{\n[^]*?^\}/gm) ?? []);
  const methods = interfaces.flatMap((text) => text.match(/^  \w+(?:<[^>]*>)?\(/gm) ?? []);
  assert.ok(methods.length > 20 && methods.length <= SEAM_METHODS, String(methods.length));
});

function layerOf(file: string): string {
  const [first = "", ...rest] = file.split("/");
  return rest.length === 0 ? "" : first;
}

function importsOf(text: string): string[] {
  const code = codeOf(text);
  const found = [
    ...code.matchAll(/\b(?:import|export)\s[^;"']*?\bfrom\s*["']([^"']+)["']/g),
    ...code.matchAll(/\bimport\s*["']([^"']+)["']/g),
    ...code.matchAll(/\bimport\(\s*["']([^"']+)["']/g),
    ...code.matchAll(/\bcreateRequire\([^)]*\)\(\s*["']([^"']+)["']/g),
    ...code.matchAll(/\brequire\(\s*["']([^"']+)["']/g),
  ];
  return found.map(([, module]) => module as string);
}

/** A module's text without its comments. */
function codeOf(text: string): string {
  return text.replace(/\/\*[\s\S]*?\*\//g, "").replace(/^\s*\/\/.*$/gm, "");
}
