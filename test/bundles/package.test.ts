import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { packForTests } from "../bundle.ts";
import { install, node, nodeOutput, ROOT } from "./project.ts";

/** What the keeper thread runs of both stores is in the package twice; the dashboard may have 120 kB, as a text. */
const PACKED_BYTES = 625_000;
const FILES = 40;
/** Prints the files of the package that were loaded when the process ends. */
const LOADED = `import { registerHooks } from "node:module";
const files = [];
registerHooks({ load(url, context, next) { if (url.includes("/holdfast/dist/")) files.push(url.split("/").at(-1)); return next(url, context); } });
process.on("exit", () => console.error("loaded", files.sort().join(" ")));`;
const CHECK = `import { open } from "holdfast";
await using hf = await open("checked.db");
console.log(JSON.stringify(await hf.check()));`;

let folder: string;
let installed: string;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "holdfast-package-"));
  installed = await install(folder);
  writeFileSync(join(folder, "loaded.mjs"), LOADED);
});
after(() => rmSync(folder, { recursive: true, force: true }));

test("publint and arethetypeswrong find nothing wrong with the package", async () => {
  const tarball = await packForTests();
  await node(folder, join(ROOT, "node_modules/publint/src/cli.js"), "run", "--strict", tarball);
  await node(folder, join(ROOT, "node_modules/@arethetypeswrong/cli/dist/index.js"), "--profile", "esm-only", tarball);
});

test(`the package has at most ${FILES} files and ${PACKED_BYTES / 1000} kB, no dependency and no source map`, async () => {
  const files = readdirSync(installed, { recursive: true, encoding: "utf8", withFileTypes: true }).filter((file) =>
    file.isFile(),
  );
  assert.ok(files.length <= FILES, `${files.length} files`);
  assert.ok(statSync(await packForTests()).size <= PACKED_BYTES, `${statSync(await packForTests()).size} bytes`);
  for (const file of files) {
    assert.doesNotMatch(file.name, /\.map$/);
    assert.doesNotMatch(readFileSync(join(file.parentPath, file.name), "utf8"), /^\/\/[#@] sourceMappingURL/m, file.name);
  }
  const { dependencies } = JSON.parse(readFileSync(join(installed, "package.json"), "utf8")) as { dependencies?: object };
  assert.deepEqual(dependencies ?? {}, {});
  const licenses = readFileSync(join(installed, "dist/licenses.txt"), "utf8");
  for (const name of ["commander", "croner", "hono", "ignore", "picomatch", "zod"])
    assert.match(licenses, new RegExp(`^${name} \\d`, "m"));
});

test("the package's own README has at most 400 words, links that work without the repository, and an example that runs", async () => {
  const text = readFileSync(join(installed, "README.md"), "utf8");
  assert.equal(text, readFileSync(join(ROOT, "scripts/package-readme.md"), "utf8"));
  assert.ok(text.split(/\s+/).length <= 400);
  for (const [link, target = ""] of text.matchAll(/\]\(([^)]*)\)/g)) assert.match(target, /^(?:#|https:)/, link);
  for (const [, file = ""] of text.matchAll(/`((?:bin|dist|docs|src)\/[^`]+)`/g))
    assert.ok(existsSync(join(installed, file)), file);
  const [, code = ""] = /```ts\n([^]*?)```/.exec(text) ?? [];
  writeFileSync(join(folder, "readme.ts"), code);
  const printed = [...code.matchAll(/\/\/ → (.*)/g)].map(([, line]) => `${line}\n`);
  assert.equal(await node(folder, "readme.ts"), printed.join(""));
});

/** The files of the package that a process of Node loads. */
async function loadedBy(...args: string[]): Promise<string[] | undefined> {
  const { stderr } = await nodeOutput(folder, "--import", "./loaded.mjs", ...args);
  return /^loaded (.*)$/m.exec(stderr)?.[1]?.split(" ");
}

test("the library is two files, a database two more; help loads no command, and a command one database", async () => {
  const evaluated = (code: string) => loadedBy("--input-type=module", "-e", code);
  assert.deepEqual(await evaluated('import "holdfast";'), ["index.js", "library.js"]);
  const opened = await evaluated('import { open } from "holdfast"; await (await open("work.db")).close();');
  assert.deepEqual(opened, ["engine.js", "index.js", "library.js", "sqlite.js"]);
  const bin = join(installed, "bin/holdfast.js");
  assert.deepEqual(await loadedBy(bin, "--help"), ["cli.js", "library.js", "program.js"]);
  const asked = await loadedBy(bin, "status", "--db", "work.db");
  assert.deepEqual(asked, ["cli.js", "commands.js", "engine.js", "library.js", "operator.js", "program.js", "sqlite.js"]);
});

test("the package checks a database where Node makes no code from strings", () => {
  writeFileSync(join(folder, "check.mjs"), CHECK);
  const env = { ...process.env, NODE_OPTIONS: "--disallow-code-generation-from-strings" };
  const printed = execFileSync(process.execPath, ["check.mjs"], { cwd: folder, env, encoding: "utf8" });
  assert.deepEqual(JSON.parse(printed), { ok: true, findings: [] });
});

test("a command leaves its compiled code beside the package, and runs where it cannot", () => {
  const cache = join(folder, "node_modules/.cache");
  // The tests' own cache would take precedence.
  const { NODE_COMPILE_CACHE: _, ...env } = process.env;
  const version = () =>
    execFileSync(process.execPath, [join(installed, "bin/holdfast.js"), "--version"], { env, encoding: "utf8" });
  rmSync(cache, { recursive: true, force: true });
  assert.match(version(), /^\d/);
  assert.ok(readdirSync(join(cache, "holdfast")).length > 0);
  rmSync(cache, { recursive: true });
  writeFileSync(cache, "a file, which keeps a folder from being made");
  assert.match(version(), /^\d/);
  rmSync(cache);
});

test("the package exports the public names, and declares them", async () => {
  for (const [name, source] of Object.entries({
    holdfast: "src/index.ts",
    "holdfast/testing": "src/testing/index.ts",
    "holdfast/server": "src/server/index.ts",
  })) {
    const names = [...readFileSync(join(ROOT, source), "utf8").matchAll(/^export (type )?\{([^}]*)\}/gm)].flatMap(
      ([, type, list]) =>
        (list as string).split(",").map((one) => ({
          name: one.replace(/^\s*type\s/, "").trim(),
          isType: type !== undefined || /^\s*type\s/.test(one),
        })),
    );
    const values = names.filter(({ isType }) => !isType).map(({ name }) => name);
    const exported = await node(
      folder,
      "--input-type=module",
      "-e",
      `console.log(Object.keys(await import("${name}")).sort().join(" "));`,
    );
    assert.equal(exported.trim(), values.toSorted().join(" "));
    const all = names.map(({ name }) => name).join(", ");
    const isTesting = name.endsWith("testing");
    writeFileSync(join(folder, isTesting ? "testing.mts" : "index.mts"), `export type { ${all} } from "${name}";\n`);
  }
  writeFileSync(
    join(folder, "tsconfig.json"),
    JSON.stringify({
      compilerOptions: { module: "nodenext", target: "es2024", strict: true, noEmit: true, types: ["node"] },
      include: ["*.mts"],
    }),
  );
  // Declarations name types of Node, which every TypeScript project for Node has.
  mkdirSync(join(folder, "node_modules/@types"), { recursive: true });
  for (const types of ["@types/node", "undici-types"])
    symlinkSync(join(ROOT, "node_modules", types), join(folder, "node_modules", types));
  await node(folder, join(ROOT, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.json");
});

test("an error that is not caught shows a short line and the names of functions", async () => {
  const failed = node(folder, "--input-type=module", "-e", 'import { open } from "holdfast"; await open("missing/work.db");');
  await assert.rejects(failed, ({ stderr }: { stderr: string }) => {
    assert.ok(Math.max(...stderr.split("\n").map((line) => line.length)) < 400, stderr.slice(0, 1_000));
    assert.match(stderr, /HoldfastError: The folder .*\n +at canonicalPath \(/);
    return true;
  });
});

test("holdfast/testing sees the library's own state: a crash point that it sets kills the process in an enqueue", async () => {
  const code = `import { job, open } from "holdfast"; import { crashAt } from "holdfast/testing";
    const hf = await open("crash.db"); crashAt("enqueue:committed"); await hf.enqueue(job({ name: "j", run() {} }), 1);`;
  await assert.rejects(node(folder, "--input-type=module", "-e", code), { signal: "SIGKILL" });
});

test("the command in a checkout runs src/, also where an older dist/ is beside it", async () => {
  const checkout = join(folder, "checkout");
  mkdirSync(join(checkout, "dist"), { recursive: true });
  for (const name of ["bin", "package.json"]) cpSync(join(ROOT, name), join(checkout, name), { recursive: true });
  symlinkSync(join(ROOT, "src"), join(checkout, "src"));
  writeFileSync(join(checkout, "dist/cli.js"), 'export const main = () => console.log("stale");');
  assert.match(await node(checkout, "bin/holdfast.js", "--version"), /^\d+\.\d+\.\d+\n$/);
});
