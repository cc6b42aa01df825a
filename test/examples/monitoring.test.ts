import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { METRICS } from "../../src/core/recovery/metrics.ts";

const ALERTS = fileURLToPath(new URL("../../examples/monitoring/alerts.yml", import.meta.url));
const DASHBOARD = fileURLToPath(new URL("../../examples/monitoring/dashboard.json", import.meta.url));
const hasPromtool = spawnSync("promtool", ["--version"]).status === 0;

interface Panel {
  title: string;
  gridPos: { x: number; y: number; w: number; h: number };
  targets: { expr: string }[];
}

test("the alert rules are ones that Prometheus loads", { skip: hasPromtool ? false : "there is no promtool here" }, () => {
  const { status, stdout } = spawnSync("promtool", ["check", "rules", ALERTS], { encoding: "utf8" });
  assert.equal(status, 0, stdout);
  assert.match(stdout, /SUCCESS: 17 rules found/);
});

test("rules and panels name metrics that there are", () => {
  const { panels } = JSON.parse(readFileSync(DASHBOARD, "utf8")) as { panels: Panel[] };
  const shown = panels.flatMap(({ targets }) => targets.map(({ expr }) => expr));
  const used = [...[readFileSync(ALERTS, "utf8"), ...shown].join("\n").matchAll(/\bholdfast_(\w+)/g)];
  assert.ok(used.length > 30);
  for (const [name, own = ""] of used) {
    const histogram = METRICS[own.replace(/_(bucket|sum|count)$/, "")];
    assert.ok(METRICS[own] !== undefined || histogram?.type === "histogram", name);
  }
});

test("no panel of the dashboard lies upon another", () => {
  const { panels } = JSON.parse(readFileSync(DASHBOARD, "utf8")) as { panels: Panel[] };
  for (const [i, { title, gridPos: a }] of panels.entries())
    for (const { title: other, gridPos: b } of panels.slice(i + 1)) {
      const isApart = a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
      assert.ok(isApart, `${title} and ${other}`);
    }
});
