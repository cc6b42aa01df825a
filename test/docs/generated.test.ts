import assert from "node:assert/strict";
import { test } from "node:test";
import { errors } from "../../scripts/errors.ts";
import { reference } from "../../scripts/reference.ts";
import { page } from "./pages.ts";

for (const [path, make] of Object.entries({ "docs/reference.md": reference, "docs/errors.md": errors })) {
  test(`${path} is what its script makes of src/`, () => {
    assert.equal(page(path).text, make(), "run `npm run docs`");
  });
}
