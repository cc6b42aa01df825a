import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { page, ROOT } from "./pages.ts";

test("llms.txt has a title, a summary and ten pages that exist, one line each", () => {
  const { text } = page("llms.txt");
  assert.match(text, /^# Holdfast\n\n> .+\n/);
  const [, docs = "", optional = ""] = text.split(/^## .+$/m);
  assert.equal(links(docs).length, 10);
  for (const link of [...links(docs), ...links(optional)]) assert.ok(existsSync(join(ROOT, link)), link);
});

function links(section: string): string[] {
  return section
    .trim()
    .split("\n")
    .map((line) => /^- \[[^\]]+\]\(([^)]+)\): \S.*$/.exec(line)?.[1] ?? line);
}
