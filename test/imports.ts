import { existsSync, openSync, readFileSync, readSync, writeFileSync } from "node:fs";
import { createRequire, registerHooks } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Script } from "node:vm";
import { isMainThread } from "node:worker_threads";
import type { Places } from "./stripped.ts";

/*
 * For every process of a run (`--import`, from `setup.ts`): what the files of this repository import of each other is where
 * it says, its types were stripped already (`stripped.ts`), and the modules of `src` come out of a few scripts (`joined.ts`).
 * To look for three hundred modules (links, packages, formats), to make JavaScript of them and to compile their functions
 * is most of what a short command costs.
 */
const ROOT = new URL("../", import.meta.url).href;
const OURS = ["src/", "test/", "examples/"].map((ours) => ROOT + ours);
const [SRC, DIST] = [`${ROOT}src/`, `${ROOT}dist/`];
const folder = process.env["HOLDFAST_TEST_STRIPPED"];
const dist = process.env["HOLDFAST_TEST_DIST"] !== undefined;

if (process.env["HOLDFAST_TEST_CPU"] !== undefined) await import("./cpu.ts");

if (folder !== undefined) {
  const { texts, within } = JSON.parse(readFileSync(join(folder, "places.json"), "utf8")) as Places;
  const file = openSync(join(folder, "text"), "r");
  const textOf = (path: string): string | undefined => {
    const place = texts[path];
    if (place === undefined) return undefined;
    const bytes = Buffer.allocUnsafe(place[1]);
    readSync(file, bytes, 0, place[1], place[0]);
    return bytes.toString();
  };
  // Whoever replaces what Node exports needs modules that see it.
  const main = process.argv[1] === undefined ? "" : pathToFileURL(process.argv[1]).href;
  const plain = main.startsWith(ROOT) && (textOf(main.slice(ROOT.length)) ?? "").includes("syncBuiltinESMExports");
  registerHooks({
    resolve(specifier, context, next) {
      const parent = context.parentURL;
      if (parent === undefined || !/^\.{1,2}\/.*\.ts$/.test(specifier) || !OURS.some((ours) => parent.startsWith(ours))) {
        return next(specifier, context);
      }
      const { href: url } = new URL(specifier, parent);
      // What is published, in place of what it is made of.
      if (dist && url.startsWith(SRC)) return next(url.replace(SRC, DIST).replace(/\.ts$/, ".js"), context);
      return { url, format: "module-typescript", shortCircuit: true };
    },
    load(url, context, next) {
      const path = url.startsWith(ROOT) ? url.slice(ROOT.length) : "";
      const source = (plain ? textOf(`plain:${path}`) : undefined) ?? textOf(path);
      return source === undefined ? next(url, context) : { format: "module", source, shortCircuit: true };
    },
  });
  Reflect.set(globalThis, Symbol.for("holdfast.need"), needing(folder, within, textOf));
}

// Node 22 ends a test file as soon as no handle keeps the process alive, though a test still waits.
if (dist && process.versions.node.startsWith("22.") && process.argv[1]?.endsWith(".test.ts") && isMainThread) {
  const { after } = await import("node:test");
  const alive = setInterval(() => {}, 2 ** 30);
  after(() => clearInterval(alive));
}

/** Gives a module that is in one of the scripts: what it exports. */
function needing(folder: string, within: Places["within"], textOf: (path: string) => string | undefined) {
  type Give = (names: Record<string, () => unknown>) => void;
  const functions = new Map<string, (give: Give) => void>();
  const given = new Map<string, object>();
  const scripts = new Map<string, Script>();
  const require = createRequire(`${ROOT}src/index.ts`);

  function need(path: string): object {
    const known = given.get(path);
    if (known !== undefined) return known;
    if (!functions.has(path)) load(within[path] as string);
    const exports = {};
    given.set(path, exports);
    functions.get(path)?.((names) => {
      for (const [name, get] of Object.entries(names)) Object.defineProperty(exports, name, { enumerable: true, get });
    });
    return exports;
  }

  function load(name: string): void {
    const compiled = compiledOf(name);
    const script = new Script(textOf(name) as string, {
      filename: ROOT + name,
      ...(existsSync(compiled) ? { cachedData: readFileSync(compiled) } : {}),
    });
    scripts.set(name, script);
    script.runInThisContext()(functions.set.bind(functions), need, packaged, (url: string): Promise<unknown> => import(url));
  }

  function packaged(name: string): object {
    const found = require(name) as object;
    return Symbol.toStringTag in found ? found : { ...found, default: found };
  }

  const compiledOf = (name: string) => join(folder, `${name.replaceAll("/", "-")}.compiled`);
  // With the functions that were called: the next processes call them, too.
  if (process.env["HOLDFAST_TEST_WARMS"] && isMainThread) {
    for (const path of Object.keys(within)) need(path);
    process.once("exit", () => {
      for (const [name, script] of scripts) writeFileSync(compiledOf(name), script.createCachedData());
    });
  }
  return need;
}
