import assert from "node:assert/strict";
import { test } from "node:test";
import { GENERATED } from "../../scripts/docs.ts";
import { isGenerated, page, pages } from "./pages.ts";

for (const [path, make] of Object.entries(GENERATED)) {
  test(`${path} is what its script makes of src/`, async () => {
    assert.equal(page(path).text, await make(), "run `npm run docs`");
  });
}

test("the docs have at most 45,000 words, generated pages not counted", () => {
  const written = pages().filter(({ path, text }) => (path.startsWith("docs/") || path === "README.md") && !isGenerated(text));
  const words = written.reduce((sum, { text }) => sum + text.split(/\s+/).length, 0);
  assert.ok(words <= 45_000, `${words} words`);
});
