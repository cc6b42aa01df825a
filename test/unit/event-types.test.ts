import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { EVENT_TYPES } from "../../src/core/jobs/event.ts";

test("docs/events.md lists every event type, and no other", () => {
  const page = readFileSync(new URL("../../docs/events.md", import.meta.url), "utf8");
  const table = page.slice(page.indexOf("| type | when |")).split("\n\n", 1)[0] as string;
  const listed: string[] = [];
  for (const row of table.split("\n").slice(2)) {
    const [, first] = row.split("|") as [string, string];
    let group = "";
    for (const [, type] of first.matchAll(/`(.+?)`/g) as Iterable<[string, string]>) {
      if (!type.startsWith(".")) group = type.slice(0, type.indexOf("."));
      listed.push(type.startsWith(".") ? group + type : type);
    }
  }
  assert.deepEqual(listed.sort(), [...EVENT_TYPES].sort());
});
