import assert from "node:assert/strict";
import { hash } from "node:crypto";
import { test } from "node:test";
import { buildTransition, dedupeKey } from "../../src/core/jobs/event.ts";

test("the key of a build's event is the hash of type, build, number and target", () => {
  assert.equal(buildTransition("build.paused", "b1", 3), "build.paused|b1|3|");
  assert.equal(buildTransition("target.failed", "b1", 3, "aa"), "target.failed|b1|3|aa");
  assert.equal(dedupeKey("db", "build.paused|b1|3|"), hash("sha256", "db|build.paused|b1|3|"));
});

test("another type, build, number, target or database has another key", () => {
  const keys = [
    dedupeKey("db", buildTransition("build.paused", "b1", 3)),
    dedupeKey("db", buildTransition("build.failed", "b1", 3)),
    dedupeKey("db", buildTransition("build.paused", "b2", 3)),
    dedupeKey("db", buildTransition("build.paused", "b1", 4)),
    dedupeKey("db", buildTransition("build.paused", "b1", 3, "aa")),
    dedupeKey("other", buildTransition("build.paused", "b1", 3)),
  ];
  assert.equal(new Set(keys).size, keys.length);
});
