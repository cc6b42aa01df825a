#!/usr/bin/env node
// Nothing is imported before the check: an older Node would fail on the imports with a riddle instead of a sentence.
const [major, minor] = process.versions.node.split(".").map(Number);
if (major < 24 || (major === 24 && minor < 21)) {
  console.error(`holdfast needs Node 24.21 or newer, and this is ${process.versions.node}: install it from https://nodejs.org.`);
  process.exit(2);
}
const { existsSync } = await import("node:fs");
const built = new URL("../dist/cli/main.js", import.meta.url);
const { main } = await import(existsSync(built) ? built.href : new URL("../src/cli/main.ts", import.meta.url).href);
await main(process.argv.slice(2));
