import { readFileSync } from "node:fs";
import { registerHooks } from "node:module";
import { pathToFileURL } from "node:url";
import { isMainThread } from "node:worker_threads";

/*
 * Loaded into every process of a run (`--import`, from `setup.ts`): modules of `src/` come out of the bundle (`bundle.ts`), which
 * a process loads in a fraction of the time that the three hundred files of `src/` take. A test file that is run without the
 * setup has `src/` as it is.
 */
const ROOT = new URL("../", import.meta.url).href;
const SRC = `${ROOT}src/`;
const folder = process.env["HOLDFAST_TEST_BUNDLE"];
/** A copy of the tests in the JavaScript that Node 22 can read; see `all-nodes.ts`. */
const lowered = process.env["HOLDFAST_TEST_LOWERED"];

if (process.env["HOLDFAST_TEST_CPU"] !== undefined) await import("./cpu.ts");

if (folder !== undefined) {
  const bundle = pathToFileURL(`${folder}/src/`).href;
  registerHooks({
    load(url, context, next) {
      if (url.startsWith(SRC)) {
        const file = JSON.stringify(bundle + url.slice(SRC.length).replace(/\.ts$/, ".js"));
        return { format: "module", source: `export * from ${file};`, shortCircuit: true };
      }
      if (lowered !== undefined && url.startsWith(ROOT) && url.endsWith(".ts")) {
        return { format: "module", source: readFileSync(new URL(url.slice(ROOT.length), lowered)), shortCircuit: true };
      }
      return next(url, context);
    },
  });
}

// Node 22 ends a test file as soon as no handle keeps the process alive, though a test still waits.
if (process.versions.node.startsWith("22.") && process.argv[1]?.endsWith(".test.ts") && isMainThread) {
  const { after } = await import("node:test");
  const alive = setInterval(() => {}, 2 ** 30);
  after(() => clearInterval(alive));
}
