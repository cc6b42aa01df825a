import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { brotliCompressSync } from "node:zlib";
import { buildUi } from "./ui.ts";
import { type ModuleInfo, type OutputChunk, type Plugin, rolldown } from "rolldown";
import { type ESTree, parseSync, Visitor } from "rolldown/utils";

export const ROOT = join(import.meta.dirname, "..");
const SRC = join(ROOT, "src");
/** Node brings the first, users install the others. */
export const EXTERNAL = [/^node:/, "better-sqlite3", "postgres"];
const TARGET = "node22";

/** What Node or a user starts or imports: one file of `dist/` each, all in one folder, so that `ownFile` finds them. */
export const ENTRIES: Record<string, string> = {
  index: "index.ts",
  testing: "testing/index.ts",
  server: "server/index.ts",
  cli: "cli/main.ts",
  child: "pipelines/isolated/child.ts",
  "task-process": "store/sqlite/maintenance/backup/task-process.ts",
  "memory-eater": "testing/memory-eater.ts",
};

interface BundleOptions {
  folder: string;
  /** Entry points by name, as paths below `src/`. */
  entries?: Record<string, string>;
  minify: boolean;
}

/** Bundles `src/` into a few chunks that share their modules. Returns the chunks written. */
export async function bundle({ folder, entries = ENTRIES, minify }: BundleOptions): Promise<OutputChunk[]> {
  const build = await rolldown({
    input: {
      ...Object.fromEntries(Object.entries(entries).map(([name, path]) => [name, `${ENTRY}${name}:${join(SRC, path)}`])),
      // An entry of its own, so that the bundler puts its helpers into that chunk instead of a file for them.
      library: join(SRC, "index.ts"),
    },
    platform: "node",
    external: EXTERNAL,
    transform: { target: TARGET },
    // Chunks may export more than their modules do; what users import has a facade, which does not.
    preserveEntrySignatures: "allow-extension",
    plugins: [
      facades(),
      // `String` keeps the bundler from copying the text to wherever it is used.
      threadCode(`String(${JSON.stringify(await bundleThreads())})`, false),
      dashboardFiles(await bundleDashboard()),
      // Not for tests, which replace functions of Node's modules: that needs imports.
      minify ? [plainBuiltins, shortLines] : null,
      ascii,
    ],
  });
  try {
    const { output } = await build.write({
      dir: folder,
      format: "es",
      cleanDir: true,
      minify: minify ? READABLE : false,
      comments: false,
      entryFileNames: "[name].js",
      chunkFileNames: "[name].js",
      codeSplitting: { includeDependenciesRecursively: false, groups: [{ name: chunkOf(), debugName: "chunks" }] },
    });
    return output.filter((file) => file.type === "chunk");
  } finally {
    await build.close();
  }
}

/** Short local names, and no comments or spaces. Names of functions and classes stay, so that a stack can be read. */
const READABLE = {
  compress: { keepNames: { function: true, class: true } },
  mangle: { keepNames: { function: true, class: true } },
  codegen: { removeWhitespace: true },
} as const;

const LONG_OBJECT = 200;
/** Puts each statement on a line of its own, because Node prints the line of an error that is not caught. */
const shortLines: Plugin = {
  name: "short-lines",
  generateBundle(_options, files) {
    for (const file of Object.values(files)) {
      if (file.type !== "chunk") continue;
      const starts: number[] = [];
      const add = (nodes: readonly ESTree.Node[]) => starts.push(...nodes.map(({ start }) => start));
      const visitor = new Visitor({
        Program: ({ body }) => add(body),
        BlockStatement: ({ body }) => add(body),
        ClassBody: ({ body }) => add(body),
        SwitchStatement: ({ cases }) => add(cases),
        SwitchCase: ({ consequent }) => add(consequent),
        ObjectExpression: ({ properties, start, end }) => end - start > LONG_OBJECT && add(properties),
      });
      visitor.visit(parseSync(file.fileName, file.code).program);
      const edges = [0, ...starts.toSorted((a, b) => a - b)];
      file.code = edges.map((start, i) => file.code.slice(start, edges[i + 1])).join("\n");
    }
  },
};

/**
 * The code of the keeper thread and of tasks such as backups as one text: a CommonJS script, because `new Worker(text, { eval:
 * true })` starts that in half the time of a module in a `data:` address. Each store is a part of its own: a thread compiles
 * only what it runs, which saves memory for as long as it lives.
 */
async function bundleThreads(): Promise<string> {
  const entry = "holdfast:threads";
  const [task, keeper] = ["store/sqlite/maintenance/backup/task-runner.ts", "engine/keeper-thread.ts"].map((path) =>
    JSON.stringify(join(SRC, path)),
  );
  const code = `import { workerData } from "node:worker_threads"; workerData?.location ? import(${keeper}) : import(${task});`;
  const build = await rolldown({
    input: { threads: entry },
    platform: "node",
    external: EXTERNAL,
    transform: { target: TARGET },
    plugins: [
      { name: "threads", resolveId: (id) => (id === entry ? id : null), load: (id) => (id === entry ? code : null) },
      threadCode("null", true),
      ascii,
    ],
  });
  try {
    const { output } = await build.generate({
      format: "cjs",
      minify: true,
      entryFileNames: "[name].js",
      chunkFileNames: "[name].js",
    });
    return unpacking(Object.fromEntries(output.map((file) => [`./${file.fileName}`, file.type === "chunk" ? file.code : ""])));
  } finally {
    await build.close();
  }
}

/**
 * Returns a script that runs `threads.js` of these files. They are compressed as one, to a quarter of their size; a thread takes
 * 4 ms to unpack them, and forgets them when it has compiled what it runs. It loads Node's modules on use: most threads never
 * need those for processes and keys, which take 10 ms.
 */
function unpacking(files: Record<string, string>): string {
  let end = 0;
  const places = Object.entries(files).map(([name, { length }]) => [name, [end, (end += length)]]);
  const packed = brotliCompressSync(Buffer.from(Object.values(files).join(""), "latin1")).toString("base64");
  return `const places = ${JSON.stringify(Object.fromEntries(places))};
    const loaded = {};
    let unpacked = null;
    function unpack() {
      setImmediate(() => { unpacked = null; });
      return require("node:zlib").brotliDecompressSync(Buffer.from("${packed}", "base64"));
    }
    function onUse(name) {
      let module;
      return new Proxy({}, { get: (_, key) => (module ??= require(name))[key] });
    }
    function load(name) {
      if (!(name in places)) return onUse(name);
      if (name in loaded) return loaded[name];
      const code = (unpacked ??= unpack()).latin1Slice(...places[name]);
      const options = { filename: name.replace("./", "holdfast-") };
      const run = require("node:vm").runInThisContext("(function (require, exports) {" + code + "})", options);
      run(load, loaded[name] = {});
      return loaded[name];
    }
    load("./threads.js");`;
}

/** Replaces `src/store/thread-code.ts`. */
function threadCode(code: string, isThreadCode: boolean): Plugin {
  const file = join(SRC, "store/thread-code.ts");
  const text = `export const THREAD_CODE = ${code}; export const IS_THREAD_CODE = ${isThreadCode};`;
  return {
    name: "thread-code",
    load: (id) => (id === file ? text : null),
    // The bundler inlines the constant only after it has chosen what to keep of each module.
    transform: (source) => source.replaceAll(/\bIS_THREAD_CODE(?=\s+\?)/g, String(isThreadCode)),
  };
}

/** The files of the dashboard as one compressed text, so that they survive users' bundlers. */
async function bundleDashboard(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-ui-"));
  try {
    await buildUi(folder);
    const files = (await readdir(folder)).toSorted().map(async (name) => [name, await readFile(join(folder, name), "utf8")]);
    return brotliCompressSync(JSON.stringify(Object.fromEntries(await Promise.all(files)))).toString("base64");
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Replaces `src/server/dashboard-files.ts`. */
function dashboardFiles(packed: string): Plugin {
  const file = join(SRC, "server/dashboard-files.ts");
  const text = `import { brotliDecompressSync } from "node:zlib";
    export function dashboardFiles() {
      const files = JSON.parse(brotliDecompressSync(Buffer.from("${packed}", "base64")).toString());
      return Object.fromEntries(Object.entries(files).map(([name, text]) => [name, Buffer.from(text)]));
    }`;
  return { name: "dashboard-files", load: (id) => (id === file ? text : null) };
}

/** Entry points, each with a file of its own that exports what its module does. */
const ENTRY = "holdfast:entry:";
function facades(): Plugin {
  return {
    name: "facades",
    resolveId: (id) => (id.startsWith(ENTRY) ? id : null),
    load: (id) => (id.startsWith(ENTRY) ? `export * from ${JSON.stringify(id.slice(id.indexOf(":", ENTRY.length) + 1))};` : null),
  };
}

/** Escapes the few other characters, which stand in strings only: V8 reads a file that has none in half the memory, and faster. */
const ascii: Plugin = {
  name: "ascii",
  generateBundle(_options, files) {
    for (const file of Object.values(files)) {
      if (file.type !== "chunk") continue;
      file.code = file.code.replaceAll(/[\u0080-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
    }
  },
};

/**
 * Takes Node's modules without `import`, which reads every property of a module, and so loads what lies behind getters: Web
 * Crypto, the streams of files, the diffs of `util`. Modules of which only functions are used are loaded when one is called:
 * `node:crypto` takes half of the time of `import "holdfast"`.
 */
const plainBuiltins: Plugin = {
  name: "plain-builtins",
  renderChunk: (code) =>
    code.replaceAll(/^import (?:([^"]*) from )?"(node:[^"]+)";$/gm, (_, names: string | undefined, module: string) => {
      const [, whole, listed] = /^(?:\* as )?([\w$]+)?(?:, )?(?:\{ (.*) \})?$/.exec(names ?? "") ?? [];
      const builtin = `globalThis.process.getBuiltinModule("${module}")`;
      const functions = LOADED_ON_CALL.test(module) ? (listed?.split(", ") ?? []) : [];
      const bindings = functions.map((one) => {
        const [name, local = name] = one.split(" as ");
        return `let ${local} = (...given) => (${local} = ${builtin}.${name})(...given);`;
      });
      if (whole !== undefined) bindings.push(`const ${whole} = ${builtin};`);
      if (listed !== undefined && functions.length === 0)
        bindings.push(`const { ${listed.replaceAll(" as ", ": ")} } = ${builtin};`);
      return bindings.join(" ");
    }),
};
const LOADED_ON_CALL = /^node:(?:crypto|readline)/;

/**
 * Names the chunk of a module by what loads it: `library` has what `import "holdfast"` needs, `engine` what an open database
 * needs, whichever it is. All but `library` are loaded on use. Null: the module stays with the only entry point that needs it.
 */
function chunkOf(): (id: string, modules: Modules) => string | null {
  let parts: { [part: string]: Set<string> } | null = null;
  return (id, modules) => {
    parts ??= {
      library: reachable(modules, "index.ts"),
      engine: reachable(modules, "open-handle.ts"),
      sqlite: reachable(modules, "store/sqlite/sqlite-store.ts", "store/sqlite/maintenance/backup/backups.ts"),
      postgres: reachable(modules, "store/postgres/postgres-store.ts"),
      program: reachable(modules, "cli/main.ts"),
      testing: reachable(modules, "testing/index.ts"),
      server: reachable(modules, "server/index.ts", "server/serve.ts"),
      commands: reachable(modules, ...(modules.getModuleInfo(join(SRC, "cli/program.ts"))?.dynamicallyImportedIds ?? [])),
    };
    const needs = (part: string) => parts?.[part]?.has(id) === true;
    if (needs("library") || (needs("program") && needs("engine"))) return "library";
    if (needs("engine") || (needs("sqlite") && needs("postgres"))) return "engine";
    // What a command shares with a store is little; without it, a command would load both stores.
    if (needs("commands") && ["sqlite", "postgres", "testing"].some(needs)) return "engine";
    if (needs("server") && needs("commands")) return "operator";
    return ["sqlite", "postgres", "program", "server", "commands"].find(needs) ?? null;
  };
}

interface Modules {
  getModuleInfo(id: string): ModuleInfo | null;
}

function reachable(modules: Modules, ...from: string[]): Set<string> {
  const found = new Set(from.map((path) => resolve(SRC, path)));
  for (const id of found) for (const next of modules.getModuleInfo(id)?.importedIds ?? []) found.add(next);
  return found;
}
