import { registerHooks } from "node:module";
import { pathToFileURL } from "node:url";
import { join, resolve } from "node:path";

/** Loaded before a snippet: Holdfast, which a user would have installed, is found in src. */
const root = resolve(import.meta.dirname, "../..");
const own: Record<string, string> = {
  holdfast: "src/index.ts",
  "holdfast/testing": "src/testing/index.ts",
  "holdfast/server": "src/server/index.ts",
};

registerHooks({
  resolve(specifier, context, next) {
    const file = own[specifier];
    if (file !== undefined) return { url: pathToFileURL(join(root, file)).href, shortCircuit: true };
    return next(specifier, context);
  },
});
