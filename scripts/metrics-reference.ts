import { METRICS } from "../src/core/recovery/metrics.ts";
import { cell, generatedBy } from "./source.ts";

/** docs/metrics-reference.md, from the families in src/core/recovery/metrics.ts. */
export function metricsReference(): string {
  const rows = Object.entries(METRICS).map(([name, { type, labels, help }]) => {
    return `| \`holdfast_${name}\` | ${type} | ${labels.map((label) => `\`${label}\``).join(", ")} | ${cell(help)} |`;
  });
  return [
    generatedBy("scripts/metrics-reference.ts"),
    "",
    "# Reference of metrics",
    "",
    "Every family that `holdfast metrics` prints. Durations are in seconds, sizes in bytes, times in seconds since 1970.",
    "[metrics.md](metrics.md) has the setup and the alarms.",
    "",
    "| family | type | labels | what it says |",
    "|---|---|---|---|",
    ...rows,
    "",
  ].join("\n");
}
