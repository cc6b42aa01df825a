import assert from "node:assert/strict";
import { globSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
/** What a handler logs is its own. */
const PASSES_ON = "src/engine/log.ts";

test("every log line about a problem has a hint, or its error has one", () => {
  const silent: string[] = [];
  let lines = 0;
  for (const file of globSync("src/{engine,pipelines,operator,store,artifacts}/**/*.ts", { cwd: ROOT }).filter(
    (path) => path !== PASSES_ON,
  )) {
    const source = readFileSync(new URL(file, `file://${ROOT}`), "utf8");
    for (const { index } of source.matchAll(/\blog\??\.(?:warn|error)\(/gi)) {
      const call = source.slice(index, endOf(source, index));
      lines++;
      if (!/\bhint\b|\bdescribeError\(|\bmessage\.failure\)/.test(call)) silent.push(`${file}: ${call}`);
    }
  }
  assert.ok(lines > 30, "or this test shows nothing");
  assert.deepEqual(silent, []);
});

/** Where the brackets that open from here on are all closed. */
function endOf(source: string, from: number): number {
  let depth = 0;
  for (let i = source.indexOf("(", from); i < source.length; i++) {
    if (source[i] === "(") depth++;
    if (source[i] === ")" && --depth === 0) return i + 1;
  }
  return source.length;
}
