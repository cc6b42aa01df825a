#!/usr/bin/env node
// Nothing is imported before the check: a Node without SQLite is too old for the imports, too. How old the SQLite of a newer
// Node may be is for the library to say, which may be given another driver.
if (process.versions.sqlite === undefined) {
  console.error(
    `Node ${process.versions.node} has no SQLite, and Holdfast needs SQLite 3.51.3 or newer: use Node 22.23, 24.21, 26 or newer ones of these.`,
  );
  process.exit(2);
}
const { existsSync } = await import("node:fs");
const built = new URL("../dist/cli/main.js", import.meta.url);
const { main } = await import(existsSync(built) ? built.href : new URL("../src/cli/main.ts", import.meta.url).href);
await main(process.argv.slice(2));
