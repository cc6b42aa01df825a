import { openSync, readFileSync, readSync } from "node:fs";
import { registerHooks } from "node:module";
import { join } from "node:path";

/*
 * For every process of a run (`--import`, from `setup.ts`): what the files of this repository import of each other is where
 * it says, and its types were stripped already (`stripped.ts`). To look for it (links, packages, formats) and to make
 * JavaScript of it, for three hundred modules, is half of what a short command costs.
 */
const ROOT = new URL("../", import.meta.url).href;
const OURS = ["src/", "test/", "examples/"].map((ours) => ROOT + ours);
const folder = process.env["HOLDFAST_TEST_STRIPPED"];

if (process.env["HOLDFAST_TEST_CPU"] !== undefined) await import("./cpu.ts");

if (folder !== undefined) {
  const places = JSON.parse(readFileSync(join(folder, "places.json"), "utf8")) as Record<string, [from: number, length: number]>;
  const text = openSync(join(folder, "text"), "r");
  registerHooks({
    resolve(specifier, context, next) {
      const parent = context.parentURL;
      if (parent === undefined || !/^\.{1,2}\/.*\.ts$/.test(specifier) || !OURS.some((ours) => parent.startsWith(ours))) {
        return next(specifier, context);
      }
      return { url: new URL(specifier, parent).href, format: "module-typescript", shortCircuit: true };
    },
    load(url, context, next) {
      const place = url.startsWith(ROOT) ? places[url.slice(ROOT.length)] : undefined;
      if (place === undefined) return next(url, context);
      const [from, length] = place;
      const bytes = Buffer.allocUnsafe(length);
      readSync(text, bytes, 0, length, from);
      return { format: "module", source: bytes.toString(), shortCircuit: true };
    },
  });
}
