#!/usr/bin/env node
// Nothing is imported before the check: a Node without SQLite is too old for the imports, too. How old the SQLite of a newer
// Node may be is for the library to say, which may be given another driver.
if (process.versions.sqlite === undefined) {
  console.error(
    `Node ${process.versions.node} has no SQLite, and Holdfast needs SQLite 3.51.3 or newer: use Node 22.23, 24.21 or 26, or a newer release of these.`,
  );
  process.exit(2);
}
const { existsSync } = process.getBuiltinModule("node:fs");
// Only a checkout has `src/`. It runs that: its `dist/` may be of an older state.
const source = new URL("../src/cli/main.ts", import.meta.url);
const isCheckout = existsSync(source);
// A command compiles its code once for an installation. The cache lies where the package manager put the code, so that only
// users that can change the code can change the cache. Without the rights to write there, a command runs without it.
const cache = new URL("../../.cache/holdfast/", import.meta.url);
if (!isCheckout && cache.pathname.endsWith("/node_modules/.cache/holdfast/") && process.env.NODE_V8_COVERAGE === undefined) {
  process.getBuiltinModule("node:module").enableCompileCache?.(process.getBuiltinModule("node:url").fileURLToPath(cache));
}
const { main } = await import(isCheckout ? source.href : new URL("../dist/cli.js", import.meta.url).href);
await main(process.argv.slice(2));
