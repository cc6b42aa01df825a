import assert from "node:assert/strict";
import { test } from "node:test";
import { METRICS } from "../../src/core/recovery/metrics.ts";
import { page } from "./pages.ts";

const { text } = page("docs/metrics.md");

test("what the page says to alarm on are families that there are, with labels that they have", () => {
  const [, alarms = ""] = /^## What to alarm on$([\s\S]*)/m.exec(text) ?? [];
  const used = [...alarms.matchAll(/\bholdfast_(\w+)(?:\{(\w+)=~?)?/g)];
  assert.ok(used.length > 10);
  for (const [said, name = "", label] of used) {
    const metric = METRICS[name];
    assert.ok(metric !== undefined, said);
    if (label !== undefined) assert.ok(metric.labels.includes(label), said);
    const asCounter = alarms.includes(`increase(holdfast_${name}`);
    assert.equal(asCounter, metric.type === "counter", `${said}: only what never falls has an increase`);
  }
});
