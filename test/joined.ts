import { dirname, join } from "node:path/posix";

/** Loaded only by those who need them; everything else is in the first part. */
const PARTS = ["src/cli/", "src/testing/", "src/store/postgres/", "src/store/sqlite/"];
/** It has modules in its strings, and nobody imports it before it is asked for. */
const APART = "src/cli/init.ts";
const FIRST = "src/joined.ts";
/** Where each process has what gives a module of these: see `imports.ts`. */
export const NEED = "holdfast.need";
/** What is imported, and from where: in front of everything else of a module, which the formatter sees to. */
const IMPORT = /^(?:import|export)\s+([^;"']*?)\s*from\s+"([^"]+)";/;
const EXPORT = /^export\s+((?:async\s+)?function\s*\*?|class|const)\s+([\w$]+)/gm;
const EXPORT_LIST = /^export\s+\{([^}]*)\};/gm;

interface Module {
  path: string;
  imports: { names: string; from: string; passedOn: boolean }[];
  exports: string[];
  body: string;
}

export interface Joined {
  /** Scripts, by name: each is a function that tells what it has. */
  scripts: Map<string, string>;
  /** In which of them a module is. */
  within: Map<string, string>;
  /** What is left of each module: what it exports, taken from there. */
  modules: Map<string, string>;
}

/**
 * The modules of `src`, whose types are gone, in a few scripts: each is a function there, which is called when somebody needs
 * it first. To load three hundred modules one by one, and to compile their functions, is most of what a short process costs.
 */
export function joined(texts: ReadonlyMap<string, string>, root: string): Joined {
  const modules = new Map<string, Module>();
  for (const [path, text] of texts) {
    const module = read(path, text);
    // What exports nothing is there to be run.
    if (module.exports.length > 0 && path !== APART) modules.set(path, module);
  }
  const within = share(modules);
  const scripts = new Map<string, string>();
  for (const name of new Set(within.values())) {
    const inside = [...modules.values()].filter(({ path }) => within.get(path) === name);
    const functions = inside.map((module) => `$has("${module.path}", ($give) => {${wrapped(module, modules, root)}\n});\n`);
    scripts.set(name, ['"use strict";(($has, $need, $package, $import) => {\n', ...functions, "})"].join(""));
  }
  const left = [...modules].map(([path, { exports }]): [string, string] => [
    path,
    `export const { ${exports.join(", ")} } = globalThis[Symbol.for("${NEED}")]("${path}");\n`,
  ]);
  return { scripts, within, modules: new Map(left) };
}

function read(path: string, text: string): Module {
  const imports: Module["imports"] = [];
  let at = 0;
  for (;;) {
    at += /^(?:\s|\/\/[^\n]*\n|\/\*[^]*?\*\/)*/.exec(text.slice(at))?.[0].length ?? 0;
    const found = IMPORT.exec(text.slice(at));
    if (found === null) break;
    const [all, names, from] = found as unknown as [string, string, string];
    imports.push({ names, from: from.startsWith(".") ? join(dirname(path), from) : from, passedOn: all.startsWith("export") });
    at += all.length;
  }
  const body = text.slice(at);
  if (path !== APART && /^(?:import|export\s+(?:default|let|var|\*))\b/m.test(body))
    throw new Error(`${path} has what cannot be joined.`);
  const declared = [...body.matchAll(EXPORT)].map(([, , name]) => name as string);
  const listed = [...body.matchAll(EXPORT_LIST)].flatMap(([, names]) => listOf(names as string));
  const passedOn = imports
    .filter((one) => one.passedOn)
    .flatMap(({ names }) => listOf(names).map((name) => name.split(" as ").at(-1) as string));
  return { path, imports, exports: [...declared, ...listed, ...passedOn], body };
}

function listOf(names: string): string[] {
  return names
    .replaceAll(/[{}]/g, "")
    .split(",")
    .map((name) => name.trim().replaceAll(/\s+/g, " "))
    .filter(Boolean);
}

/** Which text each module is in: its own part's, unless somebody outside of that imports it. */
function share(modules: ReadonlyMap<string, Module>): Map<string, string> {
  const parts = new Map<string, string>();
  for (const path of modules.keys()) {
    const part = PARTS.find((one) => path.startsWith(one));
    parts.set(path, part === undefined ? FIRST : `${part}joined.ts`);
  }
  for (let before = -1, moved = 0; before !== moved;) {
    before = moved;
    for (const { path, imports } of modules.values()) {
      for (const { from } of imports) {
        if (!parts.has(from) || parts.get(from) === parts.get(path) || parts.get(from) === FIRST) continue;
        parts.set(from, FIRST);
        moved++;
      }
    }
  }
  return parts;
}

function wrapped({ path, imports, exports, body }: Module, modules: ReadonlyMap<string, Module>, root: string): string {
  const needs: string[] = [];
  const gives: string[] = [];
  for (const { names, from, passedOn } of imports) {
    if (from.startsWith("src/") && !modules.has(from)) throw new Error(`${path} imports ${from}, which is to be run by itself.`);
    const kind = modules.has(from) ? "$need" : from.startsWith("node:") ? "process.getBuiltinModule" : "$package";
    const source = `${kind}("${from}")`;
    if (passedOn) {
      const passed = `$passed${needs.length}`;
      needs.push(`const ${passed} = ${source};`);
      for (const name of listOf(names)) {
        const [of, as = of] = name.split(" as ");
        gives.push(`${as}: () => ${passed}.${of}`);
      }
      continue;
    }
    const [, whole] = /^\*\s+as\s+(\w+)$/.exec(names) ?? [];
    if (whole !== undefined) {
      needs.push(`const ${whole} = ${source};`);
      continue;
    }
    const [, standard, rest = names] = /^(\w+)\s*,?\s*(\{[^]*\})?$/.exec(names) ?? [];
    if (standard !== undefined) needs.push(`const ${standard} = ${source}.default;`);
    const taken = standard === undefined ? listOf(rest) : listOf(rest.startsWith("{") ? rest : "");
    if (taken.length > 0) needs.push(`const { ${taken.map((name) => name.replace(" as ", ": ")).join(", ")} } = ${source};`);
    else if (standard === undefined) needs.push(`${source};`);
  }
  const own = exports.filter((name) => !gives.some((given) => given.startsWith(`${name}:`)));
  gives.unshift(...own.map((name) => `${name}: () => ${name}`));
  const text = body
    .replaceAll(EXPORT, "$1 $2")
    .replaceAll(EXPORT_LIST, "")
    .replaceAll(/\bimport\.meta\.url\b(?=[;,)])/g, JSON.stringify(root + path))
    .replaceAll(/\bimport\("(\.[^"]+)"\)/g, (_, from: string) => `import("${root}${join(dirname(path), from)}")`)
    .replaceAll(/\bimport\(/g, "$import(");
  return `$give({ ${gives.join(", ")} });${needs.join(" ")}${text}`;
}
