import assert from "node:assert/strict";
import { suite, test } from "node:test";
import * as holdfast from "../../src/index.ts";
import type * as promised from "./promised-builds.ts";

/** A caller that relies on the promise gets at least that. */
function gives<Promised, _Is extends Promised>(): void {}
/** Both ways. */
function is<Promised extends Is, Is extends _Again, _Again = Promised>(): void {}

suite("builds keep what was promised of them", () => {
  test("data and options", () => {
    is<promised.Build, holdfast.Build>();
    is<promised.BuildOptions, holdfast.BuildOptions>();
    is<promised.Plan, holdfast.Plan>();
  });

  test("what is worked with", () => {
    gives<promised.Builds, holdfast.Holdfast["builds"]>();
    gives<promised.BuildHandle<{ a: 1 }>, holdfast.BuildHandle<{ a: 1 }>>();
  });

  test("and at run time there is each of them", async () => {
    await using hf = await holdfast.open(":memory:");
    const names = [
      "start",
      "resume",
      "watch",
      "plan",
      "approve",
      "mintToken",
      "get",
      "list",
      "abandon",
      "why",
      "output",
    ] as const;
    for (const name of [...names, "export" as const]) assert.equal(typeof hf.builds[name], "function", name);
  });
});
