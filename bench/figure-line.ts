import { styleText } from "node:util";
import { type Figure, holds, ratioOf } from "./measure.ts";
import type { Line } from "./suite.ts";

/** A figure as it is reported. */
export function lineOf(figure: Figure): Line {
  return {
    text: textOf(figure),
    holds: holds(figure),
    data: { ...figure, ratio: ratioOf(figure), holds: holds(figure) },
  };
}

function textOf(figure: Figure): string {
  const what = figure.what + (figure.durability === undefined ? "" : ` (${figure.durability})`);
  const target = "atLeast" in figure.target ? `≥ ${figure.target.atLeast}` : `≤ ${figure.target.atMost}`;
  const verdict = holds(figure) ? styleText("green", "holds") : styleText("red", "falls short");
  return [
    what.padEnd(52),
    `${say(figure.ours)} ${figure.unit}`.padStart(16),
    `of ${say(figure.limit)}`.padStart(12),
    ratioOf(figure).toFixed(2).padStart(7),
    target.padStart(7),
    ` ${verdict}`,
  ].join(" ");
}

function say(value: number): string {
  if (value >= 1_000) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(0) : value.toFixed(3);
}
